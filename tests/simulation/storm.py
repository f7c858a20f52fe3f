"""Faults of all kinds at random times, and whole runs from a seed."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from random import Random

import msgspec

from coordinator.events import DrainWanted, LinkDown, RecoverWanted
from coordinator.replica import Role
from tests.simulation.weather import NEVER, Weather
from tests.simulation.world import Process, World, small_chunks

HALF_TIME = 13.5  # seconds


class Storm:
    """Strikes a world according to its weather."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.random = world.random
        self.names = world.cluster.members
        self.counts = dict.fromkeys(
            ("crashes", "twins", "pauses", "cuts", "expiries", "depositions", "drains", "losses"), 0
        )

    def begin(self) -> None:
        """Begin with the faults of this run's weather."""
        world, w = self.world, self.world.weather
        world.keeper.loss = w.keeper_loss
        world.keeper.stale = w.stale_reads
        for every, fault in (
            (w.crash_every, self._crash),
            (w.twin_every, self._twin),
            (w.pause_every, self._pause),
            (w.cut_every, self._cut),
            (w.expire_every, self._expire),
            (w.depose_every, self._depose),
            (w.drain_every, self._drain),
        ):
            if every < NEVER and len(self.names) > 1:
                self._repeat(every, fault)
        if len(self.names) == 1 and w.expire_every < NEVER:
            self._repeat(w.expire_every, self._expire)

    def _repeat(self, every: float, fault: Callable[[], None]) -> None:
        def again() -> None:
            if not self.world.healed:
                fault()
                self._repeat(every, fault)

        self.world.later(self.random.expovariate(1 / every), again)

    def _any(self) -> Process:
        return self.world.processes[self.random.choice(self.names)]

    # ---- members -------------------------------------------------------------------------------

    def _crash(self) -> None:
        process = self._any()
        if self.world.weak() < self.world.cluster.faults and not process.dead:
            self.counts["crashes"] += 1
            self.world.crash(process.name)
            self._revive_later(process.name, 5.0)

    def _revive_later(self, name: str, patience: float) -> None:
        delay = self.random.uniform(0.05, patience)
        self.world.later(delay, lambda: self.world.revive(name))

    def _twin(self) -> None:
        """A process hangs, is replaced by a new one of the same id, and wakes up after all."""
        process = self._any()
        if self.world.weak() >= self.world.cluster.faults or process.dead or process.paused:
            return
        self.counts["twins"] += 1
        self._hang(process)
        self.world.start(process.name)

    def _pause(self) -> None:
        process = self._any()
        if process.dead or process.paused:
            return
        self.counts["pauses"] += 1
        self._hang(process)

    def _hang(self, process: Process) -> None:
        """Stop a process for a while, in which ZooKeeper may end its session."""

        def expire() -> None:
            if process.paused:
                self.world.keeper.expire(process)

        process.paused = True
        self.world.later(self.random.uniform(0.1, 6.0), lambda: self.world.resume(process))
        self.world.later(self.random.uniform(0.1, 8.0), expire)

    def _drain(self) -> None:
        process = self._any()
        if self.world.weak() == 0 and not process.dead and process.member is not None:
            self.counts["drains"] += 1
            self.world.give(process, DrainWanted(now=self.random.random() < 0.2))

    # ---- the network ---------------------------------------------------------------------------

    def _cut(self) -> None:
        a, b = self.random.sample(self.names, 2)
        if (a, b) in self.world.cut:
            return
        self.counts["cuts"] += 1
        pairs = [(a, b)] if self.random.random() < 0.3 else [(a, b), (b, a)]
        patience = self.random.uniform(0.1, 6.0)
        for pair in pairs:
            self.world.cut[pair] = None
            self.world.later(patience, partial(self.world.mend, pair))
        if self.random.random() < 0.3:  # noticed at once, by a reset of the connection
            self.world.give(self.world.processes[a], LinkDown(b, refused=False))
            self.world.give(self.world.processes[b], LinkDown(a, refused=False))

    # ---- ZooKeeper -----------------------------------------------------------------------------

    def _expire(self) -> None:
        process = self._any()
        keeper = self.world.keeper
        if process.dead or process not in keeper.sessions:
            return
        self.counts["expiries"] += 1
        if self.random.random() < 0.1:
            keeper.stalled_until = self.world.now + self.random.uniform(0.5, 5.0)
        hit = [process]
        if self.random.random() < 0.05:
            hit = [p for p in self.world.processes.values() if p in keeper.sessions]
        for each in hit:
            keeper.expire(each)
            delay = self.random.uniform(0.01, 2.0)
            self.world.later(delay, partial(self.world.reopen, each))

    def _depose(self) -> None:
        """Someone stands without a reason: that may cost time, and nothing else."""
        process = self._any()
        member = process.member
        if member is None or process.dead or process.paused:
            return
        replica = self.random.choice(member.replicas)
        if replica.normal and replica.role is Role.FOLLOWER and not replica.standing:
            self.counts["depositions"] += 1
            member.elections.stand(replica, frozenset(self.names))
            self.world.turn_soon(process)

    # ---- beyond what is promised ---------------------------------------------------------------

    def everybody_crashes(self) -> None:
        """No journal: history is gone, epochs still grow.

        When the first one to open again is disturbed before it has a follower, it alone is NORMAL
        and the operator must say that this is all there is.
        """
        self.world.checker.loss_possible = True
        self.counts["losses"] += 1
        for name in self.names:
            if not self.world.processes[name].dead:
                self.world.crash(name)
            self._revive_later(name, 2.0)
        self._repeat_operator()

    def disaster(self) -> None:
        """More members than promised forget; after a while an operator accepts the loss."""
        self.world.checker.loss_possible = True
        self.counts["losses"] += 1
        spared = self.random.randint(1, len(self.names) - self.world.cluster.faults - 1)
        for name in self.random.sample(self.names, len(self.names) - spared):
            if not self.world.processes[name].dead:
                self.world.crash(name)
            self._revive_later(name, 2.0)
        self._repeat_operator()

    def _repeat_operator(self) -> None:
        world = self.world
        waiting = [r.g for member in world.alive() for r in member.replicas if r.waits_for_operator]
        if waiting:
            world.give(self._any(), RecoverWanted([waiting[0]]))
        world.later(1.0, self._repeat_operator)


def run(
    seed: int,
    members: int = 3,
    faults: int = 1,
    *,
    forced: Mapping[str, float] | None = None,
    tell: Callable[[World], None] | None = None,
) -> tuple[World, Storm]:
    """One run from a seed; raises Violation.

    `forced` is what the weather must be like, whatever the seed says; `tell` may listen to the
    world from its beginning.
    """
    weather = msgspec.structs.replace(Weather.draw(Random(f"weather {seed}")), **(forced or {}))
    world = World(seed, members, faults, weather=weather)
    storm = Storm(world)
    if tell is not None:
        tell(world)
    with small_chunks(world.weather.chunk):
        world.run_until(2.0)
        storm.begin()
        for publisher in world.publishers:
            publisher.start()
        for subscriber in world.subscribers:
            subscriber.start()
        if world.weather.all_crash or world.weather.disaster:
            world.run_until(HALF_TIME)
            if world.weather.disaster and members > 1:
                storm.disaster()
            else:
                storm.everybody_crashes()
        world.run_until(2 * HALF_TIME)
        world.heal()
        world.run_until(world.now + 3.0)
        world.settle()
    return world, storm
