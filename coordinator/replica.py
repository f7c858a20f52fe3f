"""One group on one member: the promise, the log, the applied state, and the follower's part.

Safety rests on three rules that live here and nowhere else:
- the promise never falls, and nothing is stored or voted below it (`promise`, `on_app`);
- an acknowledgement names the end of what one App proved, never the end of the log (`on_app`);
- `advance` is the only place that applies, delivers, expires and releases acknowledgements, and
  it goes forward only.

Invariants: log.base <= commit <= log.last; a NORMAL replica's log continues its applied state; a
RECOVERING replica promises but is counted by nobody, stores nothing, delivers nothing.
"""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from cache.log import Log
from cache.state import GroupState
from coordinator.cluster import CHUNK_BYTES
from coordinator.contact import Contact
from coordinator.context import Context
from coordinator.events import Delivered
from coordinator.keeper import GroupNode, release
from migratory.wire.entry import Entry
from migratory.wire.peer import Ack, App, Catch, CatchReq, Commit, Hint, Nack, Preq, Prom

if TYPE_CHECKING:
    from coordinator.leading import Leading
    from coordinator.takeover import Bid
    from coordinator.transfer import Incoming


class Role(enum.Enum):
    """What a member does for a group."""

    FOLLOWER = "follower"
    CANDIDATE = "candidate"
    COORDINATOR = "coordinator"


