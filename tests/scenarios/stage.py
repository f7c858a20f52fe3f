"""A few members on a stage: nothing moves unless the script says so.

The real deciders run; links carry each message only when told to, a ZooKeeper procedure is carried
out at once on a simulated tree (or waits while ZooKeeper is away), and time is moved by hand. Every
effect of a member becomes one line of the trace, except heartbeats, which are carried silently.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from functools import partial
from random import Random
from typing import Any

from cache.retention import Retention
from coordinator.boot import boot, register
from coordinator.cluster import Cluster
from coordinator.events import (
    Event,
    KeeperAnswer,
    LinkDown,
    LinkUp,
    Ready,
    Received,
    SessionOpened,
    Tick,
)
from coordinator.keeper import Booted, MemberNode, Paths, Procedure
from coordinator.member import Member
from coordinator.replica import Replica
from migratory.wire.peer import Heartbeat, PeerMessage
from tests.scenarios.telling import tell_effects, tell_message, tell_result
from tests.simulation.keeper import SimKeeper

ROOM = 1 << 20  # bytes that a link takes at a time
MOMENT = 0.05  # seconds between two ticks of `run`
PATIENCE = 10_000  # messages after which things are said never to settle


class Life:
    """One life of a member's process."""

    def __init__(self, name: str, member: Member | None = None) -> None:
        self.name = name
        self.playing = member
        self.dead = False
        self.links: dict[str, Life] = {}

    @property
    def member(self) -> Member:
        """Its decider, once it has booted."""
        assert self.playing is not None, f"{self.name} has not booted"
        return self.playing

    def replica(self, g: int = 0) -> Replica:
        """One of its groups."""
        return self.member.replicas[g]


class Hold:
    """A rule: messages of one direction (and of these kinds, if any are named) stay on the wire."""

    def __init__(self, direction: str, kinds: Iterable[str]) -> None:
        self.sender, _, self.receiver = direction.partition(">")
        self.kinds = frozenset(kinds)

    def covers(self, sender: Life, receiver: Life, message: PeerMessage) -> bool:
        """Whether the rule speaks of a message."""
        return (
            self.sender in ("*", sender.name)
            and self.receiver in ("*", receiver.name)
            and (not self.kinds or type(message).__name__ in self.kinds)
        )


