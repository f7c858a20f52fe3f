"""Tier 1: the deciders of N members in one process, from a seed.

The network loses, doubles and reorders; processes crash and forget everything, or pause, or wake
beside their replacement; links are cut, also in one direction only; clocks differ; ZooKeeper
expires sessions, stalls, shows old trees and loses outcomes. At most f members are down or
recovering at a time, as promised, unless the weather says so; then an operator accepts the loss.
At the end everything heals and the cluster must come to rest, with nothing lost.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from random import Random
from typing import Any

from cache.retention import Retention
from coordinator import leading, replica, takeover, transfer
from coordinator.boot import boot, register
from coordinator.cluster import CHUNK_BYTES, Cluster
from coordinator.events import (
    BarrierWanted,
    Event,
    KeeperAnswer,
    LinkDown,
    LinkUp,
    Received,
    SessionOpened,
    Tick,
)
from coordinator.keeper import Booted, MemberNode, Paths
from coordinator.member import Member
from migratory.wire.ids import NO_BOOT, Boot
from migratory.wire.peer import Publication
from migratory.wire.shard import PubAck
from tests.simulation.audience import Front, Subscriber
from tests.simulation.checker import Checker, Violation
from tests.simulation.clients import Publisher
from tests.simulation.keeper import SimKeeper
from tests.simulation.rest import compare, unrest
from tests.simulation.weather import Clock, Weather

RETENTION = Retention(
    max_messages=8, max_age_ms=3_000, dedup_ttl_ms=11_000, topic_ttl_ms=12_000, log_entries=24,
    log_bytes=1 << 16,
)  # fmt: skip
MOST_EVENTS = 200_000  # ten times what a busy run has


class Process:
    """One life of a member: its decider, or nothing yet while it boots."""

    def __init__(self, name: str, clock: Clock) -> None:
        self.name = name
        self.clock = clock
        self.member: Member | None = None
        self.front: Front | None = None
        self.boot: Boot | None = None
        self.dead = False
        self.paused = False
        self.links: dict[str, Process] = {}  # the life of each peer that its link leads to
        self.inbox: list[Event] = []  # waits for the next turn, or for the end of a pause
        self.turning = False
        self.tick_at = 0.0

    def knows_later(self, other: Process) -> bool:
        """Whether it is linked to a later life of the other one's member."""
        known = self.links.get(other.name)
        return known is not None and (known.boot or NO_BOOT) > (other.boot or NO_BOOT)


# Told of every step: the process, its decider, the event, and the replicas before it.
Narrator = Callable[[Process, Member, Event, list[str]], None]


