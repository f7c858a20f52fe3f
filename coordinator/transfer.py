"""Moving a group's whole state to a member that lacks it: pulled chunks plus the live stream.

Used by a RECOVERING member and by a NORMAL one that fell behind the coordinator's log. The
coordinator's log is pinned from `base` (its commit index at the start); topics are sent as they
are when sent, each with the index of its last entry; entries after `base` arrive as ordinary Apps
and are staged. When all chunks are there and the staged entries reach the target that the last
chunk names, everything is swapped in one step. Until then nothing is acknowledged, delivered or
voted from it: a NORMAL member goes on with what it has, a RECOVERING one has nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from cache.state import GroupState
from coordinator.cluster import CHUNK_BYTES, RESEND_PATIENCE, TRANSFER_PATIENCE
from migratory.wire.entry import ENTRY_OVERHEAD, Entry
from migratory.wire.peer import Ack, App, Hint, SyncChunk, SyncHead, SyncPull, TopicState

if TYPE_CHECKING:
    from coordinator.replica import Replica


class Outgoing:
    """The coordinator's side of one transfer."""

    __slots__ = ("base", "base_epoch", "gt", "names", "number", "replica", "starts", "touched",
                 "untouched")  # fmt: skip

    def __init__(self, replica: Replica, number: int) -> None:
        self.replica = replica
        self.number = number
        self.base = replica.commit
        self.base_epoch = replica.log.epoch_at(self.base)
        self.gt = replica.state.gt
        self.names = replica.state.snapshot_names()
        self.starts = [0]  # chunk n holds names[starts[n]:starts[n + 1]], also when sent again
        self.touched = replica.ctx.now
        self.untouched = True

    def head(self) -> SyncHead:
        """What the member must know to stage the stream."""
        r = self.replica
        return SyncHead(
            r.g, r.floor, r.epoch, self.number, self.base, self.base_epoch, self.gt
        )  # fmt: skip

    def chunk(self, n: int) -> SyncChunk | None:
        """Chunk number n; None when an earlier one was never asked for."""
        if n >= len(self.starts):
            return None
        r = self.replica
        self.touched = r.ctx.now
        self.untouched = False
        topics: list[TopicState] = []
        at, size = self.starts[n], 0
        end = self.starts[n + 1] if n + 1 < len(self.starts) else len(self.names)
        while at < end and size < CHUNK_BYTES:
            topic = r.state.topic_state(self.names[at])
            if topic is not None:
                topics.append(topic)
                size += len(topic.topic) + ENTRY_OVERHEAD + sum(e.size for e in topic.entries)
            at += 1
            if n + 1 < len(self.starts):
                size = 0  # a repeated chunk ends where it ended before
        if n + 1 == len(self.starts) and at < len(self.names):
            self.starts.append(at)
        if at < len(self.names):
            return SyncChunk(r.g, r.floor, r.epoch, self.number, n, topics, last=False)
        return SyncChunk(
            r.g, r.floor, r.epoch, self.number, n, topics, True, r.log.last, r.commit,
            r.state.vacant,
        )  # fmt: skip


class Incoming:
    """The receiving side: staging, and the swap."""

    __slots__ = ("asked", "base", "commit", "epoch", "final", "head", "leader", "n", "pause",
                 "replica", "staged", "state", "touched")  # fmt: skip

    def __init__(self, replica: Replica, leader: str, head: SyncHead) -> None:
        self.replica = replica
        self.leader = leader
        self.head = head
        self.epoch = head.epoch
        self.base = head.base
        self.staged: list[Entry] = []
        self.commit = head.base
        self.state = GroupState(replica.ctx.retention)
        self.state.begin(head.base, head.base_epoch, head.gt)
        self.n = 0
        self.final: SyncChunk | None = None
        self.asked = replica.ctx.now
        self._progressed()
        self._pull()

    def _progressed(self) -> None:
        """What it waits for came nearer: chunks, then entries."""
        self.touched = self.replica.ctx.now
        self.pause = RESEND_PATIENCE  # until it asks again

    def _pull(self) -> None:
        r = self.replica
        self.asked = r.ctx.now
        r.ctx.send(self.leader, SyncPull(r.g, r.floor, self.epoch, self.head.transfer, self.n))

    def _hint(self) -> None:
        r = self.replica
        self.asked = r.ctx.now
        r.ctx.send(self.leader, Hint(r.g, r.floor, self.epoch, self.base + len(self.staged)))

    def on_app(self, peer: str, message: App) -> bool:
        """Stage the stream of this epoch; False when the App is not the transfer's business."""
        if message.epoch != self.epoch:  # a higher one: the transfer is void
            self.replica.incoming = None
            return False
        if self.replica.normal and self.base <= self.replica.proved(self.epoch):
            self.replica.incoming = None  # this member has passed that point by itself
            return False
        at = message.prev - self.base
        if at < 0 and at + len(message.entries) < 0:
            return True
        if at > len(self.staged):
            self._hint()
            return True
        # The stream of one epoch is one sequence of entries: what is staged is never changed.
        if fresh := message.entries[len(self.staged) - at :]:
            if self.final is not None:  # before it, a stream that goes on says nothing of chunks
                self._progressed()
            self.staged.extend(fresh)
        self.commit = max(self.commit, message.commit)
        self._finish()
        return True

    def on_chunk(self, message: SyncChunk) -> None:
        """Install the topics of a chunk into the staged state, and ask for the next one."""
        if message.transfer != self.head.transfer or message.n != self.n or self.final is not None:
            return
        self._progressed()
        for topic in message.topics:
            self.state.install(topic)
        if message.last:
            self.final = message
            self._finish()
        else:
            self.n += 1
            self._pull()

    def tick(self) -> bool:
        """Ask again for what was lost; False when the transfer is dead and must begin again."""
        now = self.replica.ctx.now
        if now - self.touched > TRANSFER_PATIENCE:
            return False
        if now - self.asked > self.pause and now - self.touched > self.pause:
            self.pause *= 2  # a slow link is not filled with what it carries already
            if self.final is None:
                self._pull()
            else:
                self._hint()
        return True

    def _finish(self) -> None:
        """Swap everything in one step, once everything is there."""
        r, final = self.replica, self.final
        last = self.base + len(self.staged)
        if final is None or last < final.target:
            return
        commit = min(max(self.commit, final.commit), last)
        if r.normal and (commit < r.commit or (r.promised == self.epoch and last < r.verified)):
            # A late transfer must not take away what was acknowledged or delivered here.
            r.incoming = None
            return
        self.state.vacant = max(self.state.vacant, final.vacant)
        r.incoming = None
        r.ctx.tell_watch("install", r.g, self.epoch, self.base)
        r.log.reset(self.base, self.head.base_epoch)
        r.extend(self.staged)
        r.state = self.state
        r.commit = self.base
        r.verified = last
        r.mark_time()
        if r.ctx.cluster.copies == 2 and r.log.last_epoch == self.epoch:
            commit = last
        if commit > r.commit:
            r.ctx.tell_watch("told", r.g, self.epoch, commit)
            r.apply_log(commit)
        r.ctx.ready.installed.append(r.g)
        r.contact.settle_installed()
        if not r.normal:
            r.become_normal()
        r.ctx.tell_watch("ack", r.g, self.epoch, last)
        r.ctx.send(self.leader, Ack(r.g, r.floor, self.epoch, last))
