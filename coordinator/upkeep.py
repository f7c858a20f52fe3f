"""What a member does about itself as time passes: recover, catch up, notice that it is alone.

All of it is about availability and about clients: none of it can make an answer wrong.
"""

from __future__ import annotations

from coordinator.cluster import BEHIND_PATIENCE, TRANSFERS_IN_FLIGHT
from coordinator.context import Context
from coordinator.replica import Replica, Role
from migratory.wire.peer import CatchReq, SyncReq


class Upkeep:
    """The member's care for its own groups, and whether clients may be here."""

    def __init__(self, ctx: Context, replicas: list[Replica]) -> None:
        self.ctx = ctx
        self.replicas = replicas
        self.serving = False  # clients may be here
        self._isolated_since: float | None = None
        session = ctx.cluster.session
        self._heartbeat_every = session / 20
        self._suspect_after = session / 4
        self._alone_after = session / 2

    def keep_quorum(self, replica: Replica) -> None:
        """A coordinator that reaches fewer than Q members for long lets the group go."""
        leading = replica.leading
        if leading is None:
            return
        reached = 1 + sum(1 for _ in self.ctx.reached())
        # Before the first commit of a new history nobody else may be NORMAL in it, and then only
        # its founder can open it to the others: without one the group would need an operator.
        founding = replica.commit == 0 and replica.floor == leading.epoch
        if reached >= self.ctx.cluster.copies or founding:
            leading.with_quorum = self.ctx.now
        elif self.ctx.now - leading.with_quorum > self._alone_after:
            replica.step_down(f"reaches {reached} of {self.ctx.cluster.copies} members")
            replica.wait_until = self.ctx.now + self._suspect_after

    def recover(self) -> bool:
        """Ask coordinators for the state of missing groups, a few at a time; True while any is."""
        busy = 0
        wanted = []
        for replica in self.replicas:
            incoming = replica.incoming
            if incoming is not None and not incoming.tick():
                replica.incoming = incoming = None
            if incoming is not None:
                busy += not replica.normal
            elif not replica.normal and replica.role is Role.FOLLOWER:
                wanted.append(replica)
        under_way = bool(busy or wanted)
        for replica in wanted:
            if busy >= TRANSFERS_IN_FLIGHT:
                break
            leader = replica.leader
            if leader and leader != self.ctx.me and self.ctx.peers[leader].reached:
                busy += 1
                if self.ctx.now >= replica.wait_until:
                    replica.wait_until = self.ctx.now + 0.2
                    request = SyncReq(replica.g, replica.floor, replica.promised)
                    self.ctx.send(leader, request)
        return under_way

    def catch_up(self) -> None:
        """Committed elsewhere and not streamed here: ask whoever has it."""
        worst = None
        for replica in self.replicas:
            g, commit = replica.g, replica.commit
            ahead = [p for p in self.ctx.reached() if p.normal_in(g) and p.commits[g] > commit]
            if not ahead or not replica.normal:
                replica.behind_since = None
                continue
            if replica.behind_since is None or commit >= replica.behind_target:
                replica.behind_since = self.ctx.now
                replica.behind_target = max(p.commits[g] for p in ahead)
            elif self._not_streamed(replica):
                best = max(ahead, key=lambda p: p.commits[replica.g])
                self.ctx.send(best.member, CatchReq(g, replica.floor, commit))
            if self.ctx.now - replica.behind_since > BEHIND_PATIENCE:
                worst = replica
        if worst is not None and self.serving:
            self._close_clients("BEHIND", f"group {worst.g}")

    def _not_streamed(self, replica: Replica) -> bool:
        """Whether this member is on its own: no App for two heartbeats, no transfer."""
        silent = self.ctx.now - replica.appended_at > 2 * self._heartbeat_every
        return silent and replica.role is Role.FOLLOWER and replica.incoming is None

    def isolation(self) -> None:
        """Clients are here only while this member is up to date and not alone."""
        others = len(self.ctx.cluster.members) // 2
        reached = sum(1 for _ in self.ctx.reached())
        if reached >= others:
            self._isolated_since = None
        elif self._isolated_since is None:
            self._isolated_since = self.ctx.now
        elif self.ctx.now - self._isolated_since > self._alone_after and self.serving:
            self._close_clients("ISOLATED", f"reaches {reached} of {others} members")
        if self.serving or self._isolated_since is not None or self.ctx.draining:
            return
        ready = all(r.normal or r.waits_for_operator for r in self.replicas)
        behind = any(r.behind_since is not None for r in self.replicas)
        if ready and not behind:
            self.serving = True
            self.ctx.note("serving")

    def _close_clients(self, code: str, why: str) -> None:
        self.serving = False
        self.ctx.ready.close_clients = code
        self.ctx.note("close_clients", detail=f"{code}: {why}")
