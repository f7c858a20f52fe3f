"""A session on a bench: virtual time, seeded chance, and a scripted server."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any, TypeVar

from client_sdk.items import Item
from client_sdk.publishing import Publishing
from client_sdk.session import Leave, Session, SessionConfig
from migratory.wire import client as wire
from migratory.wire.ids import Position

T = TypeVar("T")


def pids() -> Callable[[], str]:
    """Publisher ids that a reader of a failed test can tell apart."""
    numbers = count(1)
    return lambda: f"publisher-{next(numbers):06}"


def welcome(keepalive_ms: int = 10_000, **limits: int) -> wire.Welcome:
    """A WELCOME of member m-1."""
    return wire.Welcome(1, "m-1", keepalive_ms, wire.Limits(**limits), [], 900_000)


class Bench:
    """Drives one session by hand."""

    def __init__(self, **config: Any) -> None:
        self.session = Session(SessionConfig(**config), pids(), Random(1))
        self.now = 1000.0

    def connect(self, **welcoming: int) -> list[wire.ClientMessage]:
        """Open a connection and be welcomed; everything that the session sent for it."""
        self.session.opened(self.now)
        sent = self.send()
        self.hear(welcome(**welcoming))
        return sent + self.send()

    def hear(self, *messages: wire.ServerMessage) -> None:
        """Let the server say this."""
        for message in messages:
            self.session.received(message, self.now)

    def send(self) -> list[wire.ClientMessage]:
        """What the session sends now."""
        return self.session.collect(self.now)

    def sent(self, kind: type[T]) -> list[T]:
        """What the session sends now, which must all be of one kind."""
        frames = self.send()
        assert all(isinstance(frame, kind) for frame in frames), frames
        return frames  # type: ignore[return-value]

    def drop(self, code: int = 1006, reason: str = "") -> Leave:
        """Lose the connection."""
        return self.session.closed(code, reason, self.now)

    def items(self) -> list[Item]:
        """What the readers get, topic by topic in order."""
        return [item for _, items in self.session.take_items() for item in items]

    def subscribe(self, topic: str, at: Position | None = None, depth: int = 0) -> None:
        """Subscribe one topic."""
        self.session.subscribe([wire.TopicRequest(topic, at, depth)])

    def attach(self, topic: str, at: Position) -> None:
        """Subscribe one topic on the open connection, and let it be live after a position."""
        self.subscribe(topic)
        (ask,) = self.sent(wire.Subscribe)
        self.hear(wire.Subscribed(ask.id, [wire.Outcome(topic, "fresh", at)]))
        self.items()

    def publish(self, topic: str, *payloads: str) -> list[Publishing]:
        """Publish some texts."""
        return [self.session.publish(topic, payload, self.now) for payload in payloads]


def messages(topic: str, epoch: int, *sequences: int) -> wire.Messages:
    """A MESSAGES frame whose payloads are their own sequences."""
    return wire.Messages(topic, [wire.Message(epoch, s, 0, str(s)) for s in sequences])


def ack(frame: wire.Publish, *places: tuple[int, int, int]) -> wire.Ack:
    """Acknowledge (index, epoch, sequence) of a frame."""
    return wire.Ack([wire.Acked(frame.id, *place) for place in places])


def nack(frame: wire.Publish, index: int, code: str, **details: Any) -> wire.Nack:
    """Refuse one message of a frame, echoing its rewind."""
    rewind = frame.messages[index].rewind
    return wire.Nack([wire.Nacked(frame.id, index, code, rewind=rewind, **details)])


def numbers(frames: list[wire.Publish]) -> list[tuple[str, int, str]]:
    """The (topic, pseq, text) of all messages in some frames."""
    return [(m.topic, m.pseq, m.data) for frame in frames for m in frame.messages]
