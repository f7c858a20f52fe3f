"""What goes into a member's decider and what comes out of it.

The driver calls `Member.step(event, now)` with its own monotonic time in seconds, then
`Member.take_ready()`, and carries the effects out. `Member.collect(peer, room)` gives the entries
that wait for a peer whenever its link has room. Nothing in here performs I/O.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any, Protocol

import msgspec

from coordinator.keeper import KeeperOp
from migratory.wire.entry import Entry
from migratory.wire.ids import Boot
from migratory.wire.peer import PeerMessage, Publication, Refusal
from migratory.wire.shard import PubAck

# ---- events ------------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True):
    """A frame of a peer's link, the link being bound to that boot of the peer."""

    peer: str
    boot: Boot
    messages: list[PeerMessage]


class LinkUp(msgspec.Struct, frozen=True):
    """Both connections to this life of a peer are open. What was on earlier links is lost."""

    peer: str
    boot: Boot


class LinkDown(msgspec.Struct, frozen=True):
    """The link broke. `refused`: a redial was refused at once, so nobody listens there."""

    peer: str
    refused: bool


class Publish(msgspec.Struct, frozen=True):
    """Publications of this member's own clients, in order; each `ref` is answered once."""

    items: list[Publication]


class BarrierWanted(msgspec.Struct, frozen=True):
    """Someone here must know whether this member is up to date in a group."""

    g: int
    ref: int


class KeeperAnswer(msgspec.Struct, frozen=True):
    """A ZooKeeper procedure ended with this value."""

    token: int
    value: Any


class SessionOpened(msgspec.Struct, frozen=True):
    """ZooKeeper gave this member a new session (the ephemeral nodes of the old one are gone)."""


class DrainWanted(msgspec.Struct, frozen=True):
    """Hand everything over and leave; `now`: do not wait for the others to be NORMAL."""

    now: bool = False


class RecoverWanted(msgspec.Struct, frozen=True):
    """The operator accepts the loss of what no reachable member holds.

    Everybody who is registered in ZooKeeper must answer, and T members in all; `without_quorum`
    says that those who are missing then are gone for good.
    """

    groups: list[int]
    without_quorum: bool = False


class Tick(msgspec.Struct, frozen=True):
    """Time has passed; sent at the latest when `Member.next_wake()` says."""


Event = (
    Received | LinkUp | LinkDown | Publish | BarrierWanted | KeeperAnswer | SessionOpened
    | DrainWanted | RecoverWanted | Tick
)  # fmt: skip

# ---- effects -----------------------------------------------------------------------------------

Procedure = Generator[KeeperOp, Any, Any]


class Delivered(msgspec.Struct, frozen=True):
    """Entries committed in a group, in order, the first one at `idx`."""

    g: int
    idx: int
    entries: list[Entry]


class BarrierDone(msgspec.Struct, frozen=True):
    """The barrier was applied here (`ok`), or could not be had within its time."""

    ref: int
    ok: bool


class Note(msgspec.Struct, frozen=True):
    """Something that logs, metrics and traces want to know: elect, open, step_down, normal..."""

    kind: str
    g: int = -1
    epoch: int = 0
    idx: int = 0
    detail: str = ""


class Watch(Protocol):
    """Is told of what happens in the moment when it happens, for traces; it changes nothing.

    Effects lose the order between their lists, and not everything that must be checked later is
    an effect. Without a watch nothing is told and nothing is spent.
    """

    def noted(self, note: Note) -> None:
        """A note for logs too, or for traces only: promised, ack, quorum, told, install, floor."""

    def stored(self, g: int, first: int, entries: Sequence[Entry], *, own: bool) -> None:
        """Entries are put into a log from an index on; `own`: this member stamped them."""

    def applied(self, g: int, first: int, entries: Sequence[Entry]) -> None:
        """Entries from an index on are applied."""


class Ready(msgspec.Struct):
    """Effects of the steps since the last call.

    Order: `installed`, then `delivered` (what was delivered behind a replaced state must not reach
    subscribers that have not been told of it), then `answers` (a publisher that is acknowledged can
    read its message here), everything before `exit`. `sends` keep their order per peer.
    """

    sends: list[tuple[str, PeerMessage]]
    procedures: list[tuple[int, Procedure]]
    delivered: list[Delivered]
    installed: list[int]  # groups whose whole state was replaced: subscribers must be re-attached
    answers: list[PubAck | Refusal]
    barriers: list[BarrierDone]
    notes: list[Note]
    close_clients: str = ""  # a close code's name: clients must go elsewhere now
    drained: bool = False
    exit: str = ""  # a named reason why this process must end
