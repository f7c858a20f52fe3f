"""A cluster of whole members, its network, its ZooKeeper and its clients, in virtual time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from random import Random
from typing import Any

import trio

from coordinator.cluster import Cluster
from coordinator.events import SessionOpened
from coordinator.member import Member
from migratory.delivery import desk
from tests.simulation.checker import Checker, Violation
from tests.simulation.keeper import SimKeeper
from tests.simulation.rest import compare, unrest
from tests.simulation.tier2.clients import (
    PROMPT,
    Probe,
    Publisher,
    Subscriber,
    streets,
    unreachable,
)
from tests.simulation.tier2.doors import Street
from tests.simulation.tier2.judge import Judge
from tests.simulation.tier2.network import Network
from tests.simulation.tier2.process import Process
from tests.simulation.tier2.scheduling import Agenda
from tests.simulation.tier2.trace import Trace
from tests.simulation.tier2.weather import NEVER, Weather
from tests.simulation.world import small_chunks

PATIENCE = 60.0  # virtual seconds in which a healed cluster must come to rest


class World:
    """Everything of one run."""

    def __init__(
        self,
        seed: int,
        members: int,
        faults: int,
        weather: Weather | None = None,
        *,
        shown: bool = False,
    ) -> None:
        self.random = Random(seed)
        self.weather = weather or Weather.draw(self.random)
        names = tuple(f"m{n}" for n in range(members))
        self.cluster = Cluster("sim", names, faults, self.weather.groups, session=4.0)
        self.trace = Trace(shown=shown)
        self.agenda = Agenda()
        self.keeper = SimKeeper(self.random, self.agenda.later)
        self.keeper.now = trio.current_time
        self.checker = Checker(self.cluster, self.weather.retention)
        self.judge = Judge(self.checker, self.weather.retention)
        self.network = Network(
            self.cluster, self.random, self.agenda, self.weather.delay, self.weather.window
        )
        self.processes: dict[str, Process] = {}
        self.former: list[Process] = []  # lives that are over, or that go on beside a later one
        self.streets: list[Street] = []
        self.publishers = [Publisher(self, f"publisher-{n}") for n in range(3)]
        self.subscribers = [Subscriber(self, f"subscriber-{n}") for n in range(4)]
        self.healed = False
        self._nursery: trio.Nursery | None = None

    @contextmanager
    def inhabited(self, nursery: trio.Nursery) -> Iterator[None]:
        """Let everybody come into this world."""
        self._nursery = nursery
        nursery.start_soon(self.agenda.run)
        with ExitStack() as held:
            held.enter_context(small_chunks(self.weather.chunk))
            held.enter_context(_small_pages(self.weather.page))
            held.enter_context(streets(self))
            for name in self.cluster.members:
                self.start(name)
            yield
            nursery.cancel_scope.cancel()

    def clients_come(self) -> None:
        """Publishers and subscribers begin."""
        assert self._nursery is not None
        for client in (*self.publishers, *self.subscribers):
            self._nursery.start_soon(client.run)

    # ---- processes -----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a new life of a member."""
        assert self._nursery is not None
        if name in self.processes:
            self.former.append(self.processes[name])
        process = self.processes[name] = Process(self, name)
        self.network.ports[name] = process.port
        self.keeper.open_session(process)
        self.trace.add(name, "start")
        self._nursery.start_soon(process.run)

    def crash(self, process: Process, *, silent: bool = False) -> None:
        """Kill a process: it forgets everything; its session lives on for a while."""
        self.trace.add(process.name, "crash")
        process.kill(silent=silent)
        self.agenda.later(self.random.uniform(0.0, 4.0), lambda: self.keeper.expire(process))

    def revive(self, name: str) -> None:
        """Start a member that is down."""
        if self.processes[name].dead:
            self.start(name)

    def ended(self, process: Process) -> None:
        """A process ended by itself: it said goodbye, and its session is closed."""
        self.trace.add(process.name, f"end {process.end}")
        present = self.processes[process.name] is process
        if present and process.end not in ("DRAINED", "BOOT_REFUSED"):
            raise Violation(f"END of {process.name} without need: {process.end}")
        process.dead = True
        process.port.close()
        self.keeper.expire(process)
        if present:
            delay = self.random.uniform(0.2, 2.0)
            self.agenda.later(delay, lambda: self.revive(process.name))

    def resume(self, process: Process) -> None:
        """A paused process goes on."""
        if process.paused:
            self.trace.add(process.name, "resume")
            process.resume()
            if process not in self.keeper.sessions:
                delay = self.random.uniform(0.01, 0.5)
                self.agenda.later(delay, lambda: self.reopen(process))

    def reopen(self, process: Process) -> None:
        """A process whose session has ended gets a new one."""
        if not process.dead and not process.paused and process not in self.keeper.sessions:
            self.keeper.open_session(process)
            process.keeper.post(SessionOpened())

    def alive(self) -> list[Member]:
        """The deciders of all present processes that live."""
        return [p.member for p in self.processes.values() if p.member is not None and not p.dead]

    def weak(self) -> int:
        """How many members are down, about to leave, or not NORMAL somewhere: the fault budget."""
        return sum(
            p.dead or p.leaving or p.member is None or not all(r.normal for r in p.member.replicas)
            for p in self.processes.values()
        )

    # ---- clients -------------------------------------------------------------------------------

    async def visit(self, name: str) -> Street:
        """A client dials a member."""
        await trio.sleep(self.random.uniform(0, self.weather.client_delay))
        process = self.processes[name]
        if process.silent:
            await trio.sleep(5.0)
        sock = process.door.knock(small=self.weather.client_stall_every < NEVER)
        if sock is None:
            raise unreachable(name)
        street = Street(sock, self.random, self.weather.client_delay)
        self.streets = [one for one in self.streets if one.open]
        self.streets.append(street)
        return street

    # ---- the end -------------------------------------------------------------------------------

    def heal(self) -> None:
        """No more faults; everything that was broken comes back."""
        self.trace.add("world", "heal")
        self.healed = True
        self.keeper.loss = self.keeper.stale = self.keeper.stalled_until = 0.0
        self.network.slow.clear()
        for way in list(self.network.cut):
            self.network.mend(way)
        for process in [*self.former, *self.processes.values()]:
            self.resume(process)
            self.reopen(process)
        for name in self.cluster.members:
            self.revive(name)

    async def settle(self) -> None:
        """Demand that the cluster comes to rest with everything delivered, and works well then."""
        for publisher in self.publishers:
            publisher.stopped = True
        await self._rest(PATIENCE)
        async with trio.open_nursery() as nursery:
            for name in self.cluster.members:
                nursery.start_soon(Probe(self, name).live)
        await self._rest(PROMPT)
        self.judge.compare_published()
        for subscriber in self.subscribers:
            for reader in subscriber.readers.values():
                reader.compare_seen()

    async def _rest(self, patience: float) -> None:
        deadline = trio.current_time() + patience
        while trouble := self.trouble():
            if trio.current_time() > deadline:
                raise Violation(f"NO-CONVERGENCE after {patience} s: {trouble}")
            await trio.sleep(0.25)
        compare(self.checker, self.alive())

    def trouble(self) -> str:
        """What is still missing for rest."""
        members = self.alive()
        if len(members) < len(self.cluster.members):
            return "somebody is down"
        if any(process.leaving for process in self.processes.values()):
            return "somebody is leaving"
        for member in members:
            if not member.serving:
                return f"{member} does not serve"
        for publisher in self.publishers:
            if publisher.waiting:
                return f"{publisher.name} waits for {publisher.waiting} outcomes"
        late = next((why for s in self.subscribers if (why := s.unfinished())), "")
        return unrest(members, self.keeper.tree) or late


@contextmanager
def _small_pages(size: int) -> Iterator[None]:
    """Let pages of history be small, so that there are many."""
    module: Any = desk
    usual = module.PAGE_BYTES
    module.PAGE_BYTES = size
    try:
        yield
    finally:
        module.PAGE_BYTES = usual
