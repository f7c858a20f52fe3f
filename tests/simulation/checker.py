"""What must never happen, checked after every step of a member.

The checker knows everything that was ever committed anywhere; members do not. Every violation has
a name, so that a mutant is said to be caught by something. What must be at the end of a run is in
`tests.simulation.rest`.
"""

from __future__ import annotations

from typing import Any

from cache.retention import Retention
from coordinator.cluster import Cluster
from coordinator.events import Delivered, Note, Ready
from coordinator.member import Member
from coordinator.replica import Replica
from migratory.wire.entry import MSG, Entry
from migratory.wire.ids import Boot
from migratory.wire.peer import Ack, Prom, Publication
from migratory.wire.shard import PubAck

Place = tuple[int, int]  # (group, floor): one history


class Violation(Exception):  # noqa: N818 (it is found, not made)
    """A promise of the protocol was broken."""

    @property
    def name(self) -> str:
        """The kind of violation."""
        return str(self).split()[0].rstrip(":")


class Committed:
    """Everything committed in one history of a group, by index and by what it says."""

    def __init__(self) -> None:
        self.log: dict[int, Entry] = {}
        self.epochs: dict[int, int] = {}  # under which epoch an index was first committed
        self.places: dict[tuple[str, int], int] = {}  # (topic, seq): idx
        self.heads: dict[str, Entry] = {}
        self.starts: dict[str, int] = {}  # the first sequence of a topic's last incarnation
        self.identities: dict[tuple[str, str, int], int] = {}
        self.publishers: dict[tuple[str, str], int] = {}

    def add(self, idx: int, entry: Entry, epoch: int) -> None:
        """Take in the next entry."""
        self.log[idx] = entry
        self.epochs[idx] = epoch
        if entry.kind == MSG:
            self.places[entry.topic, entry.seq] = idx
            self.heads[entry.topic] = entry
            if entry.first:
                self.starts[entry.topic] = entry.seq
            if entry.pid:
                self.identities[entry.topic, entry.pid, entry.pseq] = idx
                self.publishers[entry.topic, entry.pid] = entry.pseq


