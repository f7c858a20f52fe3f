"""A front: one connection plane, the sessions of its clients, and one FIFO to its engine.

A turn is: `read` (sockets to `to_engine`), a step of the engine, `handle` for each of its
messages, `flush` (output to sockets). `run` makes turns by itself and calls `wake` when there is
something for the engine; `wake` may only take note, or may step the engine and hand its messages
to `handle` at once. A driver that has a loop of its own calls `read`, `flush` and `tick` itself
and waits for `fileno()`. After `handle` it looks at `to_engine` again: pages lead to requests.
`take`, `put` and `clients` are the same border for an engine that works on batches.

Neither tasks nor threads per client or message. Everything here is synchronous except `run`.
"""

from __future__ import annotations

import logging
import socket
from collections import Counter, deque
from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

import trio

from migratory.front.connection import CLOSING, CONNECTED, HANDSHAKE, OPENED, Connection
from migratory.front.frames import (
    CLOSE,
    PING,
    PONG,
    checked_text,
    close_frame,
    close_number,
    frame,
    parse,
)
from migratory.front.handshake import Accepted, OriginCheck, Refused, Upgrade, refuse
from migratory.front.limits import FrontLimits
from migratory.front.plane import TICK_S, Plane
from migratory.front.publishing import Publishing
from migratory.front.subscriptions import Subscriptions
from migratory.front.talk import end, say
from migratory.wire import client as c
from migratory.wire.codes import Code, WireError
from migratory.wire.shard import (
    Answers,
    Closing,
    Live,
    NotServed,
    Page,
    Reattach,
    Serving,
    ToEngine,
    ToFront,
)

_log = logging.getLogger(__name__)


def any_origin(_origin: str | None) -> bool:
    """Allow browsers from everywhere."""
    return True


