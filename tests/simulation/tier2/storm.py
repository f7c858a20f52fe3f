"""Faults of all kinds at random times, for whole members and their clients."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

from coordinator.events import RecoverWanted
from coordinator.replica import Role
from tests.simulation.tier2.process import Process
from tests.simulation.tier2.weather import NEVER
from tests.simulation.tier2.world import World

KINDS = (
    "crashes", "pauses", "twins", "breaks", "cuts", "isolations", "slow", "expiries",
    "depositions", "drains", "outages", "client_breaks", "client_stalls", "client_crashes",
    "losses", "recoveries",
)  # fmt: skip


class Storm:
    """Strikes a world according to its weather."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.names = world.cluster.members
        self.counts = dict.fromkeys(KINDS, 0)

    def begin(self) -> None:
        """Begin with the faults of this run's weather."""
        world, w = self.world, self.world.weather
        world.keeper.loss = w.keeper_loss
        world.keeper.stale = w.stale_reads
        faults: list[tuple[float, Callable[[], None]]] = [
            (w.expire_every, self._expire),
            (w.outage_every, self._outage),
            (w.client_break_every, self._break_client),
            (w.client_stall_every, self._stall_client),
            (4.0, self._crash_client),
        ]
        if len(self.names) > 1:
            faults += [
                (w.crash_every, self._crash),
                (w.pause_every, self._pause),
                (w.twin_every, self._twin),
                (w.break_every, self._break),
                (w.cut_every, self._cut),
                (w.isolate_every, self._isolate),
                (w.slow_every, self._slow),
                (w.depose_every, self._depose),
                (w.drain_every, self._drain),
            ]
        else:
            faults.append((w.pause_every, self._pause))
        for every, fault in faults:
            if every < NEVER:
                self._repeat(every, fault)

    def _repeat(self, every: float, fault: Callable[[], None]) -> None:
        def again() -> None:
            if not self.world.healed:
                fault()
                self._repeat(every, fault)

        self.world.agenda.later(self.random.expovariate(1 / every), again)

    def _any(self) -> Process:
        return self.world.processes[self.random.choice(self.names)]

    def _struck(self, kind: str, who: str) -> None:
        self.counts[kind] += 1
        self.world.trace.add(who, kind)

    # ---- members -------------------------------------------------------------------------------

    def _crash(self) -> None:
        world, process = self.world, self._any()
        if world.weak() < world.cluster.faults and not process.dead:
            self._struck("crashes", process.name)
            silent = world.weather.silent_crashes and self.random.random() < 0.5
            world.crash(process, silent=silent)
            delay = self.random.uniform(0.05, 5.0)
            world.agenda.later(delay, lambda: world.revive(process.name))

    def _pause(self) -> None:
        process = self._any()
        if not process.dead and not process.paused:
            self._struck("pauses", process.name)
            self._hang(process)

    def _twin(self) -> None:
        """A process hangs, is replaced by a new one of the same id, and wakes up after all."""
        world, process = self.world, self._any()
        if process.driver is None:
            return  # of two that boot nobody knows which will be the later one
        if world.weak() < world.cluster.faults and not process.dead and not process.paused:
            self._struck("twins", process.name)
            self._hang(process)
            world.start(process.name)

    def _hang(self, process: Process) -> None:
        """Stop a process for a while, in which ZooKeeper may end its session."""
        world = self.world

        def expire() -> None:
            if process.paused:
                world.keeper.expire(process)

        process.pause()
        world.agenda.later(self.random.uniform(0.1, 6.0), lambda: world.resume(process))
        world.agenda.later(self.random.uniform(0.1, 8.0), expire)

    def _drain(self) -> None:
        process = self._any()
        if self.world.weak() == 0 and not process.dead:
            self._struck("drains", process.name)
            process.drain(now=self.random.random() < 0.2)

    def _depose(self) -> None:
        """Someone stands without a reason: that may cost time, and nothing else."""
        process = self._any()
        member = process.member
        if member is None or process.dead or process.paused:
            return
        replica = self.random.choice(member.replicas)
        if replica.normal and replica.role is Role.FOLLOWER and not replica.standing:
            self._struck("depositions", process.name)
            member.elections.stand(replica, frozenset(self.names))

    def disaster(self) -> None:
        """More members forget than promised, or all: no journal, so history is gone."""
        world = self.world
        world.checker.loss_possible = True
        self._struck("losses", "world")
        spared = 0
        if world.weather.loss == "some" and len(self.names) > 1:
            spared = self.random.randint(1, len(self.names) - world.cluster.faults - 1)
            self._operate()
        for name in self.random.sample(self.names, len(self.names) - spared):
            if not world.processes[name].dead:
                world.crash(world.processes[name])
            delay = self.random.uniform(0.05, 2.0)
            world.agenda.later(delay, partial(world.revive, name))

    def _operate(self) -> None:
        """An operator looks at the cluster and accepts the loss of what nobody holds."""
        world = self.world
        waiting = [r.g for m in world.alive() for r in m.replicas if r.waits_for_operator]
        process = self._any()
        if waiting and process.driver is not None and not process.dead:
            self._struck("recoveries", process.name)
            process.driver.want(RecoverWanted([waiting[0]]))
        world.agenda.later(1.0, self._operate)

    # ---- the network ---------------------------------------------------------------------------

    def _break(self) -> None:
        a, b = self.random.sample(self.names, 2)
        if self.world.network.reset(a, b):
            self._struck("breaks", f"{a}-{b}")

    def _cut(self) -> None:
        a, b = self.random.sample(self.names, 2)
        ways = [(a, b)] if self.random.random() < 0.3 else [(a, b), (b, a)]
        self._struck("cuts", f"{a}-{b}")
        self._part(ways, self.random.uniform(0.1, 6.0))

    def _isolate(self) -> None:
        """One member is cut off from all others."""
        name = self.random.choice(self.names)
        self._struck("isolations", name)
        others = [other for other in self.names if other != name]
        ways = [(name, o) for o in others] + [(o, name) for o in others]
        self._part(ways, self.random.uniform(0.5, 6.0))

    def _part(self, ways: list[tuple[str, str]], seconds: float) -> None:
        network = self.world.network
        for way in ways:
            if way not in network.cut:
                network.cut[way] = None
                self.world.agenda.later(seconds, partial(network.mend, way))

    def _slow(self) -> None:
        a, b = self.random.sample(self.names, 2)
        network = self.world.network
        self._struck("slow", f"{a}-{b}")
        network.slow[a, b] = self.random.choice([5_000.0, 50_000.0])
        delay = self.random.uniform(0.5, 4.0)
        self.world.agenda.later(delay, lambda: network.slow.pop((a, b), None))

    # ---- ZooKeeper -----------------------------------------------------------------------------

    def _expire(self) -> None:
        process, keeper, world = self._any(), self.world.keeper, self.world
        if process.dead or process not in keeper.sessions:
            return
        self._struck("expiries", process.name)
        if self.random.random() < 0.1:
            keeper.stalled_until = trio.current_time() + self.random.uniform(0.5, 5.0)
        hit = [process]
        if self.random.random() < 0.05:
            hit = [p for p in world.processes.values() if p in keeper.sessions]
        for each in hit:
            keeper.expire(each)
            delay = self.random.uniform(0.01, 2.0)
            world.agenda.later(delay, partial(world.reopen, each))

    def _outage(self) -> None:
        """ZooKeeper does not answer, and ends no session meanwhile."""
        self._struck("outages", "keeper")
        self.world.keeper.stalled_until = trio.current_time() + self.random.uniform(2.0, 12.0)

    # ---- clients -------------------------------------------------------------------------------

    def _break_client(self) -> None:
        if self.world.streets:
            self._struck("client_breaks", "client")
            self.random.choice(self.world.streets).tear()

    def _stall_client(self) -> None:
        if self.world.streets:
            self._struck("client_stalls", "client")
            street = self.random.choice(self.world.streets)
            street.stall(self.world.agenda, self.random.uniform(0.1, 6.0))

    def _crash_client(self) -> None:
        client = self.random.choice([*self.world.publishers, *self.world.subscribers])
        self._struck("client_crashes", client.name)
        client.crash()
