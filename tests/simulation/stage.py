"""A cluster moved by hand: nothing arrives, and no time passes, unless a trace says so.

Messages lie in `net` until they are delivered or lost; entries are collected after every step.
ZooKeeper answers at once, unless a member's procedures are held. The checker of the simulation
looks at every step.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

import msgspec

from cache.retention import Retention
from coordinator.boot import boot
from coordinator.cluster import Cluster
from coordinator.events import (
    Event,
    KeeperAnswer,
    LinkDown,
    LinkUp,
    Note,
    Publish,
    Received,
    Tick,
)
from coordinator.keeper import Booted, BootRefused, Fault, KeeperOp, Multi, Paths, Procedure
from coordinator.member import Member
from coordinator.replica import Replica
from migratory.wire.ids import Boot, group_of
from migratory.wire.peer import Heartbeat, PeerMessage, Publication, Refusal
from migratory.wire.shard import PubAck
from tests.simulation.checker import Checker
from tests.simulation.keeper import SimKeeper
from tests.simulation.rest import compare

KEEP_LITTLE = Retention(
    max_messages=8, max_age_ms=3_000, dedup_ttl_ms=11_000, topic_ttl_ms=12_000, log_entries=24,
    log_bytes=1 << 16,
)  # fmt: skip


class Life:
    """One life of a member."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.member: Member | None = None
        self.boot: Boot | None = None
        self.dead = False
        self.links: dict[str, Life] = {}

    def __repr__(self) -> str:
        return f"{self.name}.{self.boot.n if self.boot else '?'}"


class Flight(msgspec.Struct):
    """A message on its way from one life to another."""

    sender: Life
    target: Life
    message: PeerMessage

    def __repr__(self) -> str:
        return f"{self.sender}>{self.target} {self.message}"


class Booting:
    """A boot that stopped before one of its operations in ZooKeeper."""

    def __init__(self, stage: Stage, life: Life, procedure: Procedure) -> None:
        self.stage = stage
        self.life = life
        self.procedure = procedure
        self.result: Booted | BootRefused | None = None
        self._value: Any = None
        self._op: KeeperOp | None = None

    def run(self, before: Callable[[KeeperOp], bool] = lambda _: False) -> Booting:
        """Go on until an operation that is to wait, or to the end."""
        while self.result is None:
            if self._op is not None:
                self._value = self.stage.execute(self.life, self._op)
            try:
                self._op = self.procedure.send(self._value)
            except StopIteration as end:
                self.result = end.value
                return self
            if before(self._op):
                return self
        return self


Kind = type | tuple[type, ...]
Names = str | tuple[str, ...]  # one member, or several; none stands for all


