"""When a member stands for a group: who may, in which order, how many at a time.

All of this is about availability. Safety does not depend on who stands or when: the epoch comes
from ZooKeeper and what it may do comes from promises.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from coordinator.cluster import ELECTIONS_IN_FLIGHT, OPERATOR_WAIT, RANK_DELAY, RETRY_ELECTION
from coordinator.context import Context
from coordinator.events import RecoverWanted
from coordinator.keeper import Elected, NotElected, elect
from coordinator.replica import Replica, Role
from coordinator.takeover import begin
from migratory.wire.ids import rank


class Elections:
    """The elections of one member over all groups."""

    def __init__(
        self,
        ctx: Context,
        replicas: list[Replica],
        on_boots: Callable[[dict[str, object]], None],
        reattach: Callable[[Replica], None],
    ) -> None:
        self.ctx = ctx
        self.replicas = replicas
        self.on_boots = on_boots
        self.reattach = reattach
        self.ranks = [rank(g, ctx.cluster.members) for g in range(len(replicas))]
        self.in_flight = 0

    def tick(self) -> bool:
        """Stand where it is time to. True while some group has no coordinator.

        Where someone waits, here or at another member, comes first: the other groups give way for
        a moment, since elections share what ZooKeeper can do.
        """
        leaderless = [r for r in self.replicas if self._leaderless(r)]
        if not leaderless:
            return False
        wanted = self._wanted(leaderless)
        leaderless.sort(key=lambda r: r.g not in wanted)
        for replica in leaderless:
            if self.in_flight >= ELECTIONS_IN_FLIGHT:
                break
            if replica.standing or self.ctx.now < replica.wait_until:
                continue
            way = RANK_DELAY if wanted and replica.g not in wanted else 0.0
            if self._my_turn(replica, way):
                self.stand(replica)
        return True

    def _leaderless(self, replica: Replica) -> bool:
        """Whether no coordinator of the group is heard."""
        if replica.role is not Role.FOLLOWER:
            return False
        leader = replica.leader
        if leader and leader != self.ctx.me and not self.ctx.peers[leader].reached:
            if not self._gone(leader):
                return False
            replica.forget_leader()
        return not replica.leader

    def _gone(self, leader: str) -> bool:
        """Whether a coordinator that is not heard here is heard by nobody who counts."""
        ctx = self.ctx
        if ctx.suspicion(leader) >= ctx.cluster.promises:
            return True
        silent = ctx.now - ctx.peers[leader].heard > ctx.cluster.session / 2
        return silent and not any(leader in p.reaches for p in ctx.reached())

    def _wanted(self, leaderless: list[Replica]) -> set[int]:
        """Those of these groups in which publications wait, as far as this member knows."""
        elsewhere = frozenset[int]().union(*(peer.wants for peer in self.ctx.reached()))
        return {r.g for r in leaderless if r.contact.waiting or r.g in elsewhere}

    def _my_turn(self, replica: Replica, way: float) -> bool:
        """Whether this member may stand now, by its rank among those that may, after `way`."""
        eligible = self._eligible(replica)
        if self.ctx.me not in eligible:
            self._say_who_waits(replica, eligible)
            return False
        order = [m for m in self.ranks[replica.g] if m in eligible]
        delay = order.index(self.ctx.me) * RANK_DELAY
        return self.ctx.now >= replica.leaderless_since + delay + way

    def _eligible(self, replica: Replica) -> set[str]:
        """Members that may stand: NORMAL ones with T in contact, or everybody in a cold start."""
        ctx, g = self.ctx, replica.g
        normal = {p.member for p in ctx.reached() if p.normal_in(g)}
        if replica.normal:
            normal.add(ctx.me)
        if len(normal) >= ctx.cluster.promises:
            return self._rather_staying(normal)
        recovering = {p.member for p in ctx.reached() if p.recovering_in(g)} | {ctx.me}
        needed = ctx.cluster.promises if replica.floor == 0 else len(ctx.cluster.members)
        if not normal and len(recovering) >= needed:
            return self._rather_staying(recovering)
        return set()

    def _rather_staying(self, members: set[str]) -> set[str]:
        """Without those that are about to leave, unless there is nobody else."""
        return {m for m in members if not self._draining(m)} or members

    def _draining(self, member: str) -> bool:
        return self.ctx.draining if member == self.ctx.me else self.ctx.peers[member].draining

    def _say_who_waits(self, replica: Replica, eligible: set[str]) -> None:
        """A group that nobody can take over for long waits for the operator."""
        waited = self.ctx.now - replica.leaderless_since
        if not eligible and waited > OPERATOR_WAIT:
            if not replica.waits_for_operator:
                self.ctx.note("waits_for_operator", replica.g, replica.promised)
            replica.waits_for_operator = True

    def stand(
        self,
        replica: Replica,
        depose: frozenset[str] = frozenset(),
        *,
        accept_loss: RecoverWanted | None = None,
    ) -> None:
        """Ask ZooKeeper for the next epoch of a group."""
        ctx = self.ctx
        suspects = {m for m in ctx.peers if ctx.suspicion(m) >= ctx.cluster.promises}
        procedure = elect(ctx.paths, replica.g, ctx.me, ctx.boot, depose | suspects)
        replica.standing = True
        self.in_flight += 1
        ctx.run(procedure, partial(self._answer, replica, accept_loss, ctx.sessions))

    def _answer(
        self, replica: Replica, accept_loss: RecoverWanted | None, sessions: int, result: object
    ) -> None:
        replica.standing = False
        self.in_flight -= 1
        if isinstance(result, Elected):
            self.on_boots(dict(result.boots))
            begin(replica, result, accept_loss)
            if sessions != self.ctx.sessions and replica.role is not Role.FOLLOWER:
                self.reattach(replica)  # the node went away with the session that created it
        elif isinstance(result, NotElected):
            replica.wait_until = self.ctx.now + RETRY_ELECTION
            if result.floor > replica.floor:
                replica.raise_floor(result.floor)
