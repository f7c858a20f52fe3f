"""What a subscription yields: messages, and everything that must be known between them."""

from __future__ import annotations

import msgspec

from migratory.wire.ids import Position


class Message(msgspec.Struct, frozen=True, gc=False):
    """One message. Text arrives as str, anything else as bytes."""

    topic: str
    payload: str | bytes
    position: Position
    ts: int  # wall clock of the coordinator in milliseconds, for people
    first: bool = False  # the topic was forgotten and begins anew; nothing was missed


class Subscribed(msgspec.Struct, frozen=True):
    """A subscription without a position begins after this one."""

    topic: str
    position: Position


class Resumed(msgspec.Struct, frozen=True):
    """Delivery goes on after a disconnection; the missed messages follow, and none is lost."""

    topic: str
    position: Position
    missed: int


class Gap(msgspec.Struct, frozen=True):
    """Messages `asked` to `first - 1` are no longer in the history: delivery goes on at first."""

    topic: str
    position: Position
    asked: int
    first: int
    last: int


class Reset(msgspec.Struct, frozen=True):
    """The topic has another history now; delivery goes on after `position`."""

    topic: str
    position: Position
    reason: str


Item = Message | Subscribed | Resumed | Gap | Reset
