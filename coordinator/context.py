"""What all deciders of one member share: identity, time, what is known of peers, effects so far.

`now` is the member's own monotonic time of the present step; nothing here reads a clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cache.retention import Retention
from coordinator.cluster import Cluster
from coordinator.events import Note, Procedure, Ready, Watch
from coordinator.keeper import Paths
from migratory.wire.ids import NO_BOOT, Boot
from migratory.wire.peer import PeerMessage


class PeerView:
    """What this member knows of another one. Never trusted for safety, except for `boot`."""

    __slots__ = (
        "boot", "commits", "draining", "heard", "keeper", "leads", "leaving", "linked", "member",
        "normal_since", "reaches", "refused", "suspected", "suspects", "wants",
    )  # fmt: skip

    def __init__(self, member: str, now: float) -> None:
        self.member = member
        self.boot: Boot = NO_BOOT  # the latest life known; earlier ones are not listened to
        self.linked = False
        self.refused = False
        self.heard = now
        self.suspected = True  # until it is heard
        self.commits: list[int] = []
        self.leads: dict[int, int] = {}
        self.reaches: frozenset[str] = frozenset()
        self.suspects: frozenset[str] = frozenset()
        self.draining = False
        self.leaving = False
        self.keeper = False  # whether ZooKeeper answers it
        self.wants: frozenset[int] = frozenset()  # groups whose coordinator its clients wait for
        self.normal_since: float | None = None  # NORMAL in all groups since

    @property
    def reached(self) -> bool:
        """Whether it can be talked to now."""
        return self.linked and not self.suspected

    def normal_in(self, g: int) -> bool:
        """Whether it says that it is NORMAL in a group."""
        return g < len(self.commits) and self.commits[g] >= 0

    def recovering_in(self, g: int) -> bool:
        """Whether it says that it is RECOVERING in a group."""
        return g < len(self.commits) and self.commits[g] < 0

    def __repr__(self) -> str:
        state = "reached" if self.reached else "suspected" if self.suspected else "unlinked"
        return f"{self.member}({self.boot}) {state}{' draining' if self.draining else ''}"


class Context:
    """Shared by the member and its replicas."""

    def __init__(
        self,
        cluster: Cluster,
        me: str,
        boot: Boot,
        retention: Retention,
        now: float,
        wall: Callable[[], int],
    ) -> None:
        self.cluster = cluster
        self.me = me
        self.boot = boot
        self.retention = retention
        self.paths = Paths(cluster.name)
        self.now = now
        self.wall = wall
        self.peers = {m: PeerView(m, now) for m in cluster.members if m != me}
        self.ready = new_ready()
        self.waiting_for_peer: dict[str, dict[int, None]] = {m: {} for m in self.peers}
        self.answers: dict[int, Callable[[object], None]] = {}
        self.tail_bytes = 0  # uncommitted, over all groups led here
        self.draining = False
        self.leaving = False  # it is our turn to drain
        self.last_takeover = now
        self.sessions = 1  # how many ZooKeeper has given to this process
        self.watch: Watch | None = None  # the driver's, when it writes a trace
        self._token = 0

    def send(self, peer: str, message: PeerMessage) -> None:
        """Say something to a peer. It is lost when there is no link; everybody lives with that."""
        self.ready.sends.append((peer, message))

    def reached(self) -> Iterator[PeerView]:
        """The peers that can be talked to now."""
        return (peer for peer in self.peers.values() if peer.reached)

    def run(self, procedure: Procedure, then: Callable[[object], None]) -> None:
        """Start a ZooKeeper procedure; `then` gets its value in a later step."""
        self._token += 1
        self.answers[self._token] = then
        self.ready.procedures.append((self._token, procedure))

    def note(self, kind: str, g: int = -1, epoch: int = 0, idx: int = 0, detail: str = "") -> None:
        """Leave a note for logs, metrics and traces."""
        note = Note(kind, g, epoch, idx, detail)
        self.ready.notes.append(note)
        if self.watch is not None:
            self.watch.noted(note)

    def tell_watch(self, kind: str, g: int, epoch: int, idx: int, detail: str = "") -> None:
        """Leave a note for traces only: logs have it from elsewhere, or too often."""
        if self.watch is not None:
            self.watch.noted(Note(kind, g, epoch, idx, detail))

    def hears_quorum(self) -> bool:
        """Whether Q members, this one included, were heard just now (also after a pause)."""
        since = self.now - self.cluster.session / 4
        return 1 + sum(p.heard >= since for p in self.reached()) >= self.cluster.copies

    def suspicion(self, member: str) -> int:
        """How many members, this one included, suspect a member."""
        if member == self.me:
            return 0
        others = sum(member in p.suspects for p in self.reached() if p.member != member)
        return others + (not self.peers[member].reached)


def new_ready() -> Ready:
    """No effects yet."""
    return Ready([], [], [], [], [], [], [])