class Stage:
    """The members, what is on the wire between them, ZooKeeper, the time, and the trace."""

    def __init__(self, cluster: Cluster, retention: Retention) -> None:
        self.cluster = cluster
        self.retention = retention
        self.now = 0.0
        self.trace: list[str] = []
        self.lives: dict[str, Life] = {}
        self.wire: list[tuple[Life, Life, PeerMessage]] = []
        self.holds: list[Hold] = []
        self.cuts: set[frozenset[str]] = set()
        self.keeper_away = False
        self._errands: deque[Callable[[], None]] = deque()
        self.keeper = SimKeeper(Random(0), lambda _, errand: self._errands.append(errand))

    # ---- lives ---------------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Boot the next life of a member and link it with everybody who lives."""
        life = self.lives[name] = Life(name)
        self.keeper.open_session(life)
        procedure = boot(
            Paths(self.cluster.name), name, name, b"{}", self.cluster.groups, name, name
        )
        self.keeper.run(life, procedure, partial(self._booted, life))
        self.errands()

    def _booted(self, life: Life, result: object) -> None:
        assert isinstance(result, Booted), f"{life.name} was refused: {result}"
        life.playing = Member(
            self.cluster, life.name, result.boot, result.groups, result.boots, self.retention,
            self.now, lambda: int(self.now * 1000),
        )  # fmt: skip
        self._carry_out(life)
        for other in self.living():
            if other is not life and frozenset((life.name, other.name)) not in self.cuts:
                self._link(life, other)

    def living(self) -> list[Life]:
        """The processes that run."""
        return [life for life in self.lives.values() if not life.dead and life.playing is not None]

    def crash(self, name: str) -> None:
        """Kill a process; whoever redials it is refused. Its session lives on."""
        life = self.lives[name]
        life.dead = True
        for other in self.living():
            if other.links.get(name) is life:
                self._unlink(other, life, refused=True)

    def expire(self, name: str) -> None:
        """End a process's ZooKeeper session; one that lives gets another and registers again."""
        life = self.lives[name]
        self.keeper.expire(life)
        if not life.dead:
            self.keeper.open_session(life)
            self.give(life, SessionOpened())
            node = MemberNode(life.member.ctx.boot, name, name)
            procedure = register(Paths(self.cluster.name), name, node)
            self.keeper.run(life, procedure, lambda _: None)
            self.errands()

    # ---- links ---------------------------------------------------------------------------------

    def cut(self, a: str, b: str) -> None:
        """Break the link of two members; what is on it is lost."""
        self.cuts.add(frozenset((a, b)))
        self._unlink(self.lives[a], self.lives[b], refused=False)
        self._unlink(self.lives[b], self.lives[a], refused=False)

    def join(self, a: str, b: str) -> None:
        """Make the link of two members anew."""
        self.cuts.discard(frozenset((a, b)))
        self._link(self.lives[a], self.lives[b])

    def _link(self, a: Life, b: Life) -> None:
        a.links[b.name], b.links[a.name] = b, a
        self.give(a, LinkUp(b.name, b.member.ctx.boot))
        self.give(b, LinkUp(a.name, a.member.ctx.boot))

    def _unlink(self, life: Life, other: Life, *, refused: bool) -> None:
        life.links.pop(other.name, None)
        self.wire = [each for each in self.wire if {each[0], each[1]} != {life, other}]
        self.give(life, LinkDown(other.name, refused))

    def drop(self, direction: str, kinds: Iterable[str] = ()) -> None:
        """Lose what is on the wire in one direction."""
        rule = Hold(direction, kinds)
        lost = [each for each in self.wire if rule.covers(*each)]
        self.wire = [each for each in self.wire if not rule.covers(*each)]
        self._tell_carried("lost", lost)

    def deliver(self, direction: str, kinds: Iterable[str] = ()) -> None:
        """Carry what is on the wire in one direction now, held or not; not the answers to it."""
        rule = Hold(direction, kinds)
        chosen = [each for each in self.wire if rule.covers(*each)]
        self.wire = [each for each in self.wire if not rule.covers(*each)]
        self._tell_carried("arrives", chosen)
        for sender, receiver, message in chosen:
            self._arrive(sender, receiver, message)

    def _tell_carried(self, verb: str, carried: list[tuple[Life, Life, PeerMessage]]) -> None:
        for sender, receiver, message in carried:
            if not isinstance(message, Heartbeat):
                told = tell_message(message)
                self.trace.append(f"{verb}: {sender.name} > {receiver.name} {told}")

    def settle(self) -> None:
        """Carry everything that no rule holds, and the answers to it, until nothing moves."""
        for _ in range(PATIENCE):
            free = (n for n, each in enumerate(self.wire) if not self._held(*each))
            at = next(free, None)
            if at is None:
                return
            self._arrive(*self.wire.pop(at))
        raise AssertionError("the members do not come to rest")

    def _held(self, sender: Life, receiver: Life, message: PeerMessage) -> bool:
        return any(rule.covers(sender, receiver, message) for rule in self.holds)

    def _arrive(self, sender: Life, receiver: Life, message: PeerMessage) -> None:
        if receiver.links.get(sender.name) is sender:
            self.give(receiver, Received(sender.name, sender.member.ctx.boot, [message]))

    # ---- time ----------------------------------------------------------------------------------

    def run(self, seconds: float) -> None:
        """Let time pass for everybody, carrying what no rule holds."""
        self.settle()
        for _ in range(round(seconds / MOMENT)):
            self.tick(MOMENT)
            self.settle()

    def tick(self, seconds: float, names: Iterable[str] = ()) -> None:
        """Let time pass, then wake these members (everybody, if none is named)."""
        self.now = round(self.now + seconds, 6)
        chosen = list(names)
        for life in self.living():
            if not chosen or life.name in chosen:
                self.give(life, Tick())

    # ---- steps ---------------------------------------------------------------------------------

    def give(self, life: Life, event: Event) -> None:
        """One step of one member, and its effects."""
        if life.dead:
            return
        life.member.step(event, self.now)
        self._carry_out(life)

    def _carry_out(self, life: Life) -> None:
        member = life.member
        self._effects(life, member.take_ready())
        for peer in member.ctx.peers:
            if peer in life.links:
                self._send(life, [(peer, message) for message in member.collect(peer, ROOM)])
                self._effects(life, member.take_ready())

    def _effects(self, life: Life, ready: Ready) -> None:
        self.trace += [f"{life.name} {line}" for line in tell_effects(ready)]
        self._send(life, ready.sends)
        for token, procedure in ready.procedures:
            self.keeper.run(life, procedure, partial(self._answer, life, token, procedure))
        self.errands()
        if ready.exit:
            self.crash(life.name)

    def _send(self, life: Life, sends: Iterable[tuple[str, PeerMessage]]) -> None:
        for peer, message in sends:
            target = life.links.get(peer)
            if target is not None:
                self.wire.append((life, target, message))
            if not isinstance(message, Heartbeat):
                lost = "" if target is not None else " (no link)"
                held = target is not None and self._held(life, target, message)
                told = tell_message(message)
                self.trace.append(f"{life.name} > {peer} {told}{' (held)' if held else ''}{lost}")

    def _answer(self, life: Life, token: int, procedure: Procedure, value: Any) -> None:
        name = procedure.__name__  # type: ignore[attr-defined]  # generators have one
        if name != "synced":  # a member asks now and then whether ZooKeeper is there
            self.trace.append(f"{life.name} ZooKeeper {name}: {tell_result(value)}")
        self.give(life, KeeperAnswer(token, value))

    def errands(self) -> None:
        """Let ZooKeeper do what it was asked, unless it is away."""
        while self._errands and not self.keeper_away:
            self._errands.popleft()()
