"""The coordinator's part: stamp, stream to followers, count copies, commit.

What is stamped continues the applied state overlaid by the uncommitted tail; between the check of
a publication and its append nothing can happen, as a step is never interrupted.

There are no queues of entries: per follower there is only the index of the next entry to send, and
`next_message` reads the log when the follower's link has room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.cluster import (
    ALL_TAILS_BYTES,
    CHUNK_BYTES,
    PIN_BYTES,
    RESEND_PATIENCE,
    TAIL_BYTES,
    TAIL_ENTRIES,
    TICK_ENTRY,
    TRANSFER_PATIENCE,
)
from coordinator.transfer import Outgoing
from migratory.wire.entry import FIRST, MSG, NOOP, TICK, Entry, checksum
from migratory.wire.ids import Position
from migratory.wire.peer import (
    Ack,
    App,
    Barrier,
    Commit,
    Hint,
    Publication,
    PubResult,
    Refused,
    Settled,
    SyncPull,
    SyncReq,
)

if TYPE_CHECKING:
    from coordinator.replica import Replica


class Follower:
    """How far one member follows."""

    __slots__ = ("commit", "heard", "match", "next", "outgoing", "probe")

    def __init__(self, after: int, now: float) -> None:
        self.match = 0  # acknowledged: counted
        self.next = after + 1  # sent up to before this
        self.commit = 0  # told
        self.heard = now  # last progress: acknowledged, or first sent
        self.outgoing: Outgoing | None = None
        self.probe = False  # an App is due even without entries: its answer tells the rest


class Leading:
    """One epoch of this member's coordination of a group."""

    __slots__ = (
        "barrier_at",
        "barriers",
        "epoch",
        "followers",
        "handing_to",
        "handover_since",
        "heads",
        "held",
        "invited",
        "pubs",
        "replica",
        "tail",
        "transfers",
        "with_quorum",
    )  # fmt: skip

    def __init__(self, replica: Replica, starts: dict[str, int]) -> None:
        self.replica = replica
        self.epoch = replica.epoch
        ctx = replica.ctx
        self.followers = {m: Follower(starts.get(m, replica.commit), ctx.now) for m in ctx.peers}
        self.heads: dict[str, tuple[int, int]] = {}  # topic: (seq, idx), of the tail
        self.pubs: dict[tuple[str, str], tuple[int, Entry]] = {}  # (idx, entry), of the tail
        self.tail = 0  # bytes of the tail
        self.barrier_at = 0
        self.barriers: list[tuple[str, str, int]] = []  # (peer, contact, ref) for the next one
        self.handing_to = ""
        self.handover_since = 0.0
        self.invited = False
        self.held: list[tuple[str, str, list[Publication]]] = []
        self.transfers = 0
        self.with_quorum = ctx.now  # last moment with Q members in contact
        log = replica.log
        for idx in range(replica.commit + 1, log.last + 1):
            self._overlay(idx, log.entry(idx))
        self._weigh(log.size_between(replica.commit, log.last))

    # ---- appending -----------------------------------------------------------------------------

    def _overlay(self, idx: int, entry: Entry) -> None:
        """Count an entry of the tail in."""
        if entry.kind == MSG:
            self.heads[entry.topic] = (entry.seq, idx)
            if entry.pid:
                self.pubs[entry.topic, entry.pid] = (idx, entry)

    def _weigh(self, size: int) -> None:
        """Count bytes of the tail in (or, below zero, out)."""
        self.tail += size
        self.replica.ctx.tail_bytes += size

    def _append(self, entry: Entry) -> None:
        replica = self.replica
        log, watch = replica.log, replica.ctx.watch
        if watch is not None:
            watch.stored(replica.g, log.last + 1, (entry,), own=True)
        before = log.bytes
        replica.log.append(entry)
        replica.gt = entry.gt
        replica.stored_at = replica.ctx.now
        self._overlay(log.last, entry)
        self._weigh(log.bytes - before)

    def append_control(self, kind: int) -> int:
        """Append a NOOP or a TICK; its index."""
        replica = self.replica
        self._append(Entry(self.epoch, kind, replica.ctx.wall(), replica.group_time()))
        self.changed()
        return replica.log.last

    def changed(self) -> None:
        """Something is to be sent to everybody; alone (N = 1) it is committed at once."""
        g = self.replica.g
        for waiting in self.replica.ctx.waiting_for_peer.values():
            waiting[g] = None
        if self.replica.ctx.cluster.copies == 1:
            self.count()

    def publish(self, contact: str, items: list[Publication], via: str = "") -> None:
        """Stamp publications in their order, or say why not."""
        if self.handing_to:
            self.held.append((contact, via, items))
            return
        replica = self.replica
        refused: list[Refused] = []
        settled: list[Settled] = []
        if not replica.ctx.hears_quorum():
            # Perhaps deposed without knowing it: what is known here may be old.
            refused = [Refused(_bare(item), "RETRY") for item in items]
            items = []
        ts, gt = replica.ctx.wall(), replica.group_time()
        for item in items:
            verdict = self._check(item)
            if verdict is None:
                self._stamp(item, ts, gt)
            elif verdict.__class__ is Refused:
                refused.append(verdict)
            elif verdict.__class__ is Settled:
                settled.append(verdict)
        self.changed()
        if refused or settled:
            result = PubResult(replica.g, replica.floor, contact, replica.ctx.me, refused, settled)
            if contact == replica.ctx.me:
                replica.contact.on_result(contact, result)
            else:
                replica.ctx.send(via or contact, result)

    def _check(self, item: Publication) -> Refused | Settled | str | None:
        """None: to be stamped. A string: nothing to say, the first copy will be committed."""
        if self._full():
            return Refused(_bare(item), "BUSY")
        if not item.pid:
            return None
        pending = self.pubs.get((item.topic, item.pid))
        if pending is not None:
            known = pending[1].pseq
            if item.pseq == known + 1:
                return None
            if item.pseq == known:
                same = pending[1].payload == item.payload
                return "pending" if same else Refused(_bare(item), "PSEQ_REUSED")
            if item.pseq > known:
                return Refused(_bare(item), "OUT_OF_ORDER", known + 1)
        return self._check_applied(item, in_tail=pending is not None)

    def _check_applied(self, item: Publication, *, in_tail: bool) -> Refused | Settled | str | None:
        """The same against the applied state; `in_tail`: a later one waits to be committed."""
        state = self.replica.state
        known = state.publisher(item.topic, item.pid)
        if known is None:
            if in_tail:
                return "pending"
            if item.pseq > 1:
                return Refused(_bare(item), "UNKNOWN_PUBLISHER", 1)
            full = state.publishers >= self.replica.ctx.retention.publishers_per_group
            return Refused(_bare(item), "BUSY") if full else None
        if item.pseq == known.pseq:
            if checksum(item.payload) != known.crc:
                return Refused(_bare(item), "PSEQ_REUSED")
            return Settled(_bare(item), Position(known.epoch, known.seq))
        if item.pseq < known.pseq:
            return Settled(_bare(item), None)
        if in_tail:
            return "pending"
        if item.pseq > known.pseq + 1:
            return Refused(_bare(item), "OUT_OF_ORDER", known.pseq + 1)
        return None

    def _full(self) -> bool:
        replica = self.replica
        return (
            replica.log.last - replica.commit >= TAIL_ENTRIES
            or self.tail >= TAIL_BYTES
            or replica.ctx.tail_bytes >= ALL_TAILS_BYTES
        )

    def _stamp(self, item: Publication, ts: int, gt: int) -> None:
        """Give a message its place: sequences go on across epochs."""
        replica = self.replica
        topic, flags = item.topic, item.flags
        pending = self.heads.get(topic)
        if pending is not None:
            seq = pending[0] + 1
        else:
            record = replica.state.topics.get(topic)
            if record is not None:
                seq = record.seq + 1
            else:
                # Never known or forgotten: an index was never used as a sequence before, since
                # no sequence is above its index. While the group is younger than topics live,
                # nothing can have been forgotten, not even by the tail: count from 1.
                young = gt <= replica.ctx.retention.topic_ttl_ms
                seq = 1 if young else replica.log.last + 1
                flags |= FIRST
        self._append(
            Entry(
                self.epoch, MSG, ts, gt, topic, seq, flags, item.pid, item.pseq, item.payload
            )
        )  # fmt: skip

    def want_barrier(self, peer: str, contact: str, ref: int) -> None:
        """Someone wants an entry behind everything committed anywhere until now.

        One at a time: who comes while one is under way waits for the next one, as a follower may
        have committed behind the present one what this member has not counted yet.
        """
        self.barriers.append((peer, contact, ref))
        if self.barrier_at <= self.replica.commit:
            self._raise_barrier()

    def _raise_barrier(self) -> None:
        replica = self.replica
        wanted, self.barriers = self.barriers, []
        self.barrier_at = at = self.append_control(NOOP)
        for peer, contact, ref in wanted:
            answer = Barrier(replica.g, replica.floor, contact, ref, self.epoch, at)
            if peer == replica.ctx.me:
                replica.contact.on_barrier(answer)
            else:
                replica.ctx.send(peer, answer)

    # ---- counting copies -----------------------------------------------------------------------

    def on_ack(self, peer: str, message: Ack) -> None:
        """A follower holds everything up to an index."""
        if message.epoch != self.epoch or message.idx > self.replica.log.last:
            return
        follower = self.followers[peer]
        follower.heard = self.replica.ctx.now
        if message.idx > follower.match:
            follower.match = message.idx
            if follower.next <= message.idx:
                follower.next = message.idx + 1
            if follower.outgoing is not None and message.idx >= follower.outgoing.base:
                follower.outgoing = None
            if message.idx > self.replica.commit:
                self.count()

    def count(self) -> None:
        """Commit what Q members hold, if it is of this epoch: never an older entry by counting."""
        replica = self.replica
        copies = sorted((f.match for f in self.followers.values()), reverse=True)
        rank = replica.ctx.cluster.copies - 2  # this member holds everything
        held = copies[rank] if rank >= 0 else replica.log.last
        if held > replica.commit and replica.log.epoch_at(held) == self.epoch:
            if replica.ctx.watch is not None and rank >= 0:
                replica.ctx.tell_watch("quorum", replica.g, self.epoch, held, self._holders(held))
            replica.advance(held)
            if replica.ctx.cluster.copies > 2:
                self.changed()
            if self.barriers and self.barrier_at <= replica.commit:
                self._raise_barrier()

    def _holders(self, idx: int) -> str:
        """The lives of other members that acknowledged an index, as traces name them."""
        peers = self.replica.ctx.peers
        return ",".join(
            f"{m}-{peers[m].boot.n}" for m, f in self.followers.items() if f.match >= idx
        )

    def applied(self, first: int, entries: list[Entry]) -> None:
        """Entries went from the tail into the applied state."""
        heads, pubs = self.heads, self.pubs
        self._weigh(-self.replica.log.size_between(first - 1, first - 1 + len(entries)))
        for idx, entry in enumerate(entries, first):
            if entry.kind != MSG:
                continue
            if heads[entry.topic][1] == idx:
                del heads[entry.topic]
            if entry.pid and pubs[entry.topic, entry.pid][0] == idx:
                del pubs[entry.topic, entry.pid]

    # ---- streaming -----------------------------------------------------------------------------

    def next_message(self, peer: str, room: int) -> App | Commit | None:
        """What the follower needs next, or None; call again while it returns entries."""
        replica, follower = self.replica, self.followers[peer]
        log = replica.log
        after = follower.next - 1
        if after < log.base:
            self._begin_transfer(peer, follower)
            return None
        if after >= log.last and not follower.probe:
            if replica.ctx.cluster.copies > 2 and follower.commit < replica.commit:
                follower.commit = replica.commit
                return Commit(replica.g, replica.floor, self.epoch, replica.commit)
            return None
        entries = log.entries(after, min(room, CHUNK_BYTES))
        follower.probe = False
        if follower.match == after:
            follower.heard = replica.ctx.now
        follower.next = after + len(entries) + 1
        if follower.next > log.last:  # nothing more for now: spare the next look
            replica.ctx.waiting_for_peer[peer].pop(replica.g, None)
        follower.commit = replica.commit
        prev_epoch = log.epoch_at(after)
        return App(
            replica.g, replica.floor, self.epoch, after, prev_epoch, replica.commit, entries
        )  # fmt: skip

    def on_hint(self, peer: str, message: Hint) -> None:
        """An App did not fit: go on from what the follower has committed (or staged)."""
        follower = self.followers[peer]
        if message.epoch == self.epoch and message.commit <= self.replica.log.last:
            follower.next = max(follower.match, message.commit) + 1
            follower.heard = self.replica.ctx.now
            self._wake(peer)

    def _wake(self, peer: str) -> None:
        self.replica.ctx.waiting_for_peer[peer][self.replica.g] = None

    def reset_follower(self, peer: str) -> None:
        """Another life of the member, or a new link: what it was sent may be lost."""
        follower = self.followers[peer]
        follower.next = max(follower.match, min(follower.next - 1, self.replica.commit)) + 1
        follower.probe = True
        follower.heard = self.replica.ctx.now
        follower.outgoing = None
        self._wake(peer)

    def forget_follower(self, peer: str) -> None:
        """What an earlier life of the member held counts no more."""
        self.followers[peer].match = 0
        self.reset_follower(peer)

    def tick(self) -> None:
        """Send again what a follower is silent about; give up silent transfers; let time pass."""
        ctx = self.replica.ctx
        for peer, follower in self.followers.items():
            silent = ctx.now - follower.heard
            if follower.outgoing is not None:
                if ctx.now - follower.outgoing.touched > TRANSFER_PATIENCE:
                    self.reset_follower(peer)
            elif (
                silent > RESEND_PATIENCE
                and follower.match < follower.next - 1
                and ctx.peers[peer].reached
            ):
                self.reset_follower(peer)
        if self.replica.log.last == self.replica.commit and self._expiry_due():
            self.append_control(TICK)

    def _expiry_due(self) -> bool:
        replica = self.replica
        if replica.ctx.now - replica.stored_at < TICK_ENTRY:
            return False
        return replica.state.due(replica.group_time())

    # ---- transfers to recovering or late members -----------------------------------------------

    def on_sync_req(self, peer: str, message: SyncReq) -> None:
        """A member without the group's state asks for it."""
        if self.epoch < message.promised:
            self.replica.step_down(f"{peer} knows epoch {message.promised}")
            return
        follower = self.followers[peer]
        follower.match = 0
        self._begin_transfer(peer, follower)

    def _begin_transfer(self, peer: str, follower: Follower) -> None:
        """Say where the stream begins; the member pulls the rest."""
        if follower.outgoing is not None and follower.outgoing.untouched:
            follower.outgoing.touched = self.replica.ctx.now
        else:
            self.transfers += 1
            follower.outgoing = Outgoing(self.replica, self.transfers)
        follower.next = follower.outgoing.base + 1
        self.replica.ctx.send(peer, follower.outgoing.head())
        self._wake(peer)

    def on_pull(self, peer: str, message: SyncPull) -> None:
        """The member wants the next chunk of its transfer."""
        outgoing = self.followers[peer].outgoing
        if outgoing is None or message.epoch != self.epoch or outgoing.number != message.transfer:
            return
        chunk = outgoing.chunk(message.n)
        if chunk is not None:
            self.replica.ctx.send(peer, chunk)

    def pinned(self) -> int:
        """Up to which index the log may be trimmed, transfers considered."""
        lowest = self.replica.log.last
        for follower in self.followers.values():
            if follower.outgoing is not None:
                if self.replica.log.bytes > PIN_BYTES:
                    follower.outgoing = None
                else:
                    lowest = min(lowest, follower.outgoing.base)
        return lowest

    # ---- the end -------------------------------------------------------------------------------

    def close(self) -> None:
        """The epoch is over here: the tail is not this member's to count any more."""
        self.replica.ctx.tail_bytes -= self.tail
        self.tail = 0
        self.held.clear()


def _bare(item: Publication) -> Publication:
    """A publication named without its payload."""
    return Publication(item.topic, b"", item.flags, item.pid, item.pseq, item.ref, item.rewind)