class World:
    """A cluster, its network, its ZooKeeper and its clients."""

    def __init__(
        self,
        seed: int,
        members: int,
        faults: int,
        groups: int = 2,
        weather: Weather | None = None,
    ) -> None:
        self.random = Random(seed)
        self.weather = weather or Weather.draw(self.random)
        names = tuple(f"m{n}" for n in range(members))
        self.cluster = Cluster("sim", names, faults, groups, session=4.0)
        self.now = 0.0
        self.events = 0
        self.healed = False
        self.narrator: Narrator | None = None
        self._queue: list[tuple[float, int, Callable[[], None]]] = []
        self._order = 0
        self.keeper = SimKeeper(self.random, self.later)
        self.keeper.now = lambda: self.now
        self.checker = Checker(self.cluster, RETENTION)
        self.processes: dict[str, Process] = {}
        self.cut: dict[tuple[str, str], None] = {}  # one direction each, in the order of the cuts
        self.refs: dict[int, tuple[Publisher, Publication]] = {}
        self.last_ref = 0
        self.publishers = [Publisher(self, n) for n in range(3)]
        self.subscribers = [Subscriber(self, n) for n in range(4)]
        for name in names:
            self.start(name)

    # ---- time ----------------------------------------------------------------------------------

    def later(self, delay: float, action: Callable[[], None]) -> None:
        """Do something after a while."""
        self._order += 1
        heapq.heappush(self._queue, (self.now + delay, self._order, action))

    def run_until(self, end: float) -> None:
        """Let time pass."""
        while self._queue and self._queue[0][0] <= end:
            self.now, _, action = heapq.heappop(self._queue)
            action()
        self.now = end

    # ---- processes -----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a new life of a member."""
        process = self.processes[name] = Process(name, Clock(self.random))
        self.keeper.open_session(process)
        cluster = self.cluster
        uuid = f"{self.random.getrandbits(32):08x}"
        procedure = boot(Paths(cluster.name), name, uuid, b"{}", cluster.groups, name, name)
        self.keeper.run(process, procedure, lambda result: self._booted(process, result))

    def _booted(self, process: Process, result: object) -> None:
        if not isinstance(result, Booted):  # a later life was faster
            self.end(process)
            return
        clock = process.clock
        process.boot = result.boot
        process.member = Member(
            self.cluster, process.name, result.boot, result.groups, result.boots, RETENTION,
            clock.local(self.now), lambda: clock.wall(self.now),
        )  # fmt: skip
        process.front = Front(self, process)
        self.checker.born(process.member)
        rival = self.processes[process.name]
        if rival is not process and rival.boot is not None and rival.boot < result.boot:
            self.processes[process.name] = process  # it started earlier and has the later number
            rival.dead = True  # links refuse an earlier life by name, and it ends
        for other in self.processes.values():
            if other is not process and other.member is not None and not other.dead:
                self.link(process, other)
        self.give(process, Tick())

    def link(self, a: Process, b: Process) -> None:
        """Connect two processes; each end is bound to this life of the other."""
        if (a.name, b.name) in self.cut or (b.name, a.name) in self.cut or a.name == b.name:
            return
        assert a.boot is not None
        assert b.boot is not None
        if a.knows_later(b) or b.knows_later(a):
            return  # an earlier life is refused
        a.links[b.name], b.links[a.name] = b, a
        self.give(a, LinkUp(b.name, b.boot))
        self.give(b, LinkUp(a.name, a.boot))

    def crash(self, name: str) -> None:
        """Kill a process: it forgets everything."""
        process = self.processes[name]
        self.end(process)
        for other in self.processes.values():
            if not other.dead and other.links.get(name) is process:
                del other.links[name]
                self.give(other, LinkDown(name, self.random.random() < 0.8))

    def end(self, process: Process) -> None:
        """A life is over; its session lives on for a while."""
        process.dead = True
        self.later(self.random.uniform(0.0, 4.0), lambda: self.keeper.expire(process))
        if process.front is not None:
            process.front.close()

    def alive(self) -> list[Member]:
        """The deciders of all living processes."""
        return [p.member for p in self.processes.values() if p.member is not None and not p.dead]

    def weak(self) -> int:
        """How many members are down, or not NORMAL somewhere: the budget of faults."""
        return sum(
            p.dead or p.member is None or not all(r.normal for r in p.member.replicas)
            for p in self.processes.values()
        )

    # ---- steps ---------------------------------------------------------------------------------

    def give(self, process: Process, event: Event) -> None:
        """Let a decider handle an event, now or in the next turn."""
        if not process.dead and process.member is not None:
            process.inbox.append(event)
            self.turn_soon(process)

    def turn_soon(self, process: Process) -> None:
        """A turn takes everything that waits by then."""
        if process.turning or process.paused:
            return
        delay = 0.0 if self.healed else self.weather.batch_delay
        process.turning = True
        if delay:
            self.later(self.random.uniform(0, delay), lambda: self._turn(process))
        else:
            self._turn(process)

    def _turn(self, process: Process) -> None:
        """As the driver does it: steps, effects, requests of the front, barriers."""
        member, front = process.member, process.front
        assert member is not None
        assert front is not None
        while not process.paused and not process.dead:
            inbox, process.inbox = process.inbox, []
            for event in inbox:
                self.step(process, member, event)
            self._carry_out(process, member)
            process.inbox += [BarrierWanted(g, ref) for g, ref in front.ask()]
            if not process.inbox:
                break
        process.turning = False

    def step(self, process: Process, member: Member, event: Event) -> None:
        """One event of one decider, looked at by the checker."""
        self.events += 1
        if self.events > MOST_EVENTS:
            raise Violation(f"LIVELOCK at {self.now:.1f} s: {event}")
        self.checker.now = self.now
        before = [repr(replica) for replica in member.replicas] if self.narrator else []
        try:
            member.step(event, process.clock.local(self.now))
            self.checker.observe(member)
        finally:
            if self.narrator:
                self.narrator(process, member, event, before)

    def _carry_out(self, process: Process, member: Member) -> None:
        ready = member.take_ready()
        assert process.front is not None
        process.front.effects(ready)
        for answer in ready.answers:
            publisher, item = self.refs.pop(answer.ref, (None, None))
            if publisher is None or item is None:
                continue  # without publisher id
            if isinstance(answer, PubAck):
                self.checker.acked(publisher.group_of(item), answer, item)
            publisher.answer(item, answer)
        for token, procedure in ready.procedures:
            self.keeper.run(process, procedure, partial(self._answer, process, token))
        for peer, message in ready.sends:
            self.send(process, peer, [message])
        self._collect(process, member)
        if ready.close_clients:
            process.front.close()
        if ready.exit:
            self.end(process)
        if ready.drained:
            self.restart_drained(process)
        self._schedule_tick(process, member)

    def _answer(self, process: Process, token: int, value: object) -> None:
        self.give(process, KeeperAnswer(token, value))

    def _collect(self, process: Process, member: Member) -> None:
        for peer in member.ctx.peers:
            if not member.ctx.waiting_for_peer[peer] or peer not in process.links:
                continue
            room = self.random.choice([self.weather.room, 1 << 20])
            if messages := member.collect(peer, room):
                self.send(process, peer, messages)
            self.checker.observe(member)  # a transfer may begin while entries are collected
            for other, message in member.take_ready().sends:
                self.send(process, other, [message])
            if member.ctx.waiting_for_peer[peer]:
                self.later(0.005, lambda: self.turn_soon(process))

    def _schedule_tick(self, process: Process, member: Member) -> None:
        wake = max(process.clock.world(member.next_wake()), self.now + 0.001)
        if process.tick_at <= self.now or wake < process.tick_at:
            process.tick_at = wake
            self.later(wake - self.now, lambda: self._tick(process, wake))

    def _tick(self, process: Process, wake: float) -> None:
        if process.tick_at == wake:
            self.give(process, Tick())

    def restart_drained(self, process: Process) -> None:
        """A rolling restart: the operator waits until nobody else is down."""
        if process.dead or self.processes[process.name] is not process:
            return
        if self.weak() >= self.cluster.faults:
            self.later(0.2, lambda: self.restart_drained(process))
            return
        self.crash(process.name)
        self.keeper.expire(process)
        self.later(0.3, lambda: self.revive(process.name))

    def revive(self, name: str) -> None:
        """Start a member that is down."""
        if self.processes[name].dead:
            self.start(name)

    def resume(self, process: Process) -> None:
        """A paused process goes on as if nothing had been."""
        process.paused = False
        if process.dead or process.member is None:
            return
        if process not in self.keeper.sessions:
            self.later(self.random.uniform(0.01, 0.5), lambda: self.reopen(process))
        self.give(process, Tick())

    def reopen(self, process: Process) -> None:
        """A process whose session has ended gets a new one, and registers again."""
        if process.dead or process in self.keeper.sessions or process.paused:
            return
        self.keeper.open_session(process)
        if process.boot is None:
            return
        self.give(process, SessionOpened())
        node = MemberNode(process.boot, process.name, process.name)
        procedure = register(Paths(self.cluster.name), process.name, node)
        self.keeper.run(process, procedure, lambda ok: None if ok else self.end(process))

    def send(self, process: Process, peer: str, messages: list[Any]) -> None:
        """The network: to the life of the peer that the link leads to, which may be over."""
        target = process.links.get(peer)
        w, r = self.weather, self.random
        assert process.boot is not None
        if target is None or (process.name, peer) in self.cut:
            return
        if not self.healed and r.random() < w.drop:
            return
        event = Received(process.name, process.boot, messages)
        delay = r.uniform(0.0005, 0.002 if self.healed else w.delay)
        self.later(delay, lambda: self.give(target, event))
        if not self.healed and r.random() < w.double:
            self.later(delay + r.uniform(0, 1.0), lambda: self.give(target, event))

    # ---- the end -------------------------------------------------------------------------------

    def mend(self, pair: tuple[str, str]) -> None:
        """A cut is over: the link is made anew."""
        if self.cut.pop(pair, pair) is None:
            a, b = (self.processes[name] for name in pair)
            if a.member is not None and b.member is not None and not a.dead and not b.dead:
                self.link(a, b)

    def heal(self) -> None:
        """No more faults; everything that was broken comes back."""
        self.healed = True
        self.keeper.loss = self.keeper.stale = self.keeper.stalled_until = 0.0
        for process in list(self.processes.values()):
            if process.paused:
                self.resume(process)
            self.reopen(process)
            if process.dead:
                self.start(process.name)
        for pair in list(self.cut):
            self.mend(pair)

    def settle(self, patience: float = 40.0) -> None:
        """Demand that the cluster comes to rest."""
        deadline = self.now + patience
        for publisher in self.publishers:
            publisher.stop()
        trouble = "nobody lives"
        while self.now < deadline:
            self.run_until(self.now + 0.25)
            members = self.alive()
            if len(members) < len(self.cluster.members):
                continue
            trouble = unrest(members, self.keeper.tree) or self._unfinished()
            if not trouble:
                compare(self.checker, members)
                return
        raise Violation(f"NO-CONVERGENCE after {patience} s: {trouble}")

    def _unfinished(self) -> str:
        for publisher in self.publishers:
            if publisher.window:
                return f"publisher {publisher.number} still waits for {len(publisher.window)}"
        return next((why for s in self.subscribers if (why := s.unfinished())), "")


@contextmanager
def small_chunks(size: int) -> Iterator[None]:
    """Let chunks of transfers, fetches and catching up be small, so that there are many."""
    modules: list[Any] = [leading, replica, takeover, transfer]
    for module in modules:
        module.CHUNK_BYTES = size
    try:
        yield
    finally:
        for module in modules:
            module.CHUNK_BYTES = CHUNK_BYTES