class Checker:
    """Looks at the effects of every step."""

    def __init__(self, cluster: Cluster, retention: Retention) -> None:
        self.cluster = cluster
        self.retention = retention
        self.now = 0.0
        self.histories: dict[Place, Committed] = {}
        self.lives: list[Member] = []  # also those that are over
        self.messages: dict[tuple[str, int, int], Entry] = {}  # (topic, epoch, seq), committed
        self.winners: dict[tuple[int, int], tuple[str, Boot]] = {}
        self.coordinators: dict[tuple[int, int], tuple[str, Boot]] = {}
        self.promises: dict[tuple[str, Boot, int], int] = {}
        self.floors: dict[tuple[str, Boot, int], int] = {}
        self.commits: dict[tuple[str, Boot, int], tuple[int, int]] = {}  # (floor, idx) delivered
        self.normal: set[tuple[str, Boot, int]] = set()  # who is NORMAL
        self.ends: dict[tuple[str, Boot, int], tuple[int, int]] = {}  # (floor, commit index)
        self.loss_possible = False  # more than f members forgot at once
        self.takeovers = 0
        self.transfers = 0
        self._seen: dict[int, tuple[Ready, list[int]]] = {}

    def born(self, member: Member) -> None:
        """A new life of a member begins."""
        self.lives.append(member)

    def history(self, g: int, floor: int) -> Committed:
        """What was committed in one history of a group."""
        return self.histories.setdefault((g, floor), Committed())

    def present(self, g: int) -> Committed:
        """The latest history of a group."""
        return self.history(g, max((f for group, f in self.histories if group == g), default=0))

    # ---- every step ----------------------------------------------------------------------------

    def observe(self, member: Member) -> None:
        """Look at what a step changed and at the effects it added."""
        ready = member.ctx.ready
        known, seen = self._seen.get(id(member), (ready, [0, 0, 0, 0]))
        if known is not ready:
            seen = [0, 0, 0, 0]
        for _, message in ready.sends[seen[0] :]:
            self._sent(member, message)
        for note in ready.notes[seen[1] :]:
            self._noted(member, note)
        for g in ready.installed[seen[2] :]:
            self._installed(member, g)
        for delivered in ready.delivered[seen[3] :]:
            self._delivered(member, delivered)
        counts = [len(ready.sends), len(ready.notes), len(ready.installed), len(ready.delivered)]
        self._seen[id(member)] = (ready, counts)
        self._stepped(member)

    def _stepped(self, member: Member) -> None:
        """I4: promises never fall within a life; a tail belongs to its promise."""
        me, boot = member.ctx.me, member.ctx.boot
        for replica in member.replicas:
            key = (me, boot, replica.g)
            if replica.promised < self.promises.get(key, 0):
                raise Violation(f"PROMISE-FELL {me} {replica}")
            self.promises[key] = replica.promised
            lost = key in self.normal and replica.floor > self.floors[key]
            if lost and replica.g not in member.ctx.ready.installed:
                raise Violation(f"SILENT-LOSS: nobody is told of {me} {replica}")
            self.floors[key] = replica.floor
            if replica.normal:
                self.normal.add(key)
            else:
                self.normal.discard(key)
            log = replica.log
            if log.last_epoch > replica.promised:
                raise Violation(f"BELOW-PROMISE {me} {replica}")
            if log.last - log.base > 1 and log.last_epoch < log.epoch_at(log.last - 1):
                raise Violation(f"LOG-ORDER {me} {replica}")
            commit = replica.commit
            if not log.base <= commit <= log.last or commit != replica.state.applied:
                raise Violation(f"BOUNDS {me} {replica} {replica.state}")
            floor, before = self.ends.get(key, (replica.floor, 0))
            if floor == replica.floor and commit < before:
                raise Violation(f"COMMIT-FELL from {before}: {me} {replica}")
            self.ends[key] = (replica.floor, commit)

    def _sent(self, member: Member, message: Any) -> None:
        """I4 and I8: nothing is acknowledged below the promise, or without being NORMAL."""
        if isinstance(message, Ack):
            replica = member.replicas[message.g]
            before = self.promises.get((member.ctx.me, member.ctx.boot, message.g), 0)
            if message.epoch < before:
                raise Violation(f"ACK-BELOW-PROMISE {message}: {member.ctx.me} {replica}")
            if not replica.normal:
                raise Violation(f"RECOVERING-SPOKE {message}: {member.ctx.me} {replica}")
        elif isinstance(message, Prom) and message.normal != member.replicas[message.g].normal:
            raise Violation(f"RECOVERING-SPOKE {message}: {member.replicas[message.g]}")

    # ---- commits -------------------------------------------------------------------------------

    def _delivered(self, member: Member, event: Delivered) -> None:
        """I2, I5, I6, I7: one entry per index, held by Q, in order, each publication once."""
        replica = member.replicas[event.g]
        if not replica.normal:
            raise Violation(f"RECOVERING-SPOKE: {member.ctx.me} delivered {event.idx} {replica}")
        key = (member.ctx.me, member.ctx.boot, event.g)
        before = self.commits.get(key)
        if before is not None and before[0] == replica.floor and event.idx != before[1] + 1:
            raise Violation(f"DELIVERY of {event.idx} after {before[1]} at {key}")
        self._agreed(replica, event.idx, event.entries, member)
        self.commits[key] = (replica.floor, event.idx + len(event.entries) - 1)

    def _agreed(
        self, replica: Replica, first: int, entries: list[Entry], member: Member | None = None
    ) -> None:
        history = self.history(replica.g, replica.floor)
        fresh = False
        for idx, entry in enumerate(entries, first):
            known = history.log.get(idx)
            if known is None:
                fresh = True
                self._first_commit(history, idx, entry)
                history.add(idx, entry, replica.promised)
                if entry.kind == MSG:
                    self.messages[entry.topic, entry.epoch, entry.seq] = entry
            elif known != entry:
                raise Violation(f"AGREEMENT idx {idx}: {known} and {entry} at {replica}")
        if fresh:
            self._copies(replica, first + len(entries) - 1, entries[-1], member)

    def _copies(self, replica: Replica, idx: int, entry: Entry, member: Member | None) -> None:
        """I5 and I8: what is committed is held by Q NORMAL members, dead or alive.

        A coordinator counts no life of which it knows that it is over.
        """
        holders = set()
        knows = member.ctx.peers if member is not None and replica.leading is not None else {}
        for life in self.lives:
            if life.ctx.me in knows and life.ctx.boot < knows[life.ctx.me].boot:
                continue
            held = life.replicas[replica.g]
            log = held.log
            same = held.normal and held.floor == replica.floor and idx <= log.last
            if same and (idx <= log.base or log.epoch_at(idx) == entry.epoch):
                holders.add(life.ctx.me)
        if len(holders) < self.cluster.faults + 1:
            raise Violation(f"COPIES of {idx} {entry}: only {sorted(holders)} at {replica}")

    def _first_commit(self, history: Committed, idx: int, entry: Entry) -> None:
        before = history.log.get(idx - 1)
        if before is None and idx > 1:
            raise Violation(f"HOLE before idx {idx} {entry}")
        if before is not None and before.epoch > entry.epoch:
            raise Violation(f"EPOCH of idx {idx} fell: {before} {entry}")
        if before is not None and before.gt > entry.gt:
            raise Violation(f"GROUP-TIME fell at idx {idx}: {before} {entry}")
        if entry.gt > self.now * 1020 + 1:
            raise Violation(f"GROUP-TIME runs ahead at {self.now}: {entry}")
        if entry.kind == MSG:
            self._sequence(history, idx, entry)
            if entry.pid:
                self._once(history, idx, entry)

    def _sequence(self, history: Committed, idx: int, entry: Entry) -> None:
        """I6: contiguous, unless the topic was forgotten; no sequence twice."""
        head = history.heads.get(entry.topic)
        if entry.seq > idx or (head is None and not entry.first):
            raise Violation(f"SEQUENCE of {entry} at idx {idx} after {head}")
        if head is None or entry.seq == head.seq + 1:
            return
        if not entry.first or entry.seq <= head.seq:
            raise Violation(f"SEQUENCE {entry} after {head}")
        if entry.gt - head.gt <= self.retention.topic_ttl_ms:
            raise Violation(f"FORGOTTEN too early: {entry} after {head}")

    def _once(self, history: Committed, idx: int, entry: Entry) -> None:
        """I7: each publication of a publisher once, and in its order."""
        identity = (entry.topic, entry.pid, entry.pseq)
        if identity in history.identities:
            raise Violation(f"DUPLICATE {identity} at {history.identities[identity]} and {idx}")
        before = history.publishers.get((entry.topic, entry.pid), 0)
        if entry.pseq != before + 1:
            raise Violation(f"PUBLISHER-ORDER {identity}: after {before}")

    def acked(self, g: int, ack: PubAck, item: Publication) -> None:
        """I5, I9: an acknowledgement names a committed entry that is this very publication."""
        identity = (item.topic, item.pid, item.pseq)
        for (group, _), history in self.histories.items():
            idx = history.identities.get(identity)
            if group != g or idx is None:
                continue
            entry, position = history.log[idx], ack.position
            if position is None:
                return
            same = entry.payload == item.payload
            if same and (entry.epoch, entry.seq) == (position.epoch, position.sequence):
                return
        raise Violation(f"FALSE-ACK {ack} of {item} in group {g}")

    # ---- epochs --------------------------------------------------------------------------------

    def _noted(self, member: Member, note: Note) -> None:
        """I1 and I3, when an epoch is won and when it opens."""
        me = (member.ctx.me, member.ctx.boot)
        key = (note.g, note.epoch)
        if note.kind == "elect" and self.winners.setdefault(key, me) != me:
            raise Violation(f"TWO-WINNERS of {key}: {self.winners[key]} and {me}")
        if note.kind == "open":
            self.takeovers += 1
            if self.coordinators.setdefault(key, me) != me:
                raise Violation(f"TWO-COORDINATORS of {key}: {self.coordinators[key]} and {me}")
            self._opened(member, member.replicas[note.g], note.epoch)

    def _opened(self, member: Member, replica: Replica, epoch: int) -> None:
        g, floor = replica.g, replica.floor
        me = member.ctx.me
        before = self.floors.get((me, member.ctx.boot, g), 0)
        if floor == epoch:
            self._new_floor(replica, before)
        elif floor < max((f for group, f in self.histories if group == g), default=0):
            raise Violation(f"FLOOR of {me} {replica} is below the present one")
        history = self.history(g, floor)
        for idx, entry in history.log.items():
            if history.epochs[idx] >= epoch:
                continue
            lacks = idx > replica.log.last
            if lacks or (idx > replica.log.base and replica.log.entry(idx).epoch != entry.epoch):
                raise Violation(f"LOST idx {idx} {entry}: {me} opens {epoch} without: {replica}")

    def _new_floor(self, replica: Replica, before: int) -> None:
        """A new history may begin only where the old one is empty, or was lost beyond repair."""
        old = self.present(replica.g)
        if not self.loss_possible and any(entry.kind == MSG for entry in old.log.values()):
            raise Violation(f"FLOOR rose without need: {replica}")
        kept = self.history(replica.g, before)
        fresh = self.history(replica.g, replica.floor)
        for idx, entry in kept.log.items():  # an operator kept what a survivor had
            if idx > replica.commit or (replica.log.has(idx) and replica.log.entry(idx) != entry):
                break
            fresh.add(idx, entry, kept.epochs[idx])

    # ---- transfers -----------------------------------------------------------------------------

    def _installed(self, member: Member, g: int) -> None:
        """A transferred state holds only what was committed, where it was committed."""
        replica = member.replicas[g]
        self.transfers += replica.normal
        base = replica.log.base
        known = len(self.history(g, replica.floor).log)
        if known < base:  # committed here and trimmed within the same step
            source = self._coordinator(g, replica.promised).log
            self._agreed(replica, known + 1, source.between(known, base))
        if replica.commit > base:
            self._agreed(replica, base + 1, replica.log.between(base, replica.commit))
        # The same step may have delivered before and after: what comes next is taken as it is.
        self.commits.pop((member.ctx.me, member.ctx.boot, g), None)
        self.shows(replica)

    def _coordinator(self, g: int, epoch: int) -> Replica:
        me = self.coordinators[g, epoch]
        return next(m for m in self.lives if (m.ctx.me, m.ctx.boot) == me).replicas[g]

    def shows(self, replica: Replica) -> None:
        """Histories and heads of a member against everything committed."""
        history = self.history(replica.g, replica.floor)
        for topic, record in replica.state.topics.items():
            known = history.places.get((topic, record.seq))
            if known is not None and record.idx <= replica.commit and known != record.idx:
                raise Violation(f"HEAD of {topic} at {record.idx}, not {known}: {replica}")
            for entry in record.history.after(0, 1 << 60):
                idx = history.places.get((topic, entry.seq))
                if idx is not None and history.log[idx] != entry:
                    raise Violation(f"HISTORY {topic} {entry} is not {history.log[idx]}")
