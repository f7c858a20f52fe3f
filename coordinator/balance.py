"""Giving groups away on purpose: hand-over of one group, draining a member, rebalancing.

A hand-over stops accepting, waits until everything is committed, then invites the target, which
stands at once. If that does not happen in time, the coordinator accepts again; publications that
came meanwhile were held and are stamped then. Nothing here affects safety.

Only a member whose ZooKeeper answers can stand, so only such a one is a target: each asks now and
then, and says in its heartbeats whether there was an answer. Otherwise groups would stop for
nothing, again and again for as long as ZooKeeper is away. Who gives a group needs no ZooKeeper.
"""

from __future__ import annotations

from coordinator.cluster import (
    DRAIN_NOTICE,
    HANDOVER_COMMIT,
    HANDOVER_PREQ,
    HANDOVER_REST,
    HANDOVERS_IN_FLIGHT,
    REBALANCE_EVERY,
    REBALANCE_QUIET,
)
from coordinator.context import Context, PeerView
from coordinator.keeper import synced
from coordinator.replica import Replica
from migratory.wire.ids import rank
from migratory.wire.peer import Invite


class Balance:
    """Hand-overs of one member."""

    def __init__(self, ctx: Context, replicas: list[Replica]) -> None:
        self.ctx = ctx
        self.replicas = replicas
        self.drain_now = False
        self.drained = False
        self._drain_since = 0.0
        self._told: set[str] = set()
        self._last_move = ctx.now
        self._moves = 0
        self._failed: dict[str, float] = {}  # members that lately did not take a group, since when
        self._asking = False  # whether ZooKeeper owes an answer
        self._asked = self._answered = float("-inf")

    @property
    def led(self) -> list[Replica]:
        """The groups coordinated here."""
        return [r for r in self.replicas if r.leading is not None]

    def tick(self) -> bool:
        """Go on with hand-overs; True while something is under way."""
        self._ask_keeper()
        moving = [r for r in self.led if r.leading is not None and r.leading.handing_to]
        for replica in moving:
            self._go_on(replica)
        if self.ctx.draining:
            self._drain(len(moving))
        else:
            self._rebalance(len(moving))
        return bool(moving) or (self.ctx.draining and not self.drained)

    @property
    def keeper_answers(self) -> bool:
        """Whether this member could stand, as far as ZooKeeper is concerned."""
        return self.ctx.now - self._answered <= self.ctx.cluster.session / 2

    def _ask_keeper(self) -> None:
        """Often enough that an answer is never older than half of what counts."""
        if not self._asking and self.ctx.now - self._asked >= self.ctx.cluster.session / 4:
            self._asking, self._asked = True, self.ctx.now
            self.ctx.run(synced(), self._on_answer)

    def _on_answer(self, _: object) -> None:
        self._asking = False
        self._answered = self.ctx.now

    # ---- one hand-over -------------------------------------------------------------------------

    def hand_over(self, replica: Replica, to: str) -> None:
        """Begin to give a group to a member."""
        leading = replica.leading
        if leading is not None and not leading.handing_to:
            leading.handing_to = to
            leading.handover_since = self.ctx.now
            leading.invited = False
            self.ctx.note("hand_over", replica.g, replica.epoch, replica.log.last, to)
            self._go_on(replica)

    def _go_on(self, replica: Replica) -> None:
        leading = replica.leading
        assert leading is not None
        waited = self.ctx.now - leading.handover_since
        if leading.invited:
            if waited > HANDOVER_PREQ:
                self._accept_again(replica)
        elif replica.commit == replica.log.last:
            leading.invited = True
            leading.handover_since = self.ctx.now
            self.ctx.send(leading.handing_to, Invite(replica.g, replica.floor, replica.epoch))
        elif waited > HANDOVER_COMMIT:
            self._accept_again(replica)

    def _accept_again(self, replica: Replica) -> None:
        leading = replica.leading
        assert leading is not None
        self.ctx.note("hand_over_failed", replica.g, replica.epoch, detail=leading.handing_to)
        self._failed[leading.handing_to] = self.ctx.now
        leading.handing_to = ""
        held, leading.held = leading.held, []
        for contact, via, items in held:
            leading.publish(contact, items, via)

    # ---- drain ---------------------------------------------------------------------------------

    def _drain(self, moving: int) -> None:
        """Give everything away, once the others can take it."""
        if self.drained:
            return
        if not self.drain_now and not self._may_leave():
            return
        led = self.led
        targets = {replica.g: self._target(replica) for replica in led}
        if led and not any(targets.values()):
            self._say_what_waits("nobody could take a group: members rest, or lack ZooKeeper")
            return
        self.ctx.leaving = True
        if not led:
            # A bid that is under way may still open a group here.
            self.drained = not any(r.standing or r.bid is not None for r in self.replicas)
            self.ctx.ready.drained = self.drained
            return
        for replica in led:
            if moving >= HANDOVERS_IN_FLIGHT:
                break
            target = targets[replica.g]
            if target and replica.leading is not None and not replica.leading.handing_to:
                self.hand_over(replica, target)
                moving += 1

    def begin_drain(self) -> None:
        """The operator wants this member to leave."""
        if not self.ctx.draining:
            self.ctx.draining = True
            self._drain_since = self.ctx.now

    def _may_leave(self) -> bool:
        """Members leave in turn, since what those that left together forget may be everything.

        Before its turn a member waits until the others have heard of it. So of two that do not
        know of each other the lower id sees in time that the higher one goes.
        """
        if not self._others_ready():
            self._say_what_waits("another member is not NORMAL in all groups")
            return False
        if self.ctx.leaving:
            return True
        peers = self.ctx.peers.values()
        if any(p.leaving or (p.draining and p.member < self.ctx.me) for p in peers):
            self._say_what_waits("another member leaves first")
            return False
        return self.ctx.now - self._drain_since >= DRAIN_NOTICE

    def _say_what_waits(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            self.ctx.note("drain_waits", detail=why)

    def _others_ready(self) -> bool:
        """Whether every other member is NORMAL in all groups."""
        return all(p.reached and p.normal_since is not None for p in self.ctx.peers.values())

    def _target(self, replica: Replica) -> str:
        """The best-ranked member that could coordinate the group instead."""
        for member in rank(replica.g, self.ctx.peers):
            peer = self.ctx.peers[member]
            if peer.reached and peer.normal_in(replica.g) and self._takes(peer, HANDOVER_REST):
                return member
        return ""

    def _takes(self, peer: PeerView, rest: float) -> bool:
        """Whether a member would stand if it were invited; one that lately did not gets a rest."""
        since = self.ctx.now - self._failed.get(peer.member, float("-inf"))
        return peer.keeper and not peer.draining and since >= rest

    # ---- rebalance -----------------------------------------------------------------------------

    def _rebalance(self, moving: int) -> None:
        """Give one group at a time to the member that coordinates the fewest."""
        now = self.ctx.now
        if moving or now - self._last_move < REBALANCE_EVERY:
            return
        if now - self.ctx.last_takeover < REBALANCE_QUIET:
            return
        led = self.led
        targets = [p for p in self.ctx.reached() if self._steady(p)]
        if not targets:
            return
        live = 1 + sum(not p.draining for p in self.ctx.reached())
        fair = -(-len(self.replicas) // live)
        if len(led) <= fair + 1:
            return
        target = min(targets, key=lambda p: len(p.leads))
        if len(target.leads) < fair:
            self._last_move = now
            self._moves += 1  # another one each time: one that will not go must not block the rest
            self.hand_over(led[self._moves % len(led)], target.member)

    def _steady(self, peer: PeerView) -> bool:
        since = peer.normal_since
        quiet = since is not None and self.ctx.now - since >= REBALANCE_QUIET
        return quiet and self._takes(peer, REBALANCE_QUIET)
