"""From a won election to an open epoch: collect promises, fetch the best tail, open.

A bid counts only promises of NORMAL members; the best log is the one with the highest
(last epoch, last index), never the longest. What must be fetched is staged and swapped in one
step: nothing of the own log is dropped before its replacement is complete.

A cold bid is the same without anything to recover: all members are RECOVERING, or the group was
never opened. Its floor is raised in ZooKeeper before anything is opened. So is that of an
operator's bid, which counts RECOVERING promises and takes the best that is reachable.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.cluster import CHUNK_BYTES, RETRY_ELECTION, TAKEOVER_PATIENCE
from coordinator.events import RecoverWanted
from coordinator.keeper import Elected, raise_floor
from coordinator.leading import Leading
from coordinator.replica import Role
from migratory.wire.entry import NOOP, Entry
from migratory.wire.peer import Fetch, Fetched, Invite, Nack, Preq, Prom

if TYPE_CHECKING:
    from coordinator.replica import Replica


class Bid:
    """A candidate's state for one epoch."""

    __slots__ = ("accept_loss", "best", "best_prom", "epoch", "never_opened", "proms", "raising",
                 "registered", "replica", "staged", "touched", "without_quorum")  # fmt: skip

    def __init__(
        self, replica: Replica, elected: Elected, accept_loss: RecoverWanted | None
    ) -> None:
        self.replica = replica
        self.epoch = elected.epoch
        self.never_opened = elected.floor == 0
        self.registered = elected.boots.keys()  # members that live, whether they answer or not
        self.accept_loss = accept_loss is not None
        self.without_quorum = accept_loss is not None and accept_loss.without_quorum
        self.proms: dict[str, Prom] = {}
        self.best = ""  # whose tail is fetched
        self.best_prom: Prom | None = None
        self.staged: list[Entry] = []
        self.raising = False  # the floor is being raised in ZooKeeper
        self.touched = replica.ctx.now

    @property
    def cold(self) -> bool:
        """Whether this member has nothing: it may only open a group that nobody has."""
        return not self.replica.normal

    # ---- promises ------------------------------------------------------------------------------

    def ask(self) -> None:
        """Ask everybody who has not promised yet."""
        r = self.replica
        for peer in r.ctx.peers:
            if peer not in self.proms:
                r.ctx.send(peer, Preq(r.g, r.floor, self.epoch))

    def on_prom(self, peer: str, prom: Prom) -> None:
        """A promise for this epoch."""
        if prom.epoch != self.epoch or self.best or self.raising:
            return
        self.proms[peer] = prom
        self.consider()

    def forget(self, peer: str) -> None:
        """The life of a member that promised has ended."""
        self.proms.pop(peer, None)
        if self.best == peer:
            self.give_up("the member with the best log has gone")

    def consider(self) -> None:
        """Open as soon as the promises suffice."""
        cluster = self.replica.ctx.cluster
        if self.accept_loss:
            return  # an operator's bid waits its full time: see tick
        normal = {m: p for m, p in self.proms.items() if p.normal}
        if self.cold:
            if normal:
                self.give_up("a NORMAL member answered a cold start")
            elif len(self.proms) == len(cluster.members) or (
                self.never_opened and len(self.proms) >= cluster.promises
            ):
                self._raise_floor()
        elif len(normal) >= cluster.promises:
            self._take_best(normal)

    def tick(self) -> None:
        """Ask again, or give up when nothing moves."""
        waited = self.replica.ctx.now - self.touched
        if self.accept_loss and not self.best and not self.raising:
            missing = self._missing()
            if not missing:
                self._accept_loss()
            elif waited > TAKEOVER_PATIENCE:
                # They may hold everything: nobody who merely cannot see them may throw it away.
                self.give_up(missing)
        elif waited > TAKEOVER_PATIENCE and not self.raising:
            self.give_up(f"{len(self.proms)} promises in time")

    def give_up(self, why: str) -> None:
        """Leave the epoch unopened: its node goes away, someone may stand again, a bit later."""
        self.replica.wait_until = self.replica.ctx.now + RETRY_ELECTION
        self.replica.step_down(why)

    # ---- the best tail -------------------------------------------------------------------------

    def _take_best(self, normal: dict[str, Prom]) -> None:
        r = self.replica
        best = max(normal, key=lambda m: (normal[m].last_epoch, normal[m].last, m == r.ctx.me))
        prom = normal[best]
        if best == r.ctx.me or (prom.last_epoch, prom.last) == (r.log.last_epoch, r.log.last):
            self._open()
        elif prom.base > r.commit:
            # It holds what this member cannot fetch any more: let that one coordinate.
            r.ctx.send(best, Invite(r.g, r.floor, self.epoch))
            self.give_up(f"{best} holds more")
        else:
            self.best, self.best_prom = best, prom
            self.touched = r.ctx.now
            self.fetch()

    def fetch(self) -> None:
        """Ask for what is still missing of the best tail; again, when that may have been lost."""
        r = self.replica
        after = r.commit + len(self.staged)
        r.ctx.send(self.best, Fetch(r.g, r.floor, self.epoch, after))

    def on_fetched(self, peer: str, message: Fetched) -> None:
        """Stage a part of the best tail; all of it there: swap and open."""
        r, prom = self.replica, self.best_prom
        after = r.commit + len(self.staged)
        if prom is None or peer != self.best or message.epoch != self.epoch:
            return
        if message.after != after or not message.entries:
            return
        self.staged.extend(message.entries)
        self.touched = r.ctx.now
        last = r.commit + len(self.staged)
        if last < prom.last:
            self.fetch()
        elif last == prom.last and self.staged[-1].epoch == prom.last_epoch:
            r.truncate(r.commit)
            r.extend(self.staged)
            r.mark_time()
            self._open()
        else:
            self.give_up("the fetched tail is not the promised one")

    # ---- opening -------------------------------------------------------------------------------

    def _open(self) -> None:
        """Become the coordinator. Nothing of this epoch commits before its NOOP has Q copies."""
        r = self.replica
        commits = {m: p.commit for m, p in self.proms.items() if p.normal}
        committed = max(commits.values(), default=0)
        if committed > r.commit:
            r.ctx.tell_watch("told", r.g, self.epoch, committed)
            r.advance(committed)
        r.role = Role.COORDINATOR
        r.bid = None
        r.leading = Leading(r, commits)
        r.ctx.note("open", r.g, self.epoch, r.log.last + 1)
        r.ctx.last_takeover = r.ctx.now
        r.leading.append_control(NOOP)
        r.learn_leader(r.ctx.me, self.epoch)

    # ---- cold start and operator recovery ------------------------------------------------------

    def _missing(self) -> str:
        """Why an operator's bid must not go on: who lives and is silent, or too few answered."""
        silent = self.registered - self.proms.keys()
        if silent:
            return f"{', '.join(sorted(silent))} live and do not answer"
        needed = 1 if self.without_quorum else self.replica.ctx.cluster.promises
        if len(self.proms) < needed:
            return f"only {len(self.proms)} of {needed} members answer"
        return ""

    def _accept_loss(self) -> None:
        """Take what the best reachable member has, or nothing; the floor tells everybody."""
        normal = {m: p for m, p in self.proms.items() if p.normal}
        if len(normal) >= self.replica.ctx.cluster.promises and not self.cold:
            self._take_best(normal)  # nothing is lost: an ordinary takeover
            return
        best = max(normal, key=lambda m: (normal[m].last_epoch, normal[m].last), default="")
        mine = (self.replica.log.last_epoch, self.replica.log.last)
        if best and (self.cold or (normal[best].last_epoch, normal[best].last) > mine):
            self.give_up(f"{best} has a better copy: recover there")
        else:
            self._raise_floor()

    def _raise_floor(self) -> None:
        r = self.replica
        self.raising = True
        procedure = raise_floor(r.ctx.paths, r.g, r.ctx.me, r.ctx.boot, self.epoch)
        r.ctx.run(procedure, self._raised)

    def _raised(self, done: object) -> None:
        r = self.replica
        if r.bid is not self:
            return
        if not done:
            self.give_up("another epoch was given out before the floor rose")
            return
        r.floor = self.epoch
        r.ctx.tell_watch("floor", r.g, self.epoch, r.log.last)
        if self.cold:
            r.clear()
            r.become_normal()
        else:
            self._stamp_tail_anew()
            r.ctx.ready.installed.append(r.g)  # every subscriber is told that history was lost
        self.proms = {}
        self._open()

    def _stamp_tail_anew(self) -> None:
        """What is not committed here goes on as part of the new history, not of the lost one.

        Under its old epoch it would be delivered below the floor, behind subscribers that were
        told to go on from there.
        """
        r = self.replica
        tail = r.log.between(r.commit, r.log.last)
        r.truncate(r.commit)
        anew = [msgspec.structs.replace(entry, epoch=self.epoch) for entry in tail]
        r.extend(anew, own=True)