class Stage:
    """The cluster, its network and its ZooKeeper."""

    def __init__(
        self,
        members: int = 3,
        faults: int = 1,
        groups: int = 1,
        retention: Retention = KEEP_LITTLE,
    ) -> None:
        names = tuple(f"m{n}" for n in range(members))
        self.cluster = Cluster("stage", names, faults, groups, session=4.0)
        self.retention = retention
        self.now = 100.0
        self.room = 1 << 20  # bytes that a link takes at a time
        self.checker = Checker(self.cluster, retention)
        self.keeper = SimKeeper(Random(0), lambda _, action: action())
        self.lives: dict[str, Life] = {}
        self.net: list[Flight] = []
        self.held: dict[str, list[Callable[[], None]]] = {}  # procedures of these members wait
        self.outcomes: list[Any] = []  # faults for the next transactions: before or after
        self.answers: list[tuple[Publication, PubAck | Refusal]] = []
        self.notes: list[tuple[str, Note]] = []
        self.items: dict[int, Publication] = {}

    # ---- looking -------------------------------------------------------------------------------

    def member(self, name: str) -> Member:
        """The decider of a member that has booted."""
        member = self.lives[name].member
        assert member is not None
        return member

    def replica(self, name: str, g: int = 0) -> Replica:
        """A member's part of a group."""
        return self.member(name).replicas[g]

    def leads(self, name: str, g: int = 0) -> bool:
        """Whether a member coordinates a group."""
        return self.replica(name, g).leading is not None

    def acked(self) -> list[int]:
        """The publisher sequences acknowledged so far, in order."""
        return [item.pseq for item, answer in self.answers if isinstance(answer, PubAck)]

    def noted(self, kind: str) -> list[str]:
        """The details of all notes of a kind."""
        return [note.detail for _, note in self.notes if note.kind == kind]

    # ---- lives ---------------------------------------------------------------------------------

    def start(self, name: str) -> Booting:
        """Begin the next life of a member; nothing happens until the boot is run."""
        life = Life(name)
        self.keeper.open_session(life)
        uuid = f"{len(self.checker.lives):08x}"
        procedure = boot(
            Paths(self.cluster.name), name, uuid, b"{}", self.cluster.groups, name, name
        )
        return Booting(self, life, procedure)

    def enter(self, booting: Booting, links: list[str] | None = None) -> Life:
        """The boot has ended: the decider begins, linked to these members (or to all)."""
        result, life = booting.result, booting.life
        assert isinstance(result, Booted), result
        life.boot = result.boot
        life.member = Member(
            self.cluster, life.name, result.boot, result.groups, result.boots, self.retention,
            self.now, lambda: int(self.now * 1000),
        )  # fmt: skip
        self.checker.born(life.member)
        self.lives[life.name] = life
        for other in list(self.lives) if links is None else links:
            if other != life.name and not self.lives[other].dead:
                self.link(life.name, other)
        return life

    def boot(self, name: str, links: list[str] | None = None) -> Life:
        """Begin the next life of a member and let it enter the cluster."""
        return self.enter(self.start(name).run(), links)

    def link(self, a: str, b: str) -> None:
        """Connect the present lives of two members."""
        one, other = self.lives[a], self.lives[b]
        assert one.boot is not None
        assert other.boot is not None
        one.links[b], other.links[a] = other, one
        self.step(one, LinkUp(b, other.boot))
        self.step(other, LinkUp(a, one.boot))

    def crash(self, name: str, *, noticed: bool = False) -> None:
        """End a life; what it sent is still under way."""
        life = self.lives[name]
        life.dead = True
        self.keeper.expire(life)
        for other in self.lives.values():
            if noticed and not other.dead and other.links.get(name) is life:
                self.step(other, LinkDown(name, refused=True))

    def open(self, coordinator: str = "m0", g: int = 0) -> None:
        """Everybody boots; one member opens the group, and all follow it."""
        for name in self.cluster.members:
            self.boot(name)
        self.settle()
        self.stand(coordinator, g)
        self.settle()

    # ---- steps ---------------------------------------------------------------------------------

    def step(self, life: Life | str, event: Event) -> None:
        """Let a decider take an event, and put what it says on the net."""
        life = self.lives[life] if isinstance(life, str) else life
        member = life.member
        assert member is not None
        if life.dead:
            return
        self.checker.now = self.now
        member.step(event, self.now)
        self.effects(life)

    def effects(self, life: Life) -> None:
        """Carry out what the last step brought about."""
        member = life.member
        assert member is not None
        self.checker.observe(member)
        ready = member.take_ready()
        self.notes += [(life.name, note) for note in ready.notes]
        for answer in ready.answers:
            item = self.items[answer.ref]
            self.answers.append((item, answer))
            if isinstance(answer, PubAck):
                self.checker.acked(group_of(item.topic, self.cluster.groups), answer, item)
        for peer, message in ready.sends:
            self.send(life, peer, message)
        for token, procedure in ready.procedures:
            self._begin(life, procedure, partial(self._answer, life, token))
        for peer in member.ctx.peers:
            for message in member.collect(peer, self.room):
                self.send(life, peer, message)
        if member.ctx.ready.sends:
            self.effects(life)  # a transfer began while entries were collected
        if ready.exit:
            life.dead = True

    def _answer(self, life: Life, token: int, value: object) -> None:
        self.step(life, KeeperAnswer(token, value))

    def send(self, life: Life, peer: str, message: PeerMessage) -> None:
        """Put a message on the net, if there is a link. Heartbeats are not wanted in traces."""
        target = life.links.get(peer)
        if target is not None and not isinstance(message, Heartbeat):
            self.net.append(Flight(life, target, message))

    def tick(self, name: str, after: float = 0.0) -> None:
        """Time passes for everybody; one member looks at its clock."""
        self.now += after
        self.step(name, Tick())

    # ---- ZooKeeper -----------------------------------------------------------------------------

    def execute(self, life: Life, op: KeeperOp) -> Any:
        """One operation in ZooKeeper, whose outcome may be lost."""
        if isinstance(op, Multi) and self.outcomes:
            when = self.outcomes.pop(0)
            if when == "after":
                self.keeper._apply(life, op)
            if when:
                return Fault.LOST
        return self.keeper._apply(life, op)

    def _begin(self, life: Life, procedure: Procedure, done: Callable[[Any], None]) -> None:
        def run() -> None:
            value: Any = None
            while True:
                try:
                    op = procedure.send(value)
                except StopIteration as end:
                    done(end.value)
                    return
                value = self.execute(life, op)

        if life.name in self.held:
            self.held[life.name].append(run)
        else:
            run()

    def hold(self, name: str) -> None:
        """Let the procedures of a member wait."""
        self.held[name] = []

    def release(self, name: str) -> None:
        """Run the procedures that waited."""
        for run in self.held.pop(name):
            run()

    def stand(self, name: str, g: int = 0) -> None:
        """A member asks for the next epoch of a group, whoever has the present one."""
        life = self.lives[name]
        self.member(name).elections.stand(self.replica(name, g), frozenset(self.cluster.members))
        self.effects(life)

    # ---- the network ---------------------------------------------------------------------------

    def flights(self, kind: Kind | None = None, frm: Names = "", to: Names = "") -> list[Flight]:
        """Messages under way, of a kind, from or to some members."""
        return [
            f
            for f in self.net
            if (kind is None or isinstance(f.message, kind))
            and (not frm or f.sender.name in frm)
            and (not to or f.target.name in to)
        ]

    def deliver(self, kind: Kind | None = None, frm: Names = "", to: Names = "") -> int:
        """Deliver what is under way now and matches; how many messages that were."""
        chosen = self.flights(kind, frm, to)
        for flight in chosen:
            self.net.remove(flight)
            self.arrive(flight)
        return len(chosen)

    def flow(self, kind: Kind | None = None, frm: Names = "", to: Names = "") -> None:
        """Deliver what matches until nothing more comes."""
        for _ in range(1000):
            if not self.deliver(kind, frm, to):
                return
        raise AssertionError("the messages never end")

    def between(self, *names: str) -> None:
        """Deliver everything between these members until nothing more comes."""
        for _ in range(1000):
            chosen = [f for f in self.net if f.sender.name in names and f.target.name in names]
            if not chosen:
                return
            for flight in chosen:
                self.net.remove(flight)
                self.arrive(flight)
        raise AssertionError("the messages never end")

    def settle(self) -> None:
        """Deliver everything until nothing is under way."""
        self.flow()

    def lose(self, kind: Kind | None = None, frm: Names = "", to: Names = "") -> list[Flight]:
        """Lose what is under way and matches; it may still be made to arrive later."""
        chosen = self.flights(kind, frm, to)
        for flight in chosen:
            self.net.remove(flight)
        return chosen

    def arrive(self, flight: Flight) -> None:
        """A message reaches the life it was sent to."""
        sender = flight.sender
        assert sender.boot is not None
        self.step(flight.target, Received(sender.name, sender.boot, [flight.message]))

    def inject(self, frm: str, to: str, message: PeerMessage) -> None:
        """Deliver a message that a member says now."""
        self.arrive(Flight(self.lives[frm], self.lives[frm].links[to], message))

    # ---- clients -------------------------------------------------------------------------------

    def publish(
        self, contact: str, pseq: int, *, topic: str = "/a", pid: str = "publisher", text: str = ""
    ) -> None:
        """A client of a member publishes."""
        ref = len(self.items) + 1
        payload = (text or f"{pid}-{pseq}").encode()
        item = self.items[ref] = Publication(topic, payload, 0, pid, pseq, ref)
        self.step(contact, Publish([item]))

    def rest(self) -> None:
        """Everything arrives; then all members that live are equal, and nothing is lost."""
        self.settle()
        compare(self.checker, [life.member for life in self.lives.values() if life.member])
