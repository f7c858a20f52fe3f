"""What members say to each other.

A frame is a MessagePack array of these messages. The link it travels on is bound to the boots of
both ends by its Hello, so no message repeats them: a receiver always knows which life of which
member speaks, and a message for an earlier life of the receiver cannot arrive.

Every message about a group carries the sender's `floor` of that group: a lower one than the
receiver's is answered by Nack, a higher one makes the receiver drop the group and recover.
"""

from __future__ import annotations

import msgspec

from migratory.wire.entry import Entry
from migratory.wire.ids import Boot, Position

PEER_PROTOCOL = 1


class Hello(msgspec.Struct, frozen=True, array_like=True, tag=0):
    """The first frame in both directions of a link; both sides check everything in it."""

    protocol: int
    cluster: str
    config: str  # hash of the membership and of everything that must be equal on all members
    member: str
    boot: Boot
    channel: str  # "data" or "control"
    link: int = 0  # the dialer's number of the link: both connections of a link have the same


class Goodbye(msgspec.Struct, frozen=True, array_like=True, tag=1):
    """The last frame of a link: why it is closed (a named error code) and what that means."""

    code: str
    detail: str


class _Peer(msgspec.Struct, frozen=True, array_like=True, gc=False):
    pass


class _Group(msgspec.Struct, frozen=True, array_like=True):
    g: int
    floor: int


class Heartbeat(_Peer, frozen=True, tag=2):
    """A sign of life with everything that others need to know of the sender."""

    leads: list[tuple[int, int, int]]  # (group, epoch, floor) coordinated by the sender
    commits: list[int]  # commit index of every group; -1 while RECOVERING
    reaches: list[str]  # members the sender hears
    suspects: list[str]  # members the sender suspects
    draining: bool
    knows: list[
        tuple[int, int, int]
    ] = []  # (group, epoch, member by rank of id) of others it hears
    leaving: bool = False  # it drains, and it is its turn
    wants: list[int] = []  # groups in which publications wait there for a coordinator
    keeper: bool = False  # ZooKeeper answered it lately


class Preq(_Group, frozen=True, tag=3):
    """Promise request of the winner of an election."""

    epoch: int


class Prom(_Group, frozen=True, tag=4):
    """A promise, with what the promiser holds; only those of NORMAL members are counted."""

    epoch: int
    normal: bool
    base: int
    last_epoch: int
    last: int
    commit: int


class Nack(_Group, frozen=True, tag=5):
    """The fence: the sender has promised a higher epoch (or knows a higher floor)."""

    promised: int


class App(_Group, frozen=True, tag=6):
    """Entries of the log after (prev, prev_epoch), and how far the coordinator has committed."""

    epoch: int
    prev: int
    prev_epoch: int
    commit: int
    entries: list[Entry]


class Ack(_Group, frozen=True, tag=7):
    """Everything up to `idx` is stored and equals the coordinator's log."""

    epoch: int
    idx: int


class Commit(_Group, frozen=True, tag=8):
    """How far the coordinator has committed, when no App is due."""

    epoch: int
    idx: int


class Hint(_Group, frozen=True, tag=9):
    """An App did not fit: send from after this commit index."""

    epoch: int
    commit: int


class Fetch(_Group, frozen=True, tag=10):
    """A candidate asks the best promiser for its entries after `after`."""

    epoch: int
    after: int


class Fetched(_Group, frozen=True, tag=11):
    """Entries after `after` of the promiser's log, as it was promised."""

    epoch: int
    after: int
    entries: list[Entry]


class SyncReq(_Group, frozen=True, tag=12):
    """A RECOVERING (or hopelessly late) member asks the coordinator for the group's state."""

    promised: int


class SyncHead(_Group, frozen=True, tag=13):
    """A transfer begins: the stream starts after `base`; chunks are pulled."""

    epoch: int
    transfer: int
    base: int
    base_epoch: int
    gt: int  # group time applied at `base`