def begin(replica: Replica, elected: Elected, accept_loss: RecoverWanted | None) -> None:
    """The election is won: promise the epoch to oneself and ask for the promises of others."""
    ctx = replica.ctx
    stale = elected.floor > replica.floor
    if stale:
        replica.raise_floor(elected.floor)
    if stale or not replica.may_promise(elected.epoch, ctx.me):
        # A late result: in the meantime this member promised a later epoch.
        replica.release(elected.epoch)
        return
    replica.promise(elected.epoch, ctx.me)
    replica.role = Role.CANDIDATE
    replica.epoch = elected.epoch
    replica.forget_leader()
    ctx.note("elect", replica.g, elected.epoch, replica.log.last)
    bid = replica.bid = Bid(replica, elected, accept_loss)
    bid.proms[ctx.me] = replica.own_promise()
    bid.ask()
    bid.consider()


def on_fetch(replica: Replica, peer: str, message: Fetch) -> None:
    """Give a candidate what was promised to it, only while the promise stands."""
    if message.epoch != replica.promised or replica.promised_to != peer:
        replica.ctx.send(peer, Nack(replica.g, replica.floor, replica.promised))
    elif replica.normal and replica.log.base <= message.after < replica.log.last:
        entries = replica.log.entries(message.after, CHUNK_BYTES)
        fetched = Fetched(replica.g, replica.floor, message.epoch, message.after, entries)
        replica.ctx.send(peer, fetched)
