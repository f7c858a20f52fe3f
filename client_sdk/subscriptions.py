"""The subscriber's half of a session: one position per topic, and what is asked on a connection.

A topic is in one of four states; the table is the whole life of a subscription:

    WANTED   not asked for on this connection, or to be asked again   -> ASKED by collect()
    ASKED    a SUBSCRIBE is under way                                 -> LIVE by its outcome
    LIVE     messages are taken                                       -> WANTED by a lost connection
    PAUSED   its reader is behind: nothing is asked, nothing taken    -> WANTED by resume()

Invariants: `position` is that of the last message handed on, so what is dropped (duplicates, and
whatever comes while a topic is not LIVE) is never lost; a sequence that does not fit is never
handed on (PROTOCOL 10.1). Pure: time and randomness are given.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from enum import Enum
from random import Random
from typing import TYPE_CHECKING, Final, TypeVar

from client_sdk.errors import AlreadySubscribed, SubscribeError, SubscriptionDenied
from client_sdk.items import Gap, Item, Message, Reset, Resumed, Subscribed
from migratory.wire import client as wire
from migratory.wire.codes import Code, Duty
from migratory.wire.ids import Position

if TYPE_CHECKING:
    from client_sdk.trace import ClientTrace

T = TypeVar("T")

RETRY_BASE: Final = 0.1
RETRY_MAX: Final = 5.0


class State(Enum):
    """Where a topic is in its life on the present connection."""

    WANTED = "wanted"
    ASKED = "asked"
    LIVE = "live"
    PAUSED = "paused"


class _Topic:
    __slots__ = ("ask", "depth", "failures", "name", "position", "quiet", "state")

    def __init__(self, name: str, position: Position | None, depth: int) -> None:
        self.name = name
        self.position = position
        self.depth = depth
        self.state = State.WANTED
        self.ask = -1  # the id of the SUBSCRIBE that counts; outcomes of older ones are void
        self.failures = 0
        self.quiet = False  # the next RESUMED follows a pause of our own: not worth a word


class Subscriptions:
    """All topics of one client."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._topics: dict[str, _Topic] = {}
        self._wanted: dict[str, _Topic] = {}  # to be asked at once
        self._later: list[tuple[float, int, str]] = []  # to be asked at a time
        self._dropped: dict[str, None] = {}  # to be unsubscribed
        self._count = 0
        self.items: list[tuple[str, list[Item]]] = []
        self.failures: list[tuple[str, SubscribeError]] = []
        self.fault = ""  # why the connection cannot be trusted any more
        self.leave: Code | None = None  # another server must be found
        self.trace: ClientTrace | None = None

    def __repr__(self) -> str:
        live = sum(topic.state is State.LIVE for topic in self._topics.values())
        return f"<Subscriptions {live}/{len(self._topics)} live>"

    # ---- the user's wishes ---------------------------------------------------------------------

    def add(self, requests: Iterable[wire.TopicRequest]) -> None:
        """Subscribe topics; all of them or, when one is there already, none."""
        added = [_Topic(r.topic, r.position, r.depth) for r in requests]
        for topic in added:
            if topic.name in self._topics:
                raise AlreadySubscribed(topic.name)
        for topic in added:
            self._topics[topic.name] = self._wanted[topic.name] = topic
            if self.trace is not None:
                self.trace.subscribed(topic.name, topic.position)

    def remove(self, names: Iterable[str]) -> None:
        """Give topics up."""
        for name in names:
            topic = self._topics.pop(name, None)
            if self.trace is not None:
                self.trace.unsubscribed(name, topic.position if topic else None)
            if topic is not None:
                self._silence(topic)

    def pause(self, names: Iterable[str]) -> None:
        """Take nothing of these topics until `resume`, then go on where they are now."""
        for name in names:
            topic = self._topics.get(name)
            if topic is not None:
                self._silence(topic)
                topic.state = State.PAUSED

    def resume(self, names: Iterable[str]) -> None:
        """Go on with paused topics."""
        for name in names:
            topic = self._topics.get(name)
            if topic is not None and topic.state is State.PAUSED:
                topic.quiet = topic.position is not None
                self._want(topic)

    def position(self, name: str) -> Position | None:
        """Where a topic is: after this position nothing was handed on."""
        topic = self._topics.get(name)
        return None if topic is None else topic.position

    # ---- the connection ------------------------------------------------------------------------

    def closed(self) -> None:
        """The connection is gone, and all its subscriptions with it."""
        self._dropped.clear()
        self._later.clear()
        self.fault = ""
        self.leave = None
        for topic in self._topics.values():
            if topic.state is not State.PAUSED:
                self._want(topic)

    def collect(
        self, now: float, batch: int, next_id: Callable[[], int]
    ) -> list[wire.ClientMessage]:
        """The frames to send now."""
        frames: list[wire.ClientMessage] = []
        if self._dropped:
            # Before any SUBSCRIBE: a topic may be given up and wanted again in one turn.
            names, self._dropped = list(self._dropped), {}
            frames += [wire.Unsubscribe(next_id(), part) for part in _parts(names, batch)]
        while self._later and self._later[0][0] <= now:
            topic = self._topics.get(heapq.heappop(self._later)[2])
            if topic is not None and topic.state is State.WANTED:
                self._wanted[topic.name] = topic
        if self._wanted:
            topics, self._wanted = list(self._wanted.values()), {}
            for part in _parts(topics, batch):
                ask = next_id()
                for topic in part:
                    topic.state, topic.ask = State.ASKED, ask
                asked = [wire.TopicRequest(t.name, t.position, t.depth) for t in part]
                frames.append(wire.Subscribe(ask, asked))
        return frames

    def next_wake(self) -> float | None:
        """When collect() has something to send without anything else happening."""
        return self._later[0][0] if self._later else None

    # ---- what the server says ------------------------------------------------------------------

    def subscribed(self, answer: wire.Subscribed, now: float) -> None:
        """Take the outcomes of topics that still wait for them."""
        for outcome in answer.topics:
            topic = self._topics.get(outcome.topic)
            if topic is None or topic.state is not State.ASKED or topic.ask != answer.id:
                continue
            if outcome.outcome == "denied":
                self._deny(topic, outcome.code, outcome.message, outcome.retry_after, now)
            else:
                self._start(topic, outcome)

    def messages(self, frame: wire.Messages) -> None:
        """Hand on what follows the position, drop what does not, and notice what cannot be."""
        topic = self._live(frame.topic)
        if topic is None or topic.position is None:
            return
        name, position = topic.name, topic.position
        epoch, sequence = position.epoch, position.sequence
        items: list[Item] = []
        for m in frame.messages:
            if m.sequence <= sequence:
                continue
            # PROTOCOL 5.2
            if (m.sequence != sequence + 1 and not m.first) or m.epoch < epoch:
                self.fault = f"{m.epoch}:{m.sequence} of {name} came after {epoch}:{sequence}"
                break
            epoch, sequence = m.epoch, m.sequence
            position = Position(epoch, sequence)
            items.append(Message(name, m.data, position, m.ts, m.first))
        if items:
            topic.position = position
            self.items.append((name, items))
            if self.trace is not None:
                self.trace.delivered(name, items)

    def gap(self, frame: wire.Gap) -> None:
        """Messages of a live topic are lost for this client."""
        topic = self._live(frame.topic)
        if topic is not None:
            self._gap(topic, frame.position, frame.asked, frame.first, frame.last)

    def reset(self, frame: wire.Reset) -> None:
        """A live topic has another history."""
        topic = self._live(frame.topic)
        if topic is not None:
            topic.position = frame.position
            self._emit(topic, Reset(topic.name, frame.position, frame.reason))

    def denied(self, frame: wire.Denied, now: float) -> None:
        """The server has ended a subscription."""
        topic = self._live(frame.topic)
        if topic is not None:
            self._deny(topic, frame.code, frame.message, frame.retry_after, now)

    # ---- parts ---------------------------------------------------------------------------------

    def _live(self, name: str) -> _Topic | None:
        topic = self._topics.get(name)
        return topic if topic is not None and topic.state is State.LIVE else None

    def _want(self, topic: _Topic) -> None:
        topic.state = State.WANTED
        self._wanted[topic.name] = topic

    def _silence(self, topic: _Topic) -> None:
        self._wanted.pop(topic.name, None)
        if topic.state in (State.ASKED, State.LIVE):
            self._dropped[topic.name] = None

    def _emit(self, topic: _Topic, item: Item, *, quiet: bool = False) -> None:
        if self.trace is not None:
            self.trace.told(item)
        if not quiet:
            self.items.append((topic.name, [item]))

    def _start(self, topic: _Topic, outcome: wire.Outcome) -> None:
        position, kind = outcome.position, outcome.outcome
        if position is None or (kind == "fresh") != (topic.position is None):
            self.fault = f"the outcome {kind} of {topic.name} does not answer what was asked"
            return
        topic.state = State.LIVE
        topic.failures = 0
        quiet, topic.quiet = topic.quiet, False
        if kind == "fresh":
            topic.position = position
            self._emit(topic, Subscribed(topic.name, position))
        elif kind == "resumed":
            assert topic.position is not None
            resumed = Resumed(topic.name, topic.position, outcome.missed)
            self._emit(topic, resumed, quiet=quiet)
        elif kind == "gap":
            self._gap(topic, position, outcome.asked, outcome.first, outcome.last)
        else:
            topic.position = position
            self._emit(topic, Reset(topic.name, position, outcome.reason))

    def _gap(self, topic: _Topic, position: Position, asked: int, first: int, last: int) -> None:
        if topic.position is not None and position.sequence < topic.position.sequence:
            self.fault = f"a gap of {topic.name} ends before the position {topic.position}"
            return
        topic.position = position
        self._emit(topic, Gap(topic.name, position, asked, first, last))

    def _deny(self, topic: _Topic, name: str, message: str, retry_after: int, now: float) -> None:
        code = Code.named(name)
        duty = Duty.STOP if code is None else code.duty
        if self.trace is not None:
            self.trace.denied(topic.name, topic.position, name)
        if duty is Duty.STOP:
            del self._topics[topic.name]
            told = message or (code.sentence if code else "the server refuses the topic")
            error = SubscriptionDenied(topic.name, name, told, "correct it, or ask for the right")
            self.failures.append((topic.name, error))
            return
        topic.state = State.WANTED
        bound = min(RETRY_MAX, RETRY_BASE * 2 ** min(topic.failures, 10))
        topic.failures += 1
        self._count += 1
        at = now + max(retry_after / 1000, self._random.uniform(bound / 2, bound))
        heapq.heappush(self._later, (at, self._count, topic.name))
        if duty is Duty.ELSEWHERE:
            self.leave = code


def _parts(items: list[T], size: int) -> list[list[T]]:
    return [items[i : i + size] for i in range(0, len(items), size)]
