"""A client's side of the protocol without any I/O: messages go in, frames and items come out.

The transport calls `opened`, `received` and `closed`; after each of them, and at the latest when
`next_wake` says, it sends what `collect` returns and hands on what `take_items`, `take_failures`
and `take_settled` return. When `leave` is set it closes the connection; `stopped` ends the client.

Invariants: positions, numbers and queues outlive connections; a session never sees a clock, a
socket or a source of randomness of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from random import Random

import msgspec

from client_sdk.errors import ClientStopped, SubscribeError
from client_sdk.items import Item
from client_sdk.publishing import Publisher, Publishing
from client_sdk.subscriptions import Subscriptions
from client_sdk.trace import ClientTrace
from migratory.wire import client as wire
from migratory.wire.codes import Code, Duty
from migratory.wire.ids import Position

AGENT = "migratory-python/0.1.0"
PROBE_SHARE = 0.2  # of the answer timeout, after which a silent server is asked for a sign of life


class SessionConfig(msgspec.Struct, frozen=True, kw_only=True):
    """What a user may choose. Times are seconds."""

    token: str = ""
    client: str = ""
    window: int = 1000  # messages published and not yet answered
    publish_deadline: float = 120.0
    keepalive: float = 10.0  # until the server names its own
    answer_timeout: float = 5.0  # silence of a server that owes an answer; it is probed before


class Leave(msgspec.Struct, frozen=True):
    """Why this connection is to be closed, when, and where to go."""

    reason: str
    at: float
    blame: bool  # whether the server should be left out for a while
    servers: list[str] = []


class Session:
    """One client: its topics, its messages and its present connection."""

    def __init__(self, config: SessionConfig, fresh_pid: Callable[[], str], random: Random) -> None:
        self._config = config
        self._random = random
        self._subscriptions = Subscriptions(random)
        self._publisher = Publisher(
            fresh_pid, random, window=config.window, deadline=config.publish_deadline
        )
        self._control: list[wire.ClientMessage] = []
        self._ids = 0
        self._open = False
        self._keepalive = config.keepalive
        self._heard = self._said = 0.0
        self._asked: float | None = None  # when it was first asked something since it was heard
        self._probed = False  # whether it was asked for a sign of life since it was heard
        self._error: wire.Error | None = None
        self.welcome: wire.Welcome | None = None
        self.leave: Leave | None = None
        self.stopped: ClientStopped | None = None
        self._trace: ClientTrace | None = None

    def trace_to(self, trace: ClientTrace) -> None:
        """Tell a trace of everything from now on."""
        self._trace = self._subscriptions.trace = self._publisher.trace = trace

    def __repr__(self) -> str:
        contact = self.welcome.member if self.welcome else "nobody"
        return f"<Session with {contact}: {self._subscriptions!r} {self._publisher!r}>"

    # ---- the user's wishes ---------------------------------------------------------------------

    def subscribe(self, requests: Iterable[wire.TopicRequest]) -> None:
        """Subscribe topics; AlreadySubscribed when one of them is there already."""
        self._subscriptions.add(requests)

    def unsubscribe(self, topics: Iterable[str]) -> None:
        """Give topics up."""
        self._subscriptions.remove(topics)

    def pause(self, topics: Iterable[str]) -> None:
        """Take nothing of these topics for now, since their reader is behind."""
        self._subscriptions.pause(topics)

    def resume(self, topics: Iterable[str]) -> None:
        """Go on with paused topics exactly where they were."""
        self._subscriptions.resume(topics)

    def position(self, topic: str) -> Position | None:
        """The position of the last message of a topic that was handed on."""
        return self._subscriptions.position(topic)

    def publish(
        self, topic: str, data: str | bytes, now: float, *, acknowledge: bool = True
    ) -> Publishing:
        """Queue a message; NotPublished at once when it can never be accepted."""
        return self._publisher.publish(topic, data, now, acknowledge=acknowledge)

    def withdraw(self, message: Publishing) -> bool:
        """Take back a message that was never sent."""
        return self._publisher.withdraw(message)

    @property
    def pending(self) -> int:
        """How many published messages have no outcome yet."""
        return self._publisher.pending

    # ---- the connection ------------------------------------------------------------------------

    def opened(self, now: float) -> None:
        """A connection is there: greet, ask for all topics without waiting (PROTOCOL 3.1)."""
        self._open = True
        self._said = now
        self._hear(now)
        self._keepalive = self._config.keepalive
        config = self._config
        greeting = wire.Connect(wire.PROTOCOL, config.token, config.client, AGENT)
        self._control = [greeting]

    def closed(self, code: int, reason: str, now: float) -> Leave:
        """The connection is gone. Says where to go next, or sets `stopped` (PROTOCOL 9.1)."""
        leave, self.leave = self.leave, None
        error, self._error = self._error, None
        self._open = False
        self.welcome = None
        self._control = []
        if self._trace is not None:
            self._trace.closed((leave.reason if leave else reason) or str(code))
        self._subscriptions.closed()
        self._publisher.closed()
        duty = Duty.of(code)
        if duty is Duty.STOP:
            known = Code.numbered(code)
            name = known.name if known else str(code)
            told = error.message if error else (known.sentence if known else reason)
            self.stop(ClientStopped(name, told))
        if leave is not None:
            return leave
        return Leave(reason or str(code), now, blame=duty is not Duty.RETRY)

    def stop(self, error: ClientStopped) -> None:
        """End the session: nothing that is pending can succeed any more."""
        self.stopped = error
        self._publisher.fail_all(error.code, error.message)

    def fail_pending(self, code: str, told: str) -> None:
        """Give up all messages, since the user closes the client."""
        self._publisher.fail_all(code, told)

    def expire(self, now: float) -> None:
        """Give up messages that are past their deadline; to be called without a connection too."""
        self._publisher.expire(now)

    def collect(self, now: float) -> list[wire.ClientMessage]:
        """The frames to send now, in this order."""
        self.expire(now)
        if not self._open:
            return []
        frames, self._control = self._control, []
        limits = self.welcome.limits if self.welcome else wire.Limits()
        frames += self._subscriptions.collect(now, limits.topics_per_frame, self._next_id)
        if self.welcome is not None:  # before, the limits of this contact are not known
            frames += self._publisher.collect(now, self._next_id)
        if not frames and now >= self._said + self._keepalive:  # PROTOCOL 7.1
            frames.append(wire.Ping())
        if self._asked is None and any(not isinstance(frame, wire.Pong) for frame in frames):
            self._asked = now
        if self._owed and not self._probed and now >= self._probe_at:  # PROTOCOL 7.3
            frames.append(wire.Ping())
            self._probed = True
        if frames:
            self._said = now
        if now >= self._lost_at:
            self._depart("nothing was heard from the server", now, blame=True)
        return frames

    @property
    def _owed(self) -> bool:
        """Whether the server should say something soon."""
        return self._asked is not None or self._publisher.under_way

    @property
    def _silent_since(self) -> float:
        return self._heard if self._asked is None else self._asked

    @property
    def _probe_at(self) -> float:
        return self._silent_since + self._config.answer_timeout * PROBE_SHARE

    @property
    def _lost_at(self) -> float:
        """When the silence of the server has lasted too long (PROTOCOL 7.2, 7.3)."""
        lost = self._heard + 2 * self._keepalive
        if self._owed:
            lost = min(lost, self._silent_since + self._config.answer_timeout)
        return lost

    def next_wake(self) -> float | None:
        """When `collect` must be called though nothing has happened."""
        # What is to be sent again waits for the WELCOME: a time that has passed would spin.
        times = [self._publisher.next_wake(sending=self.welcome is not None)]
        if self._open:
            times.append(self._subscriptions.next_wake())
            times.append(self._said + self._keepalive)
            times.append(self._lost_at)
            if self._owed and not self._probed:
                times.append(self._probe_at)
        if self.leave is not None:
            times.append(self.leave.at)
        return min((time for time in times if time is not None), default=None)

    # ---- what the server says ------------------------------------------------------------------

    def received(self, message: wire.ServerMessage, now: float) -> None:
        """Take one message of the server."""
        self._hear(now)
        match message:
            case wire.Messages():
                self._subscriptions.messages(message)
            case wire.Ack(results):
                self._publisher.acked(results)
            case wire.Nack(results):
                self._publisher.nacked(results, now)
            case wire.Subscribed():
                self._subscriptions.subscribed(message, now)
            case wire.Gap():
                self._subscriptions.gap(message)
            case wire.Reset():
                self._subscriptions.reset(message)
            case wire.Denied():
                self._subscriptions.denied(message, now)
            case wire.Ping(n):
                self._control.append(wire.Pong(n))
            case wire.Welcome():
                self.welcome = message
                if self._trace is not None:
                    self._trace.welcomed(message.member)
                self._keepalive = max(message.keepalive_ms, 50) / 1000
                self._publisher.welcomed(message.limits, message.dedup_ttl_ms / 1000)
            case wire.Goaway():
                # PROTOCOL 8.2: the random moment keeps a herd from moving in step.
                at = now + self._random.uniform(0, message.after_ms / 1000)
                self._depart(message.code, at, blame=True, servers=message.servers)
            case wire.Error():
                self._error = message
            case _:  # PONG and UNSUBSCRIBED: that they came is all they say
                pass
        self._judge(now)

    def take_items(self) -> list[tuple[str, list[Item]]]:
        """What to hand to the readers of topics, in order."""
        items, self._subscriptions.items = self._subscriptions.items, []
        return items

    def take_failures(self) -> list[tuple[str, SubscribeError]]:
        """Topics that are no longer subscribed, and why."""
        failures, self._subscriptions.failures = self._subscriptions.failures, []
        return failures

    def take_settled(self) -> list[Publishing]:
        """Messages whose outcome is known since the last call."""
        settled, self._publisher.settled = self._publisher.settled, []
        return settled

    # ---- parts ---------------------------------------------------------------------------------

    def _hear(self, now: float) -> None:
        self._heard = now
        self._asked = None
        self._probed = False

    def _judge(self, now: float) -> None:
        code = self._subscriptions.leave or self._publisher.leave
        if self._subscriptions.fault:
            # PROTOCOL 10.1: what comes on this connection cannot be trusted; resume elsewhere.
            self._depart(f"broken delivery: {self._subscriptions.fault}", now, blame=True)
        elif code is not None:
            self._depart(code.name, now, blame=True)

    def _depart(
        self, reason: str, at: float, *, blame: bool, servers: list[str] | None = None
    ) -> None:
        if self.leave is None or at < self.leave.at:
            self.leave = Leave(reason, at, blame, servers or [])

    def _next_id(self) -> int:
        self._ids += 1
        return self._ids