class SyncPull(_Group, frozen=True, tag=14):
    """Asks for chunk number `n` of a transfer."""

    epoch: int
    transfer: int
    n: int


class Publisher(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """What is remembered of the last message of one publisher on one topic."""

    pid: str
    pseq: int
    idx: int
    epoch: int
    seq: int
    crc: int
    gt: int


class TopicState(msgspec.Struct, frozen=True, array_like=True):
    """A topic as it is at the moment it is sent: head, history and publishers."""

    topic: str
    idx: int  # of its last entry: replay skips what is not later
    epoch: int
    seq: int
    gt: int  # of its last entry
    start: int  # first sequence of this incarnation
    vacant: int  # see cache.state: positions at or above it lost nothing before `start`
    entries: list[Entry]
    publishers: list[Publisher]


class SyncChunk(_Group, frozen=True, tag=15):
    """Topics as they are now. The last chunk says how far the stream must reach."""

    epoch: int
    transfer: int
    n: int
    topics: list[TopicState]
    last: bool
    target: int = 0  # last index of the coordinator's log when the last chunk was made
    commit: int = 0  # its commit index then
    vacant: int = 0  # last index at which a topic was forgotten


class CatchReq(_Group, frozen=True, tag=16):
    """A NORMAL member that is behind and not served asks any NORMAL peer."""

    after: int


class Catch(_Group, frozen=True, tag=17):
    """Committed entries after `after`."""

    after: int
    after_epoch: int
    entries: list[Entry]


class Invite(_Group, frozen=True, tag=18):
    """Please stand for this group: the sender hands it over, or you hold more than the sender."""

    epoch: int  # the epoch at the sender, so that a late invitation is recognised


class Publication(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One message on its way from its contact to the coordinator. No pid: not to be answered."""

    topic: str
    payload: bytes
    flags: int = 0
    pid: str = ""
    pseq: int = 0
    ref: int = 0  # the contact's own number for the answer
    rewind: int = 0  # echoed by a refusal, so that one gap is one rewind


class Pub(_Group, frozen=True, tag=19):
    """Publications of one group in the order of their arrival at the contact."""

    contact: str
    items: list[Publication]


class Refusal(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Why a publication was not taken; `expected` and `leader` where they help."""

    ref: int
    code: str
    rewind: int = 0
    expected: int = 0
    leader: str = ""


class Refused(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The coordinator did not append this publication."""

    item: Publication  # without its payload
    code: str
    expected: int = 0


class Settled(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A repeated publication whose first copy is committed already."""

    item: Publication  # without its payload
    position: Position | None  # None when only a later one of the publisher is remembered


class PubResult(_Group, frozen=True, tag=20):
    """The coordinator's answer where it cannot be read off the committed entries themselves."""

    contact: str
    leader: str  # who coordinates, as far as the sender knows
    refused: list[Refused]
    settled: list[Settled]


class BarrierReq(_Group, frozen=True, tag=21):
    """A contact wants to know an index that is behind everything committed until now."""

    contact: str
    ref: int


class Barrier(_Group, frozen=True, tag=22):
    """The index and epoch of the entry that serves as the barrier."""

    contact: str
    ref: int
    epoch: int
    idx: int


class Credit(_Peer, frozen=True, tag=23):
    """How many bytes of the data connection have been processed; for the links themselves."""

    seen: int


PeerMessage = (
    Hello | Goodbye | Heartbeat | Preq | Prom | Nack | App | Ack | Commit | Hint | Fetch | Fetched
    | SyncReq | SyncHead | SyncPull | SyncChunk | CatchReq | Catch | Invite | Pub | PubResult
    | BarrierReq | Barrier | Credit
)  # fmt: skip

# Small and urgent: they travel on the control connection, past any bulk on the data connection.
CONTROL = (Heartbeat, Preq, Prom, Nack, Invite)