class Front:
    """The clients of one shard."""

    def __init__(
        self,
        limits: FrontLimits,
        member: str,
        servers: list[c.Server],
        to_engine: deque[ToEngine],
        wake: Callable[[], object],
        origin: OriginCheck = any_origin,
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self._limits, self._member, self._servers = limits, member, servers
        self._to_engine, self._wake, self._waking = to_engine, wake, False
        self._origin = origin
        self._plane = Plane(limits, self, clock)
        self._subscriptions = Subscriptions(self._plane, limits, to_engine)
        self._publishing = Publishing(self._plane, limits, to_engine)
        self._leaving: deque[Connection] = deque()  # told to go away, to be closed
        self._leave_at = 0.0
        self._leave_code = Code.GO_ELSEWHERE
        self.closed: Counter[str] = Counter()  # connections ended, by the name of the reason
        self._requests: dict[type, Callable[[Connection, Any], None]] = {
            c.Publish: self._publishing.publish,
            c.Subscribe: self._subscriptions.subscribe,
            c.Unsubscribe: self._subscriptions.unsubscribe,
            c.Ping: self._ping,
            c.Pong: self._pong,
            c.Connect: self._connect_again,
        }
        self._handlers: dict[type, Callable[[Any], None]] = {
            Live: self._subscriptions.live,
            Page: self._subscriptions.page,
            NotServed: self._subscriptions.not_served,
            Reattach: self._subscriptions.reattach,
            Answers: self._publishing.answers,
            Closing: self._closing,
            Serving: self._serving,
        }

    def __repr__(self) -> str:
        counts = self.counts()
        return f"<Front {self._member} {' '.join(f'{k}={v}' for k, v in counts.items())}>"

    def counts(self) -> dict[str, int]:
        """Figures for metrics and for people."""
        return {
            "clients": len(self._plane),
            "topics": len(self._subscriptions),
            "waiting": len(self._publishing),
            "accepted": self._plane.accepted,
            "received": self._publishing.received,
            "delivered": self._subscriptions.delivered,
        }

    # ---- the loop ------------------------------------------------------------------------------

    async def run(self, listener: socket.socket) -> None:
        """Serve a bound socket until cancelled; it listens from Serving(True) on."""
        self.open(listener)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._tick_forever)
                while True:
                    if self._plane.busy:
                        await trio.lowlevel.checkpoint()
                    else:
                        await trio.lowlevel.wait_readable(self._plane.fileno())
                    self.read()
                    self.notify()
                    self.flush()
        finally:
            self.close()

    async def _tick_forever(self) -> None:
        while True:
            await trio.sleep(TICK_S)
            self.tick()
            self.notify()
            self.flush()

    def open(self, listener: socket.socket) -> None:
        """Adopt the bound socket on which clients will come."""
        self._plane.bind(listener)

    def fileno(self) -> int:
        """Readable when `read` has something to do."""
        return self._plane.fileno()

    @property
    def busy(self) -> bool:
        """Whether there is output or input that does not wait for a socket."""
        return self._plane.busy

    def read(self) -> None:
        """Serve ready sockets, a bounded number; what they lead to is in `to_engine`."""
        self._plane.read()
        self._publishing.hand_over()

    def tick(self) -> None:
        """Look at the clocks; to be called about every TICK_S."""
        self._plane.tick()
        self._say_goodbyes()

    def handle(self, message: ToFront) -> None:
        """Take a message of the engine; output leaves with `flush`."""
        self._handlers[type(message)](message)

    def flush(self) -> None:
        """Send what the messages handled led to; a part of it, if `busy` is true afterwards."""
        self._subscriptions.flush()
        self._publishing.flush()
        self._plane.flush()
        self.notify()

    def take(self) -> list[ToEngine]:
        """What the front wants from the engine, in order."""
        wanted = list(self._to_engine)
        self._to_engine.clear()
        return wanted

    def put(self, messages: Iterable[ToFront]) -> None:
        """Handle these messages of the engine and send what they lead to."""
        for message in messages:
            self.handle(message)
        self.flush()

    def clients(self) -> int:
        """How many connections there are, in whatever state."""
        return len(self._plane)

    def notify(self) -> None:
        """Wake the engine if there is something for it, unless it is the one that is calling."""
        if self._to_engine and not self._waking:
            self._waking = True
            try:
                self._wake()
            finally:
                self._waking = False

    def close(self) -> None:
        """Close all sockets at once."""
        self._plane.close()

    # ---- bytes of clients (Sessions) -----------------------------------------------------------

    def received(self, conn: Connection, data: bytes) -> None:
        """Bytes of a client; they may be none when a stopped connection goes on."""
        if conn.state == HANDSHAKE:
            rest = self._handshake(conn, data)
            if not rest:
                return
            data = rest
        tail = conn.tail
        if tail is not None:
            tail += data
            if len(tail) < conn.need:
                return
            data, conn.tail = bytes(tail), None
        try:
            parse(conn, data, self, self._limits.fragments)
        except WireError as error:
            self._end(conn, error.code, error.detail)

    def _handshake(self, conn: Connection, data: bytes) -> bytes:
        upgrade = conn.upgrade
        if upgrade is None:
            upgrade = conn.upgrade = Upgrade()
        answer = upgrade.feed(data, self._limits.stranger_bytes, self._origin)
        if answer is None:
            return b""
        conn.upgrade = None
        if len(self._plane) > self._limits.clients:
            status = HTTPStatus.SERVICE_UNAVAILABLE
            answer = refuse(status, Code.TOO_MANY_CLIENTS.sentence, "Retry-After: 1")
        if isinstance(answer, Refused):
            self.closed["HTTP"] += 1
            self._plane.finish(conn, answer.response)
            return b""
        return self._opened(conn, answer)

    def _opened(self, conn: Connection, answer: Accepted) -> bytes:
        conn.codec = answer.codec
        conn.whole = 0x81 if answer.codec.text else 0x82
        conn.limit = self._limits.stranger_bytes
        conn.state, conn.since = OPENED, self._plane.now
        self._plane.push(conn, answer.response)
        self._plane.schedule(conn, conn.since + self._limits.connect_s)
        return answer.rest

    def message(self, conn: Connection, payload: bytes) -> None:
        """A whole message of a client."""
        if conn.state >= CLOSING:
            return
        if conn.codec.text:
            checked_text(payload)
        request = conn.codec.decode(payload)
        if conn.state == CONNECTED:
            self._requests[type(request)](conn, request)
        elif isinstance(request, c.Connect):
            self._connect(conn, request)
        else:
            raise WireError(Code.NOT_CONNECTED, Code.NOT_CONNECTED.sentence)

    def control(self, conn: Connection, opcode: int, payload: bytes) -> None:
        """A control frame of WebSocket (PROTOCOL 1.3)."""
        if opcode == PING:
            self._plane.push(conn, frame(PONG, payload))
        elif opcode == CLOSE and conn.state < CLOSING:
            number = close_number(payload)
            self.closed["client"] += 1
            self._plane.finish(conn, close_frame(1000 if number == 1005 else number, ""))

    def faulted(self, conn: Connection) -> None:
        """A fault of our own."""
        self._end(conn, Code.INTERNAL_ERROR)

    def overflow(self, conn: Connection) -> None:
        """A client reads too slowly (PROTOCOL 5.6)."""
        self._end(conn, Code.SLOW_CONSUMER)

    def drained(self, conn: Connection) -> None:
        """There is room for pages again."""
        self._subscriptions.ask(conn)

    def left(self, conn: Connection) -> None:
        """A connection ends."""
        self._subscriptions.leave(conn)

    def due(self, conn: Connection, now: float) -> float | None:
        """The clocks of a connection: handshake, CONNECT, keepalive, close."""
        if conn.state == CONNECTED:
            return self._keepalive(conn, now)
        wait = {
            HANDSHAKE: self._limits.handshake_s,
            OPENED: self._limits.connect_s,
            CLOSING: self._limits.close_s,
        }[conn.state]
        if now < conn.since + wait:
            return conn.since + wait
        if conn.state == HANDSHAKE:
            late = refuse(HTTPStatus.REQUEST_TIMEOUT, "The request took too long.")
            self.closed["HTTP"] += 1
            self._plane.finish(conn, late.response)
        elif conn.state == OPENED:
            self._end(conn, Code.CONNECT_TIMEOUT)
        else:
            self._plane.drop(conn)
        return None

    def _keepalive(self, conn: Connection, now: float) -> float | None:
        period = self._limits.keepalive_s
        if conn.stopped:
            conn.heard = now  # it is not its silence that nothing is read from it
        if now >= conn.heard + 2 * period:  # PROTOCOL 7.2
            self._end(conn, Code.KEEPALIVE_TIMEOUT)
            return None
        if now >= conn.spoke + period:  # PROTOCOL 7.1
            conn.spoke = now
            say(self._plane, conn, c.Ping())
        return min(conn.heard + 2 * period, conn.spoke + period)

    def _end(self, conn: Connection, code: Code, detail: str = "") -> None:
        if conn.state < CLOSING:
            self.closed[code.name] += 1
            end(self._plane, conn, code, detail)

    # ---- requests of clients -------------------------------------------------------------------

    def _connect(self, conn: Connection, _request: c.Connect) -> None:
        conn.state, conn.since = CONNECTED, self._plane.now
        conn.limit = self._limits.client.frame_bytes
        welcome = c.Welcome(
            protocol=c.PROTOCOL,
            member=self._member,
            keepalive_ms=int(self._limits.keepalive_s * 1000),
            limits=self._limits.client,
            servers=self._servers,
            dedup_ttl_ms=self._limits.dedup_ttl_ms,
        )
        say(self._plane, conn, welcome)
        self._plane.schedule(conn, conn.since + self._limits.keepalive_s)

    def _connect_again(self, _conn: Connection, _request: c.Connect) -> None:
        raise WireError(Code.ALREADY_CONNECTED, Code.ALREADY_CONNECTED.sentence)

    def _ping(self, conn: Connection, request: c.Ping) -> None:
        say(self._plane, conn, c.Pong(request.n))

    def _pong(self, _conn: Connection, _request: c.Pong) -> None:
        """It was heard, which is all that it is for."""

    # ---- orders of the engine ------------------------------------------------------------------

    def _serving(self, message: Serving) -> None:
        self._plane.listen(message.ready)

    def _closing(self, message: Closing) -> None:
        """GOAWAY to all; who is still there after the time is closed, some at a time."""
        self._plane.listen(False)
        self._leave_code = Code.named(message.code) or Code.GO_ELSEWHERE
        goaway = c.Goaway(
            self._leave_code.name, message.servers, message.after_ms, self._leave_code.sentence
        )
        self._leaving = deque(self._plane.connections())
        self._leave_at = self._plane.now + message.after_ms / 1000
        for conn in list(self._leaving):
            if conn.state == CONNECTED:
                say(self._plane, conn, goaway)
        self._say_goodbyes()

    def _say_goodbyes(self) -> None:
        if not self._leaving or self._plane.now < self._leave_at:
            return
        for _ in range(min(len(self._leaving), self._limits.goodbyes_per_tick)):
            self._end(self._leaving.popleft(), self._leave_code)