class Replica:
    """See the module's docstring."""

    __slots__ = (
        "appended_at", "behind_since", "behind_target", "bid", "born", "commit", "contact", "ctx",
        "epoch", "floor", "g", "gt", "incoming", "leader", "leader_epoch", "leaderless_since",
        "leading", "log", "normal", "promised", "promised_to", "role", "standing", "state",
        "stored_at", "verified", "wait_until", "waits_for_operator",
    )  # fmt: skip

    def __init__(self, ctx: Context, g: int, node: GroupNode) -> None:
        self.ctx = ctx
        self.g = g
        self.normal = False
        self.floor = node.floor
        self.promised = node.epoch
        self.born = node.epoch  # epochs up to this one may have seen an earlier life of the member
        self.promised_to = ""
        self.log = Log()
        self.state = GroupState(ctx.retention)
        self.commit = 0
        self.verified = 0  # how far the log is proved equal to that of the promised epoch
        self.role = Role.FOLLOWER
        self.epoch = 0
        self.leading: Leading | None = None
        self.bid: Bid | None = None
        self.incoming: Incoming | None = None
        self.contact = Contact(self)
        self.leader = ""  # the gossip map: a guess, never trusted
        self.leader_epoch = node.epoch
        self.leaderless_since = ctx.now
        self.wait_until = 0.0  # no election before
        self.standing = False  # an election is under way in ZooKeeper
        self.waits_for_operator = False
        self.behind_since: float | None = None  # has not reached ...
        self.behind_target = 0  # ... what peers had committed then
        self.appended_at = ctx.now  # when the coordinator was last heard through an App
        self.gt = 0  # group time of the last entry ...
        self.stored_at = ctx.now  # ... and when it was stored

    def __repr__(self) -> str:
        status = "NORMAL" if self.normal else "RECOVERING"
        return (
            f"g{self.g} {status} {self.role.value} epoch={self.epoch} promised={self.promised}"
            f"->{self.promised_to or '-'} floor={self.floor} commit={self.commit}"
            f" log=({self.log.base},{self.log.last}] leader={self.leader or '-'}"
        )

    # ---- promises ------------------------------------------------------------------------------

    def promise(self, epoch: int, to: str) -> None:
        """Promise an epoch to its coordinator; the role of a lower epoch ends with it."""
        assert epoch >= self.promised, "a promise never falls"
        if epoch > self.promised:
            self.promised = epoch
            self.verified = 0
            self.incoming = None  # a transfer of a lower epoch is void
        self.promised_to = to
        self.ctx.tell_watch("promised", self.g, epoch, self.log.last, to)
        if self.role is not Role.FOLLOWER and self.epoch < epoch:
            self.step_down("a higher epoch was promised")

    def may_promise(self, epoch: int, to: str) -> bool:
        """Whether this epoch may be promised to this member."""
        return epoch > self.promised or (epoch == self.promised and self.promised_to == to)

    def on_preq(self, peer: str, message: Preq) -> None:
        """Answer the winner of an election."""
        if not self.may_promise(message.epoch, peer):
            self.ctx.send(peer, Nack(self.g, self.floor, self.promised))
            return
        self.promise(message.epoch, peer)
        self.ctx.note("promise", self.g, message.epoch, self.log.last, peer)
        self.ctx.send(peer, self.own_promise())

    def own_promise(self) -> Prom:
        """What this member holds at the moment of its promise."""
        return Prom(
            self.g, self.floor, self.promised, self.normal, self.log.base, self.log.last_epoch,
            self.log.last, self.commit,
        )  # fmt: skip

    def on_nack(self, peer: str, message: Nack) -> None:
        """Someone promised a higher epoch: this member's own one is over."""
        if self.role is not Role.FOLLOWER and message.promised > self.epoch:
            self.step_down(f"{peer} promised {message.promised}")

    def step_down(self, why: str) -> None:
        """Stop coordinating or standing. What waits here waits for the next coordinator."""
        self.ctx.note("step_down", self.g, self.epoch, self.log.last, why)
        self.release(self.epoch)
        if self.leading is not None:
            self.leading.close()
            self.leading = None
        self.bid = None
        self.role = Role.FOLLOWER
        if self.leader == self.ctx.me:
            self.forget_leader()

    def release(self, epoch: int) -> None:
        """Take our coordinator node of an epoch out of ZooKeeper."""
        procedure = release(self.ctx.paths, self.g, self.ctx.boot, epoch)
        self.ctx.run(procedure, lambda _: None)

    # ---- the follower --------------------------------------------------------------------------

    def on_app(self, peer: str, message: App) -> None:
        """Store what the coordinator of an epoch appended, and say how far that is proved."""
        ctx, epoch = self.ctx, message.epoch
        if epoch < self.promised:  # the fence
            ctx.send(peer, Nack(self.g, self.floor, self.promised))
            return
        if epoch > self.promised or self.promised_to != peer:
            self.promise(epoch, peer)
        self.learn_leader(peer, epoch)
        self.appended_at = ctx.now
        if self.incoming is not None and self.incoming.on_app(peer, message):
            return
        if not self.normal and not self._install_empty(message):
            return
        proved = self._store(message)
        if proved < 0:
            ctx.send(peer, Hint(self.g, self.floor, epoch, self.commit))
            return
        self.verified = max(self.verified, proved)
        ctx.tell_watch("ack", self.g, epoch, proved)
        ctx.send(peer, Ack(self.g, self.floor, epoch, proved))
        committed = min(message.commit, proved)
        # The coordinator and this member are two: with Q = 2 that is a commit.
        if ctx.cluster.copies == 2 and proved > self.commit and self.log.epoch_at(proved) == epoch:
            committed = proved
        elif committed > self.commit:
            ctx.tell_watch("told", self.g, epoch, committed)
        if committed > self.commit:
            self.advance(committed)

    def _install_empty(self, message: App) -> bool:
        """A RECOVERING member may start from nothing only where the history does.

        And only under an epoch that no earlier life of this member can have taken part in: it
        would have forgotten what it acknowledged then.
        """
        if message.floor != message.epoch or message.prev != 0 or message.epoch <= self.born:
            return False
        self.clear()
        self.become_normal()
        return True

    def _store(self, message: App) -> int:
        """Append what is new, replace what conflicts; the index proved, or -1 for no match."""
        log, prev, entries = self.log, message.prev, message.entries
        proved = prev + len(entries)
        if prev == log.last and message.prev_epoch == log.last_epoch:
            if entries:
                self.extend(entries)
                self.mark_time()
            return proved
        if prev < self.commit:
            # Committed entries are the same everywhere: they are not even compared.
            entries = entries[self.commit - prev :]
            prev = self.commit
        elif prev > log.last or log.epoch_at(prev) != message.prev_epoch:
            return -1
        for offset, entry in enumerate(entries):
            idx = prev + 1 + offset
            if idx > log.last or log.epoch_at(idx) != entry.epoch:
                if idx <= log.last:
                    self.truncate(idx - 1)
                self.extend(entries[offset:])
                self.mark_time()
                break
        return proved

    def extend(self, entries: list[Entry], *, own: bool = False) -> None:
        """Put entries at the end of the log."""
        if self.ctx.watch is not None:
            self.ctx.watch.stored(self.g, self.log.last + 1, entries, own=own)
        self.log.extend(entries)

    def proved(self, epoch: int) -> int:
        """How far this member is known to hold what the coordinator of an epoch holds."""
        return max(self.commit, self.verified) if epoch == self.promised else self.commit

    def truncate(self, after: int) -> None:
        """Drop uncommitted entries that another epoch replaces."""
        assert after >= self.commit, "a committed entry is never dropped"
        self.log.truncate(after)
        self.verified = min(self.verified, after)

    def on_commit(self, peer: str, message: Commit) -> None:
        """The coordinator committed; only what it proved here is taken for its own."""
        if message.epoch < self.promised:
            self.ctx.send(peer, Nack(self.g, self.floor, self.promised))
        elif self.normal and message.epoch == self.promised and self.role is Role.FOLLOWER:
            committed = min(message.idx, self.verified)
            if committed > self.commit:
                self.ctx.tell_watch("told", self.g, message.epoch, committed)
                self.advance(committed)

    # ---- catching up from any NORMAL member ----------------------------------------------------

    def on_catch_req(self, peer: str, message: CatchReq) -> None:
        """Hand out committed entries, which are the same whoever holds them."""
        after = message.after
        if not self.normal or not self.log.base <= after < self.commit:
            return
        entries = self.log.entries(after, CHUNK_BYTES)[: self.commit - after]
        epoch = self.log.epoch_at(after)
        self.ctx.send(peer, Catch(self.g, self.floor, after, epoch, entries))

    def on_catch(self, peer: str, message: Catch) -> None:
        """Take committed entries of a peer; the promise rises with what is taken."""
        if not self.normal or self.role is not Role.FOLLOWER:
            return
        fresh = message.entries[max(0, self.commit - message.after) :]
        if message.after > self.commit or not fresh:
            return
        upto = self.commit + len(fresh)
        for offset, entry in enumerate(fresh):
            idx = self.commit + 1 + offset
            if idx > self.log.last or self.log.epoch_at(idx) != entry.epoch:
                if idx <= self.log.last:
                    self.truncate(idx - 1)
                self.extend(fresh[offset:])
                self.mark_time()
                break
        # Without this an App of an older epoch could still be stored behind these entries.
        if fresh[-1].epoch > self.promised:
            self.promise(fresh[-1].epoch, "")
        self.ctx.tell_watch("told", self.g, self.promised, upto)
        self.advance(upto)
        self.ctx.send(peer, CatchReq(self.g, self.floor, upto))  # there may be more

    # ---- the applied state ---------------------------------------------------------------------

    def advance(self, upto: int) -> None:
        """Commit everything up to an index: apply, deliver, release acknowledgements."""
        assert self.commit < upto <= self.log.last, f"cannot commit {upto}: {self!r}"
        entries = self.apply_log(upto)
        self.ctx.ready.delivered.append(Delivered(self.g, upto - len(entries) + 1, entries))
        self.contact.settle(entries)
        self.trim()

    def apply_log(self, upto: int) -> list[Entry]:
        """Apply the entries after the commit index, and move it."""
        first = self.commit + 1
        entries = self.log.between(self.commit, upto)
        if self.ctx.watch is not None:
            self.ctx.watch.applied(self.g, first, entries)
        apply = self.state.apply
        for idx, entry in enumerate(entries, first):
            apply(idx, entry)
        self.commit = upto
        if self.leading is not None:
            self.leading.applied(first, entries)
        return entries

    def trim(self) -> None:
        """Let go of committed entries beyond what is kept for followers that fall behind."""
        keep = self.ctx.retention
        log = self.log
        if log.last - log.base <= keep.log_entries and log.bytes <= keep.log_bytes:
            return
        upto = min(self.commit, log.last - keep.log_entries)
        if log.bytes > keep.log_bytes:
            upto = max(upto, log.first_within(keep.log_bytes) - 1)
        upto = min(upto, self.commit)
        if self.leading is not None:
            upto = min(upto, self.leading.pinned())
        if upto > log.base:
            log.trim(upto)

    def mark_time(self) -> None:
        """Remember when the last entry was stored: group time goes on from there."""
        last = self.log.last
        self.gt = self.log.entry(last).gt if last > self.log.base else self.state.gt
        self.stored_at = self.ctx.now

    def group_time(self) -> int:
        """Group time now, as this member would stamp it."""
        return self.gt + int((self.ctx.now - self.stored_at) * 1000)

    # ---- status --------------------------------------------------------------------------------

    def clear(self) -> None:
        """Start from nothing: an empty log and state."""
        self.log = Log()
        self.state = GroupState(self.ctx.retention)
        self.commit = 0
        self.verified = 0
        self.gt = 0
        self.stored_at = self.ctx.now

    def become_normal(self) -> None:
        """From here on this member is counted in this group."""
        self.normal = True
        self.incoming = None
        self.waits_for_operator = False
        self.ctx.note("normal", self.g, self.promised, self.log.last)

    def raise_floor(self, floor: int) -> None:
        """The group's history begins anew elsewhere: what this member holds of it is void."""
        assert floor > self.floor
        self.normal = False
        self.ctx.note("floor", self.g, floor, self.log.last, f"was {self.floor}")
        if self.role is not Role.FOLLOWER:
            self.step_down("the floor rose")
        self.floor = floor
        self.incoming = None
        self.clear()
        self.ctx.ready.installed.append(self.g)  # subscribers are told that history was lost

    def begin_transfer_anew(self, peer: str) -> None:
        """A link to this peer is new: it has given up what it was transferring on the one before.

        The stream goes on, so a transfer that waits for a lost chunk would look alive.
        """
        if self.incoming is not None and self.incoming.leader == peer:
            self.incoming = None

    # ---- who coordinates -----------------------------------------------------------------------

    def learn_leader(self, member: str, epoch: int) -> None:
        """Someone coordinates (or claims to): publications that wait go there, once."""
        if epoch < self.leader_epoch or (epoch == self.leader_epoch and self.leader == member):
            return
        self.leader, self.leader_epoch = member, epoch
        self.waits_for_operator = False
        self.contact.forward_all()

    def forget_leader(self) -> None:
        """Nobody is known to coordinate from now on."""
        if self.leader:
            self.leader = ""
            self.leaderless_since = self.ctx.now
