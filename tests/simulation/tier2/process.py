"""One life of a member: the real driver, member, desk and front, in a world of memory.

A process can be paused between two turns, which is all that a stopped process shows to others,
and killed: then it forgets everything, and its sockets are closed by its machine, unless that is
gone as well. Its clock is its own.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

import trio

from coordinator.boot import boot
from coordinator.events import (
    DrainWanted,
    Event,
    KeeperAnswer,
    Note,
    Procedure,
    SessionOpened,
)
from coordinator.keeper import Booted, MemberNode, Paths
from coordinator.member import Member
from migratory.front.front import Front
from migratory.front.limits import FrontLimits
from migratory.front.plane import TICK_S
from migratory.shell.bell import Bell
from migratory.shell.driver import Driver
from migratory.wire.client import Server
from migratory.wire.ids import group_of
from migratory.wire.peer import PeerMessage, Publication
from migratory.wire.shard import Answers, PubAck, Pubs, ToEngine, ToFront
from tests.simulation.checker import Violation
from tests.simulation.tier2.doors import Door
from tests.simulation.tier2.network import Port
from tests.simulation.weather import Clock

if TYPE_CHECKING:
    from tests.simulation.tier2.world import World

# Reasons for which a front may close a client that keeps to the protocol.
FAIR = {
    "client", "GO_ELSEWHERE", "DRAINING", "BEHIND", "ISOLATED", "SLOW_CONSUMER",
    "KEEPALIVE_TIMEOUT", "CONNECT_TIMEOUT", "HTTP", "UNAVAILABLE",
}  # fmt: skip


class PausableBell(Bell):
    """The bell of a process that may be stopped, on the process's own clock."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    async def wait(self, until: float = float("inf")) -> None:
        """Return after a ring, or at this time of the process's clock, unless it is stopped."""
        process = self._process
        # A moment more: the way from one clock to the other and back must not end before it.
        await super().wait(process.clock.world(until) + 1e-6)
        await process.busy()
        await process.running()


class WatchedMember(Member):
    """A member whose every step the checker looks at."""

    world: World

    def step(self, event: Event, now: float) -> None:
        """Take one event."""
        self.world.trace.add(self.ctx.me, type(event).__name__)
        super().step(event, now)
        self._observe()

    def collect(self, peer: str, room: int) -> list[PeerMessage]:
        """Entries for a peer; a transfer may begin here."""
        messages = super().collect(peer, room)
        self._observe()
        return messages

    def _observe(self) -> None:
        checker = self.world.checker
        checker.now = trio.current_time()
        checker.observe(self)


