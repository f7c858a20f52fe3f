"""One member: all its groups, what it knows of its peers, its timers.

`step` takes an event and the member's own monotonic time; `take_ready` gives the effects;
`collect` gives the entries that wait for a peer. A member with a timer that fires late knows that
it was paused and gives everybody the benefit of the doubt before it suspects anyone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cache.retention import Retention
from coordinator.balance import Balance
from coordinator.cluster import BUSY_TICK, Cluster
from coordinator.context import Context, PeerView, new_ready
from coordinator.dispatch import GROUP_MESSAGES
from coordinator.election import Elections
from coordinator.events import (
    BarrierWanted,
    DrainWanted,
    Event,
    KeeperAnswer,
    LinkDown,
    LinkUp,
    Publish,
    Ready,
    Received,
    RecoverWanted,
    SessionOpened,
    Tick,
)
from coordinator.keeper import GroupNode, reattach
from coordinator.replica import Replica, Role
from coordinator.upkeep import Upkeep
from migratory.wire.ids import Boot, group_of
from migratory.wire.peer import App, Heartbeat, Invite, Nack, PeerMessage, Preq, Publication


class Member:
    """See the module's docstring."""

    def __init__(
        self,
        cluster: Cluster,
        me: str,
        boot: Boot,
        groups: list[GroupNode],
        boots: dict[str, Boot],
        retention: Retention,
        now: float,
        wall: Callable[[], int],
    ) -> None:
        self.ctx = Context(cluster, me, boot, retention, now, wall)
        self.replicas = [Replica(self.ctx, g, node) for g, node in enumerate(groups)]
        self.elections = Elections(self.ctx, self.replicas, self._learn_boots, self._reattach)
        self.balance = Balance(self.ctx, self.replicas)
        self.upkeep = Upkeep(self.ctx, self.replicas)
        self._next_heartbeat = now
        self._next_doubt = now  # when the first peer that stays silent will be suspected
        self._expected_tick = now
        self._busy = True
        session = cluster.session
        self._heartbeat_every = session / 20
        self._suspect_after = session / 4
        self._handlers: dict[type, Callable[[Any], None]] = {
            Received: self._on_received,
            LinkUp: self._on_link_up,
            LinkDown: self._on_link_down,
            Publish: self._on_publish,
            BarrierWanted: self._on_barrier_wanted,
            KeeperAnswer: self._on_keeper_answer,
            SessionOpened: self._on_session_opened,
            DrainWanted: self._on_drain,
            RecoverWanted: self._on_recover,
            Tick: self._on_tick,
        }
        self._learn_boots(boots)
        self.ctx.note("boot", detail=str(boot))

    def __repr__(self) -> str:
        led = sum(r.leading is not None for r in self.replicas)
        normal = sum(r.normal for r in self.replicas)
        groups = len(self.replicas)
        return f"{self.ctx.me}({self.ctx.boot}) NORMAL in {normal}/{groups} coordinates {led}"

    @property
    def serving(self) -> bool:
        """Whether clients may be here."""
        return self.upkeep.serving

    # ---- in and out ----------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> None:
        """Take one event."""
        self.ctx.now = now
        self._handlers[type(event)](event)

    def take_ready(self) -> Ready:
        """The effects since the last call."""
        ready, self.ctx.ready = self.ctx.ready, new_ready()
        return ready

    def collect(self, peer: str, room: int) -> list[PeerMessage]:
        """Entries for a peer whose link has room for so many bytes."""
        waiting = self.ctx.waiting_for_peer[peer]
        messages: list[PeerMessage] = []
        while waiting and room > 0:
            g = next(iter(waiting))
            replica = self.replicas[g]
            leading = replica.leading
            message = leading.next_message(peer, room) if leading is not None else None
            if message is None:
                del waiting[g]
                continue
            messages.append(message)
            if isinstance(message, App):
                upto = message.prev + len(message.entries)
                room -= replica.log.size_between(message.prev, upto) + 64
        return messages

    def next_wake(self) -> float:
        """When a Tick is due at the latest."""
        wake = min(self._next_heartbeat, self._next_doubt)
        return min(wake, self._expected_tick) if self._busy else wake

    # ---- peers ---------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        """A frame of a peer: only its latest known life is listened to."""
        peer = self.ctx.peers.get(event.peer)
        if peer is None or event.boot < peer.boot:
            return
        if event.boot > peer.boot:
            self._learn_boots({event.peer: event.boot})
        self._heard(peer)
        replicas = self.replicas
        for message in event.messages:
            handler = GROUP_MESSAGES.get(type(message))
            if handler is not None:
                g: int = message.g  # type: ignore[union-attr]
                if 0 <= g < len(replicas) and self._same_floor(replicas[g], event.peer, message):
                    handler(replicas[g], event.peer, message)
            elif isinstance(message, Heartbeat):
                self._on_heartbeat(peer, message)
            elif isinstance(message, Invite):
                self._on_invite(event.peer, message)

    def _same_floor(self, replica: Replica, peer: str, message: Any) -> bool:
        """Histories of different floors do not talk; the lower one is void."""
        floor: int = message.floor
        if floor < replica.floor:
            self.ctx.send(peer, Nack(replica.g, replica.floor, replica.promised))
            return False
        if floor > replica.floor:
            replica.raise_floor(floor)
        return True

    def _heard(self, peer: PeerView) -> None:
        peer.heard = self.ctx.now
        peer.refused = False
        if peer.suspected and peer.linked:
            peer.suspected = False
            self.ctx.note("trust", detail=peer.member)
            self._announce()
            for replica in self.replicas:
                if replica.leader == peer.member:
                    replica.contact.forward_all()

    def _on_link_up(self, event: LinkUp) -> None:
        """What was sent on an earlier link may be lost: followers are asked where they are."""
        peer = self.ctx.peers[event.peer]
        if event.boot < peer.boot:
            return
        self._learn_boots({event.peer: event.boot})
        peer.linked = True
        self._heard(peer)
        self.ctx.send(event.peer, self._heartbeat())
        for replica in self.replicas:
            replica.begin_transfer_anew(event.peer)
            if replica.leading is not None:
                replica.leading.reset_follower(event.peer)
            elif replica.bid is not None and event.peer not in replica.bid.proms:
                self.ctx.send(event.peer, Preq(replica.g, replica.floor, replica.epoch))
            elif replica.bid is not None and replica.bid.best == event.peer:
                replica.bid.fetch()
            elif replica.leader == event.peer:
                replica.contact.forward_all()

    def _on_link_down(self, event: LinkDown) -> None:
        """A link that broke is redialled at once; where nobody listens, nobody lives."""
        peer = self.ctx.peers[event.peer]
        peer.linked = False
        peer.commits = []  # what it says next counts, not what it said before
        peer.refused = peer.refused or event.refused
        if event.refused:
            self._suspect(peer, "connection refused")

    def _suspect(self, peer: PeerView, why: str) -> None:
        if not peer.suspected:
            peer.suspected = True
            peer.commits = []
            peer.leads = {}
            peer.normal_since = None
            self.ctx.note("suspect", detail=f"{peer.member}: {why}")
            self._announce()

    def _learn_boots(self, boots: dict[str, Any]) -> None:
        """Later lives of members: what earlier ones promised or acknowledged counts no more."""
        for member, boot in boots.items():
            if member == self.ctx.me:
                if boot > self.ctx.boot:
                    self.ctx.ready.exit = "SUPERSEDED"
                continue
            peer = self.ctx.peers.get(member)
            if peer is None or boot <= peer.boot:
                continue
            peer.boot = boot
            peer.commits = []
            peer.leads = {}
            peer.normal_since = None
            for replica in self.replicas:
                if replica.leader == member:
                    replica.forget_leader()
                if replica.leading is not None:
                    replica.leading.forget_follower(member)
                elif replica.bid is not None:
                    replica.bid.forget(member)

    # ---- heartbeats ----------------------------------------------------------------------------

    def _heartbeat(self) -> Heartbeat:
        return Heartbeat(
            [(r.g, r.epoch, r.floor) for r in self.replicas if r.leading is not None],
            [r.commit if r.normal else -1 for r in self.replicas],
            [p.member for p in self.ctx.reached()],
            [p.member for p in self.ctx.peers.values() if p.suspected],
            self.ctx.draining,
            self._knows(),
            self.ctx.leaving,
            [r.g for r in self.replicas if r.contact.waiting and not self._led(r)],
            self.balance.keeper_answers,
        )

    def _led(self, replica: Replica) -> bool:
        """Whether a coordinator of the group can be talked to."""
        leader = replica.leader
        return leader == self.ctx.me or (bool(leader) and self.ctx.peers[leader].reached)

    def _knows(self) -> list[tuple[int, int, int]]:
        """Coordinators that this member hears, for those that do not."""
        members, peers = self.ctx.cluster.members, self.ctx.peers
        return [
            (r.g, r.leader_epoch, members.index(r.leader))
            for r in self.replicas
            if r.leader in peers and peers[r.leader].reached
        ]

    def _announce(self) -> None:
        """Tell everybody at the end of this step."""
        self._next_heartbeat = self.ctx.now

    def _on_heartbeat(self, peer: PeerView, message: Heartbeat) -> None:
        groups, members = len(self.replicas), len(self.ctx.cluster.members)
        if len(message.commits) != groups or not all(
            0 <= g < groups and 0 <= index < members for g, _, index in message.knows
        ):
            return
        peer.commits = message.commits
        peer.reaches = frozenset(message.reaches)
        peer.suspects = frozenset(message.suspects)
        peer.draining = message.draining
        peer.leaving = message.leaving
        peer.wants = frozenset(message.wants)
        peer.keeper = message.keeper
        if min(message.commits) < 0:
            peer.normal_since = None
        elif peer.normal_since is None:
            peer.normal_since = self.ctx.now
        leads = {g: epoch for g, epoch, _ in message.leads}
        if leads != peer.leads:
            for g, epoch, floor in message.leads:
                if 0 <= g < len(self.replicas) and floor >= self.replicas[g].floor:
                    self.replicas[g].learn_leader(peer.member, epoch)
            for g in peer.leads.keys() - leads.keys():
                if self.replicas[g].leader == peer.member:
                    self.replicas[g].forget_leader()
            peer.leads = leads
        self._compare(peer, message)

    def _compare(self, peer: PeerView, message: Heartbeat) -> None:
        """What is believed of coordinators against what a heartbeat says of them."""
        silent = self.ctx.now - 2 * self._heartbeat_every
        for replica in self.replicas:
            leads = peer.leads.get(replica.g)
            if leads is not None and not replica.leader:
                replica.learn_leader(peer.member, leads)  # it was forgotten by mistake
            elif leads is None and replica.leader == peer.member and replica.appended_at < silent:
                replica.forget_leader()  # it stepped down before a heartbeat said that it leads
        members = self.ctx.cluster.members
        for g, epoch, index in message.knows:
            # Behind a cut: a coordinator that only the sender hears.
            member = members[index]
            if member != self.ctx.me and not self.ctx.peers[member].reached:
                self.replicas[g].learn_leader(member, epoch)

    def _on_invite(self, peer: str, message: Invite) -> None:
        """A coordinator hands a group over, or a candidate found that this member holds more."""
        replica = self.replicas[message.g]
        if not self._same_floor(replica, peer, message) or message.epoch < replica.promised:
            return
        if replica.normal and replica.role is Role.FOLLOWER and not replica.standing:
            self.elections.stand(replica, frozenset({peer}))

    # ---- clients -------------------------------------------------------------------------------

    def _on_publish(self, event: Publish) -> None:
        """Publications of own clients, grouped, each group in their order."""
        groups = len(self.replicas)
        by_group: dict[int, list[Publication]] = {}
        for item in event.items:
            g = group_of(item.topic, groups)
            items = by_group.get(g)
            if items is None:
                by_group[g] = [item]
            else:
                items.append(item)
        for g, items in by_group.items():
            self.replicas[g].contact.submit(items)
        self._busy = True

    def _on_barrier_wanted(self, event: BarrierWanted) -> None:
        self.replicas[event.g].contact.want_barrier(event.ref)
        self._busy = True

    # ---- ZooKeeper and the operator ------------------------------------------------------------

    def _on_keeper_answer(self, event: KeeperAnswer) -> None:
        then = self.ctx.answers.pop(event.token, None)
        if then is not None:
            then(event.value)

    def _on_session_opened(self, _: SessionOpened) -> None:
        """Coordinators and candidates put their nodes back, under the same epoch."""
        self.ctx.sessions += 1
        for replica in self.replicas:
            if replica.role is not Role.FOLLOWER:
                self._reattach(replica)

    def _reattach(self, replica: Replica) -> None:
        ctx, epoch = self.ctx, replica.epoch

        def then(result: object) -> None:
            holds = replica.role is not Role.FOLLOWER and replica.epoch == epoch
            if isinstance(result, GroupNode):
                if holds and result.epoch > epoch:
                    replica.step_down(f"epoch {result.epoch} was given out")
            elif not holds:
                replica.release(epoch)

        ctx.run(reattach(ctx.paths, replica.g, ctx.me, ctx.boot, epoch), then)

    def _on_drain(self, event: DrainWanted) -> None:
        self.balance.begin_drain()
        self.balance.drain_now = self.balance.drain_now or event.now
        self._announce()
        self._busy = True

    def _on_recover(self, event: RecoverWanted) -> None:
        """The operator decided: stand, whoever is missing."""
        for g in event.groups:
            replica = self.replicas[g]
            if not replica.leader and not replica.standing and replica.role is Role.FOLLOWER:
                self.elections.stand(replica, accept_loss=event)
            else:
                self.ctx.note("recover_refused", g, replica.promised, detail="it is not leaderless")

    # ---- time ----------------------------------------------------------------------------------

    def _on_tick(self, _: Tick) -> None:
        """Look at everything that waits for time to pass."""
        now = self.ctx.now
        if now - self._expected_tick > self._suspect_after:
            # This process was paused: what it did not hear then says nothing of the others.
            self.ctx.note("paused", detail=f"{now - self._expected_tick:.1f} s")
            for peer in self.ctx.peers.values():
                peer.heard = now
        self._doubt()
        self._busy = self.elections.tick()
        self._busy = self.balance.tick() or self._busy
        for replica in self.replicas:
            self._tick_replica(replica)
        self._busy = self.upkeep.recover() or self._busy
        self.upkeep.isolation()
        if now >= self._next_heartbeat:
            heartbeat = self._heartbeat()
            for peer in self.ctx.peers.values():
                if peer.linked:
                    self.ctx.send(peer.member, heartbeat)
            self._next_heartbeat = now + self._heartbeat_every
            self.upkeep.catch_up()
        self._expected_tick = now + (BUSY_TICK if self._busy else self._heartbeat_every)

    def _doubt(self) -> None:
        """Suspect who was silent for too long; know when to look again, and not a beat later."""
        self._next_doubt = float("inf")
        for peer in self.ctx.peers.values():
            due = peer.heard + self._suspect_after
            if due <= self.ctx.now:
                self._suspect(peer, "silent")
            elif not peer.suspected:
                self._next_doubt = min(self._next_doubt, due)

    def _tick_replica(self, replica: Replica) -> None:
        contact = replica.contact
        if contact.waiting or contact.barriers:
            contact.expire()
            self._busy = True
        if replica.bid is not None:
            replica.bid.tick()
            self._busy = True
        elif replica.leading is not None:
            replica.leading.tick()
            self.upkeep.keep_quorum(replica)

    # ---- for people ----------------------------------------------------------------------------

    def snapshot(self) -> dict[str, Any]:
        """The state that status pages show."""
        return {
            "member": self.ctx.me,
            "boot": str(self.ctx.boot),
            "serving": self.serving,
            "draining": self.ctx.draining,
            "normal": all(r.normal for r in self.replicas),
            "peers": {
                p.member: {
                    "boot": str(p.boot),
                    "reached": p.reached,
                    "suspected": p.suspected,
                    "draining": p.draining,
                    "normal": p.normal_since is not None,
                    "coordinates": len(p.leads),
                }
                for p in self.ctx.peers.values()
            },
            "groups": [_group_snapshot(r) for r in self.replicas],
        }


def _group_snapshot(r: Replica) -> dict[str, Any]:
    return {
        "group": r.g,
        "status": "NORMAL" if r.normal else "RECOVERING",
        "waits_for_operator": r.waits_for_operator,
        "role": r.role.value,
        "coordinator": r.leader,
        "epoch": max(r.promised, r.epoch),
        "floor": r.floor,
        "commit": r.commit,
        "last": r.log.last,
        "last_epoch": r.log.last_epoch,
        "base": r.log.base,
        "topics": len(r.state.topics),
        "followers": {m: f.match for m, f in r.leading.followers.items()} if r.leading else {},
    }
