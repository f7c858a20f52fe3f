"""Real drivers and real members in one process: links, front and ZooKeeper are in memory.

Time is trio's, so that a MockClock runs hours in moments. A link between two members can be cut
and joined, and its room can be taken away.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

import trio

from cache.retention import Retention
from coordinator.boot import boot
from coordinator.cluster import Cluster
from coordinator.events import KeeperAnswer, LinkDown, LinkUp, Procedure, Received, SessionOpened
from coordinator.keeper import Booted, MemberNode, Paths
from coordinator.member import Member
from migratory.observability.trace import MemberTrace
from migratory.shell.bell import Bell
from migratory.shell.driver import Driver
from migratory.shell.peer_link import LinkEvent
from migratory.trace_files import TraceWriter
from migratory.wire.ids import Boot
from migratory.wire.peer import PeerMessage, Publication
from migratory.wire.shard import Answers, PubAck, Pubs, Sub, ToEngine, ToFront
from tests.simulation.keeper import SimKeeper

LATENCY = 0.001


class MemoryLinks:
    """The links of one member; frames arrive after a moment, in order."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.events: list[LinkEvent] = []
        self.peers: set[str] = set()
        self.learnt: dict[str, Boot] = {}
        self.full: set[str] = set()

    def take(self) -> list[LinkEvent]:
        """Everything that came in."""
        events, self.events = self.events, []
        return events

    def linked(self) -> list[str]:
        """The peers that can be sent to."""
        return sorted(self.peers)

    def room(self, peer: str) -> int:
        """Plenty, unless the test has taken it away."""
        return 0 if peer in self.full else 4 << 20

    def send(self, peer: str, control: list[PeerMessage], data: list[PeerMessage]) -> None:
        """Carry a frame over."""
        mine = self.world.nodes[self.name].boot
        frame = Received(self.name, mine, control + data)
        self.world.later(LATENCY, lambda: self.world.arrive(self.name, peer, frame))

    def learn(self, boots: Mapping[str, Boot]) -> None:
        """Remember what was learnt."""
        self.learnt.update(boots)


class MemoryKeeper:
    """One process's session in the simulated ZooKeeper."""

    def __init__(self, world: World, bell: Bell) -> None:
        self.world, self.bell = world, bell
        self.out: list[KeeperAnswer | SessionOpened] = []
        world.keeper.open_session(self)

    def start(self, token: int, procedure: Procedure) -> None:
        """Begin a procedure."""
        self.world.keeper.run(self, procedure, lambda value: self.post(KeeperAnswer(token, value)))

    def take(self) -> list[KeeperAnswer | SessionOpened]:
        """What has come."""
        out, self.out = self.out, []
        return out

    def post(self, event: KeeperAnswer | SessionOpened) -> None:
        """Something for the engine."""
        self.out.append(event)
        self.bell.ring()

    def lose_session(self) -> None:
        """The session expires, and a new one is opened at once."""
        self.world.keeper.expire(self)
        self.world.keeper.open_session(self)
        self.post(SessionOpened())

    async def run(self, procedure: Procedure) -> Any:
        """Carry a procedure out now."""
        done, values = trio.Event(), list[Any]()

        def keep(value: Any) -> None:
            values.append(value)
            done.set()

        self.world.keeper.run(self, procedure, keep)
        await done.wait()
        return values[0]


class MemoryFront:
    """A front without sockets: the test is its clients."""

    def __init__(self, bell: Bell) -> None:
        self.bell = bell
        self.asked: list[ToEngine] = []
        self.got: list[ToFront] = []
        self.connected = 0
        self.refs = 0

    def take(self) -> list[ToEngine]:
        """What the test asks."""
        asked, self.asked = self.asked, []
        return asked

    def put(self, messages: list[ToFront]) -> None:
        """What the engine says."""
        self.got += messages

    def clients(self) -> int:
        """As many as the test wants."""
        return self.connected

    def ask(self, *messages: ToEngine) -> None:
        """Hand in requests, all in one turn."""
        self.asked += messages
        self.bell.ring()

    def publication(self, topic: str, pid: str = "", pseq: int = 0) -> Publication:
        """A publication with the next ref."""
        self.refs += 1
        return Publication(topic, b"payload %d" % self.refs, 0, pid, pseq, self.refs)

    def publish(self, topic: str, pid: str = "p" * 16, pseq: int = 1) -> int:
        """Publish one message; the answer is its ref."""
        self.ask(Pubs([self.publication(topic, pid, pseq)]))
        return self.refs

    def subscribe(self, topic: str) -> None:
        """Subscribe afresh."""
        self.ask(Sub(1, topic, None))

    def acked(self) -> list[int]:
        """The refs that were acknowledged."""
        answers = [m for m in self.got if isinstance(m, Answers)]
        return [item.ref for a in answers for item in a.items if isinstance(item, PubAck)]