class SimulatedKeeper:
    """The engine's side of the simulated ZooKeeper."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._out: list[KeeperAnswer | SessionOpened] = []

    def start(self, token: int, procedure: Procedure) -> None:
        """Begin a procedure."""

        def done(value: object) -> None:
            self.post(KeeperAnswer(token, value))

        self._process.world.keeper.run(self._process, procedure, done)

    def take(self) -> list[KeeperAnswer | SessionOpened]:
        """What has come."""
        out, self._out = self._out, []
        return out

    def post(self, event: KeeperAnswer | SessionOpened) -> None:
        """Something for the engine."""
        self._out.append(event)
        self._process.bell.ring()

    async def run(self, procedure: Procedure) -> Any:
        """Carry a procedure out now."""
        ended, values = trio.Event(), list[Any]()

        def done(value: object) -> None:
            values.append(value)
            ended.set()

        self._process.world.keeper.run(self._process, procedure, done)
        await ended.wait()
        return values[0]


class WatchedFront:
    """The FIFO to the front of this process; acknowledgements are looked at on their way."""

    def __init__(self, process: Process) -> None:
        world, bell = process.world, process.bell
        self._process = process
        self._asked: deque[ToEngine] = deque()
        self._refs: dict[int, Publication] = {}
        limits = FrontLimits(
            outbox_bytes=world.weather.outbox,
            keepalive_s=2.0,
            dedup_ttl_ms=world.weather.retention.dedup_ttl_ms,
        )
        servers = [Server(name) for name in world.cluster.members]
        self.front = Front(limits, process.name, servers, self._asked, bell.ring)

    def take(self) -> list[ToEngine]:
        """What the front wants."""
        asked = self.front.take()
        for message in asked:
            if isinstance(message, Pubs):
                self._refs.update((item.ref, item) for item in message.items if item.pid)
        return asked

    def put(self, messages: list[ToFront]) -> None:
        """What the front gets."""
        for message in messages:
            if isinstance(message, Answers):
                for item in message.items:
                    self._answered(item.ref, item if isinstance(item, PubAck) else None)
        self.front.put(messages)

    def _answered(self, ref: int, ack: PubAck | None) -> None:
        item = self._refs.pop(ref, None)
        if ack is not None:
            if item is None:
                raise Violation(f"ACK of {ack}, which nobody waits for")
            world = self._process.world
            g = group_of(item.topic, world.cluster.groups)
            world.checker.acked(g, PubAck(ref, ack.position, ack.duplicate), item)

    def clients(self) -> int:
        """How many clients are connected."""
        return self.front.clients()


class Process:
    """From the boot to the end of one life."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.clock = Clock(world.random)
        self.dead = False
        self.silent = False
        self.paused = False
        self.leaving = False  # it was asked to drain
        self.end = ""  # why it ended by itself
        self.bell = PausableBell(self)
        self.keeper = SimulatedKeeper(self)
        self.port = Port(world.network, self)
        self.door = Door()
        self.fifo = WatchedFront(self)
        self.driver: Driver | None = None
        self.scope = trio.CancelScope()
        self._resumed = trio.Event()

    @property
    def member(self) -> WatchedMember | None:
        """The decider, once it has booted."""
        member = self.driver.member if self.driver is not None else None
        assert member is None or isinstance(member, WatchedMember)
        return member

    async def running(self) -> None:
        """Wait while this process is stopped; a dead one waits for ever."""
        while self.paused:
            await self._resumed.wait()
        if self.dead:
            await trio.sleep_forever()

    async def busy(self) -> None:
        """The loop may do other things before it comes to the next turn, which takes more then."""
        world = self.world
        if world.weather.busy and not world.healed:
            await trio.sleep(world.random.uniform(0, world.weather.busy))

    # ---- a life --------------------------------------------------------------------------------

    async def run(self) -> None:
        """Boot, serve, end."""
        try:
            with self.scope:
                await self._live()
            if not self.dead:
                self.world.ended(self)
            if self.silent:  # the machine is gone: its clients find out by themselves
                await trio.sleep(6.0)
        finally:
            self.fifo.front.close()
            self.door.close()
        unfair = {code: n for code, n in self.fifo.front.closed.items() if code not in FAIR}
        if unfair:
            raise Violation(f"CLIENTS of {self.name} were closed: {unfair}")

    async def _live(self) -> None:
        if not await self._boot():
            self.end = "BOOT_REFUSED"
            return
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._serve_clients)
            nursery.start_soon(self._tick_clients)
            assert self.driver is not None
            self.end = await self.driver.run()
            nursery.cancel_scope.cancel()

    async def _boot(self) -> bool:
        world, clock = self.world, self.clock
        cluster = world.cluster
        uuid = f"{world.random.getrandbits(32):08x}"
        procedure = boot(Paths(cluster.name), self.name, uuid, b"{}", cluster.groups, self.name, "")
        booted = await self.keeper.run(procedure)
        await self.running()
        if not isinstance(booted, Booted):
            return False
        member = WatchedMember(
            cluster, self.name, booted.boot, booted.groups, booted.boots, world.weather.retention,
            clock.local(trio.current_time()), lambda: clock.wall(trio.current_time()),
        )  # fmt: skip
        member.world = world
        world.checker.born(member)
        self.driver = Driver(
            member,
            MemberNode(booted.boot, self.name, ""),
            self.port,
            self.keeper,
            self.fifo,
            self.bell,
            elsewhere=[name for name in cluster.members if name != self.name],
            clock=lambda: clock.local(trio.current_time()),
        )
        self.driver.observe = self._noted
        self.port.begin(booted.boot, booted.boots)
        return True

    def _noted(self, note: Note) -> None:
        self.world.trace.add(self.name, f"{note.kind} {note.g} {note.epoch} {note.idx}")

    async def _serve_clients(self) -> None:
        """`Front.run`, for a process that can be stopped."""
        front = self.fifo.front
        front.open(self.door.as_listener())
        while True:
            if front.busy:
                await trio.lowlevel.checkpoint()
            else:
                await trio.lowlevel.wait_readable(front.fileno())
            await self.running()
            front.read()
            front.notify()
            front.flush()

    async def _tick_clients(self) -> None:
        front = self.fifo.front
        while True:
            await trio.sleep(TICK_S)
            await self.running()
            front.tick()
            front.notify()
            front.flush()

    # ---- what happens to it --------------------------------------------------------------------

    def kill(self, *, silent: bool = False) -> None:
        """End it at once."""
        self.dead = True
        self.silent = silent
        self.door.open = False
        self.port.close()
        self.scope.cancel()

    def pause(self) -> None:
        """Stop it."""
        if not self.paused:
            self.paused = True
            self._resumed = trio.Event()

    def resume(self) -> None:
        """Let it go on as if nothing had been."""
        self.paused = False
        self._resumed.set()
        self.port.woken()

    def drain(self, *, now: bool) -> None:
        """Ask it to leave."""
        if self.driver is not None:
            self.leaving = True
            self.driver.want(DrainWanted(now))
