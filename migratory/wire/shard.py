"""What a front (shard) and its engine say to each other over one FIFO, in both directions.

A shard's `sub` is its own number for one topic of one client. The engine keeps no state per `sub`:
it knows which topics a shard is interested in, and answers each Sub and More with one Page or
NotServed. Order on the FIFO is the whole trick: a Page that says `attached` ends at the head, and
every Live of the topic that follows it begins exactly one sequence later.

With `shards = 0` these objects themselves travel through a deque inside one process.
"""

from __future__ import annotations

import msgspec

from migratory.wire.entry import Entry
from migratory.wire.ids import Position
from migratory.wire.peer import Publication, Refusal

PAGE_BYTES = 64 * 1024

# Why a subscription could not go on at its position.
HISTORY_LOST = "history_lost"
DIVERGED = "diverged"
UNKNOWN_POSITION = "unknown_position"


class Fresh(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """A first subscription: it starts at the position of the page."""


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """Nothing is missing; `missed` messages are delivered first."""

    missed: int


class Gap(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Sequences from `asked` are no longer cached: delivery goes on at `first`; `last` is head."""

    asked: int
    first: int
    last: int


class Reset(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The position means nothing here: the subscription starts afresh at the page's position."""

    reason: str


Outcome = Fresh | Resumed | Gap | Reset


# ---- front to engine ---------------------------------------------------------------------------


class Sub(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """Register interest in a topic and answer the first page for one subscription of it."""

    sub: int
    topic: str
    position: Position | None
    depth: int = 0  # messages of history wanted when there is no position


class More(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The next page. The whole position, since the state may have been replaced in between."""

    sub: int
    topic: str
    after: Position


class Unsub(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """The shard has no live or catching-up subscription of the topic left."""

    topic: str


class Pubs(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """All publications of one turn in the order of their arrival; refs are the shard's."""

    items: list[Publication]


# ---- engine to front ---------------------------------------------------------------------------


class Page(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """History for one subscription, whose position before `entries` is (epoch, seq).

    The answer to a Sub always has an outcome; the answer to a More only a Gap or a Reset.
    """

    sub: int
    topic: str
    outcome: Outcome | None
    epoch: int
    seq: int
    entries: list[Entry]
    attached: bool


class NotServed(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The subscription cannot be served here now, with the name of a close or error code."""

    sub: int
    topic: str
    code: str


class Live(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Entries of one topic that were just committed, in order."""

    topic: str
    entries: list[Entry]


class Reattach(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """The state of the topic was replaced: ask again for every live subscription of it."""

    topic: str


class PubAck(msgspec.Struct, frozen=True, array_like=True, tag=0, gc=False):
    """The publication is committed, at this position unless only a later one is remembered."""

    ref: int
    position: Position | None
    duplicate: bool = False


class Answers(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Answers to publications, each ref once."""

    items: list[PubAck | Refusal]


class Closing(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Tell all clients to go to these servers after so many milliseconds, then close them."""

    code: str
    servers: list[str]
    after_ms: int


class Serving(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The front listens only while this is true."""

    ready: bool


ToEngine = Sub | More | Unsub | Pubs
ToFront = Page | NotServed | Live | Reattach | Answers | Closing | Serving