class MemoryNode:
    """One process: a driver and what it is plugged into."""

    def __init__(self, world: World, name: str) -> None:
        self.world, self.name = world, name
        self.bell = Bell()
        self.links = MemoryLinks(world, name)
        self.keeper = MemoryKeeper(world, self.bell)
        self.front = MemoryFront(self.bell)
        self.scope = trio.CancelScope()
        self.dead = False
        self.ended = ""

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Boot, link up, and drive until the end."""
        cluster = self.world.cluster
        paths = Paths(cluster.name)
        address = f"{self.name}:8900"
        life = f"u{self.world.random.randrange(10**6)}"
        booted = await self.keeper.run(
            boot(paths, self.name, life, b"{}", cluster.groups, address, "client")
        )
        assert isinstance(booted, Booted)
        self.boot = booted.boot
        member = Member(
            cluster, self.name, booted.boot, booted.groups, booted.boots, Retention(),
            trio.current_time(), lambda: 0,
        )  # fmt: skip
        self.driver = Driver(
            member,
            MemberNode(booted.boot, address, "client"),
            self.links,
            self.keeper,
            self.front,
            self.bell,
            elsewhere=["elsewhere:8800"],
        )
        if self.world.traces is not None:
            place, groups = self.world.traces, cluster.groups
            writer = TraceWriter(
                place, "sim", self.name, groups, boot=booted.boot.n, sample=self.world.sample
            )
            self.driver.trace = MemberTrace(writer, member)
        for other in self.world.nodes:
            if other != self.name:
                self.world.join(self.name, other)
        task_status.started()
        with self.scope:
            self.ended = await self.driver.run()
        self.dead = True
        if self.driver.trace is not None:
            self.driver.trace.flush()

    async def served(self) -> None:
        """Wait until clients may come."""
        await self.until(lambda: self.driver.member.serving)

    async def until(self, condition: Callable[[], bool], patience: float = 30) -> None:
        """Wait for something that time will bring."""
        with trio.fail_after(patience):
            while not condition():  # noqa: ASYNC110 (on a mock clock, waiting is free)
                await trio.sleep(0.005)


class World:
    """All nodes, and what is between them."""

    def __init__(self, nursery: trio.Nursery, members: int, faults: int, groups: int) -> None:
        names = tuple("abcde"[:members])
        self.nursery = nursery
        self.random = Random(1)
        self.cluster = Cluster("sim", names, faults, groups)
        self.keeper = SimKeeper(self.random, self.later)
        self.keeper.now = trio.current_time
        self.nodes: dict[str, MemoryNode] = {}
        self.traces: Path | None = None  # where members write what they do ...
        self.sample = 1  # ... of one topic in so many

    def later(self, delay: float, what: Callable[[], None]) -> None:
        """Do something after a while."""

        async def wait() -> None:
            await trio.sleep(delay)
            what()

        self.nursery.start_soon(wait)

    async def start(self, name: str) -> MemoryNode:
        """Start a process."""
        node = MemoryNode(self, name)
        self.nodes[name] = node
        await self.nursery.start(node.run)
        return node

    def kill(self, name: str) -> None:
        """End a process as a crash does: peers are refused; its session ends a little later."""
        node = self.nodes.pop(name)
        node.scope.cancel()
        for other in list(node.links.peers):
            peer = self.nodes[other]
            peer.links.peers.discard(name)
            peer.links.events += [LinkDown(name, refused=False), LinkDown(name, refused=True)]
            peer.bell.ring()
        self.later(self.cluster.session, lambda: self.keeper.expire(node.keeper))

    def join(self, a: str, b: str) -> None:
        """Link two processes that have booted."""
        one, two = self.nodes[a], self.nodes[b]
        for near, far in ((one, two), (two, one)):
            near.links.peers.add(far.name)
            near.links.events.append(LinkUp(far.name, far.boot))
            near.bell.ring()

    def arrive(self, sender: str, to: str, frame: Received) -> None:
        """A frame comes out at the other end, if the link is still the same."""
        node = self.nodes.get(to)
        source = self.nodes.get(sender)
        if node and source and source.boot == frame.boot and sender in node.links.peers:
            node.links.events.append(frame)
            node.bell.ring()


@contextlib.asynccontextmanager
async def cluster(
    members: int, faults: int, groups: int = 4, traces: Path | None = None, sample: int = 1
) -> AsyncIterator[World]:
    """A running cluster whose members all serve."""
    async with trio.open_nursery() as nursery:
        world = World(nursery, members, faults, groups)
        world.traces, world.sample = traces, sample
        for name in world.cluster.members:
            await world.start(name)
        for node in list(world.nodes.values()):
            await node.served()
        yield world
        nursery.cancel_scope.cancel()
