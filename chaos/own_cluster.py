"""A cluster that others started: broken and healed by their commands, judged by its own traces.

Nothing is started here but hooks. What a fault is, as data: the hook that breaks, and where. One
fault at a time has a member's process; cuts may overlap.

Invariants: nothing is broken before the cluster is NORMAL, is the one that the file describes and
writes the rows of this run; whatever was broken is healed at the end, or named.
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from chaos.cluster import CLIENTS
from chaos.faults_of_network import Turns
from chaos.hooks import Hooks, Spot
from chaos.nemesis import PATIENCE, Break
from chaos.network import Network
from chaos.own_file import HOOKS, OwnFile
from chaos.own_traces import check_fullness, check_traces, copy_traces
from chaos.watched import LOOK, Service, Status, Watched
from migratory.errors import MigratoryError

COLLECT = 120.0  # seconds for rows to be brought here when a run is given up
WELL = 30.0  # seconds for a cluster to be NORMAL before a run


class OwnCluster(Watched):
    """Members and servers by the names in their file, and what its hooks can do to them."""

    def __init__(self, file: OwnFile, place: Path, out: Path) -> None:
        members = [member.id for member in file.cluster.members]
        zookeepers = [server.id for server in file.cluster.zookeepers]
        super().__init__(members, zookeepers, file.cluster.faults, out, Network())
        self.file = file
        self.place = place
        self.hooks = Hooks(file.hooks, place, out)
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
        self._leaving: set[str] = set()  # members that a hook is ending, or has ended
        self._admin = {member.id: member.admin for member in file.cluster.members}
        self._keeper = {server.id: server.address for server in file.cluster.zookeepers}
        self._hosts = {member.id: _split(member.client)[0] for member in file.cluster.members}
        self._hosts |= {name: _split(address)[0] for name, address in self._keeper.items()}
        self._hosts[CLIENTS] = file.cluster.clients

    @property
    def servers(self) -> list[str]:
        """Where clients connect."""
        return [member.client for member in self.file.cluster.members]

    @property
    def advice(self) -> str:
        """The operator's own command."""
        return f"see: migratory status --admin {','.join(self._admin.values())}"

    def life(self, name: str) -> object:
        """Nothing while a hook ends it: then it may still say that it is NORMAL."""
        return None if name in self._leaving else name

    async def dial(self, name: str, service: Service) -> trio.SocketStream:
        """A connection from here."""
        address = (self._admin if service == "admin" else self._keeper)[name]
        return await trio.open_tcp_stream(*_split(address))

    # ---- where faults hit -----------------------------------------------------------------------

    def member(self, name: str) -> list[Spot]:
        """A member's process."""
        return [{"member": name, "host": self._hosts[name]}]

    def server(self, name: str) -> list[Spot]:
        """A ZooKeeper server's process, or all of them."""
        names = self.zookeepers if name == "ensemble" else [name]
        return [{"server": each, "host": self._hosts[each]} for each in names]

    def way(self, source: str, target: str) -> Spot:
        """From one machine to another."""
        hosts = {"from_host": self._hosts[source], "to_host": self._hosts[target]}
        return {"from": source, "to": target, **hosts}

    def both_ways(self, name: str, others: list[str]) -> list[Spot]:
        """Between one machine and others."""
        others = [other for other in others if other != name]
        return [self.way(name, o) for o in others] + [self.way(o, name) for o in others]

    def everybody(self) -> list[str]:
        """All machines."""
        return [*self.members, *self.zookeepers, CLIENTS]

    # ---- faults ---------------------------------------------------------------------------------

    def breaks(self) -> dict[str, Break]:
        """How the nemesis does each kind of fault that this cluster has hooks for."""
        return {
            kind: self._roll if kind == ROLLING else partial(self._hit, WAYS[kind])
            for kind in possible_kinds(self.file)
            if kind in WAYS
        }

    async def _hit(self, way: Way, _cluster: Watched, target: str, hold: Turns) -> None:
        name = await self.zookeeper_leader() if target == "leader" else target
        spots = way.spots(self, name)
        async with AsyncExitStack() as stack:
            if way.hook != "cut":
                for spot in spots:
                    turn = self._turns[spot.get("member", spot.get("server", ""))]
                    await stack.enter_async_context(turn)
            if way.hook == "kill":
                await self.wait_remembered(name)
                stack.enter_context(self._forgetting(name))
            hold.begin(name)  # the hook may take long, and has its own limit
            await stack.enter_async_context(self.hooks.breaking(way.hook, spots))
            await hold(name)

    async def _roll(self, _cluster: Watched, _target: str, hold: Turns) -> None:
        """All members drain and come back, one after another, however long it takes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, "all")
            for name in self.members:
                async with self._turns[name]:
                    with trio.move_on_after(PATIENCE) as waited:
                        await self.wait_remembered(name)
                    if waited.cancelled_caught:
                        break  # somebody does not get well, which the end of the run will tell
                    with hold.turn(name):
                        await self._restart(name)

    async def _restart(self, name: str) -> None:
        with self._forgetting(name):
            async with self.hooks.breaking("stop", self.member(name)):
                pass
        with trio.move_on_after(PATIENCE):
            await self._wait_normal(name)

    async def _wait_normal(self, name: str) -> None:
        while name in self.forgetful:
            await self.status(name)
            await trio.sleep(LOOK)

    async def wait_remembered(self, name: str) -> None:
        """Wait until `name` may lose its memory; also those count that are about to lose theirs."""
        while len((self.forgetful | self._leaving) - {name}) >= self.survive:
            await self.statuses()
            await trio.sleep(LOOK)

    @contextmanager
    def _forgetting(self, name: str) -> Iterator[None]:
        """While a hook ends a member, it may still say that it is NORMAL: that counts no more."""
        self._leaving.add(name)
        try:
            yield
        finally:
            self.forgetful.add(name)
            self._leaving.discard(name)

    # ---- is it the one, and does it tell --------------------------------------------------------

    async def check(self) -> None:
        """Whether the cluster is well, is the one that the file describes and traces this run."""
        await self.wait_normal(WELL)
        statuses = {n: s for n, s in (await self.statuses()).items() if s is not None}
        wrong = [told for name, s in statuses.items() for told in self._strange(name, s)]
        if wrong:
            remedy = "mend the file, or point it at the cluster that it describes"
            raise MigratoryError("OTHER_CLUSTER", "; ".join(wrong), remedy)
        boots = {name: int(str(s["boot"]).partition("-")[0]) for name, s in statuses.items()}
        await self.collect()
        check_traces(self.directory / "traces", self.file, boots)

    def _strange(self, name: str, status: Status) -> list[str]:
        """In what a member differs from the file."""
        found = []
        if status["member"] != name:
            found.append(f"{self._admin[name]} is {status['member']}, not {name}")
        if len(status["groups"]) != self.file.cluster.groups:
            found.append(f"{name} has {len(status['groups'])} groups")
        if {status["member"], *status["peers"]} != set(self.members):
            listed = ", ".join(sorted({status["member"], *status["peers"]}))
            found.append(f"{name} belongs to {listed}")
        return found

    async def collect(self) -> None:
        """Bring what members wrote of this run into the run's directory."""
        traces, run = self.directory / "traces", self.file.trace.run
        traces.mkdir(exist_ok=True)
        if self.file.trace.directory:
            copy_traces(self.place / self.file.trace.directory, traces, run, self.members)
            return
        for name in self.members:
            place = self.directory.absolute()  # hooks run elsewhere
            with tempfile.TemporaryDirectory(dir=place, prefix="collect-") as into:
                await self.hooks.run("collect", {**self.member(name)[0], "into": into})
                copy_traces(Path(into), traces, run, [name])


class Way(NamedTuple):
    """How hooks do a kind of fault: which one breaks, and what there is to know for it."""

    hook: str
    spots: Callable[[OwnCluster, str], list[Spot]]
    knows: tuple[str, ...] = ()  # tables and keys of [cluster]


def _pair(cluster: OwnCluster, target: str) -> list[Spot]:
    one, _, other = target.partition("|")
    return [cluster.way(one, other), cluster.way(other, one)]


def _one_way(cluster: OwnCluster, target: str) -> list[Spot]:
    source, _, deaf = target.partition(">")
    return [cluster.way(source, deaf)]


def _unheard(cluster: OwnCluster, name: str) -> list[Spot]:
    return [cluster.way(name, other) for other in cluster.everybody() if other != name]


ROLLING = "rolling-restart"
WAYS: Mapping[str, Way] = {
    "kill-quick": Way("kill", OwnCluster.member),
    "kill-long": Way("kill", OwnCluster.member),
    "pause": Way("pause", OwnCluster.member),
    "slow-link": Way("slow", OwnCluster.member),
    ROLLING: Way("stop", OwnCluster.member),
    "cut": Way("cut", lambda c, name: c.both_ways(name, c.everybody()), ("zookeepers", "clients")),
    "mute": Way("cut", _unheard, ("zookeepers", "clients")),
    "cut-zookeeper": Way("cut", lambda c, n: c.both_ways(n, c.zookeepers), ("zookeepers",)),
    "cut-peers": Way("cut", lambda c, name: c.both_ways(name, c.members)),
    "cut-pair": Way("cut", _pair),
    "cut-one-way": Way("cut", _one_way),
    "cut-clients": Way("cut", lambda c, _: c.both_ways(CLIENTS, c.members), ("clients",)),
    "zookeeper-leader": Way("zookeeper_kill", OwnCluster.server, ("zookeepers",)),
    "zookeeper-stall": Way("zookeeper_pause", OwnCluster.server, ("zookeepers",)),
}


def possible_kinds(file: OwnFile) -> frozenset[str]:
    """The kinds of faults that the file has hooks for; clients are always ours to send away."""
    return frozenset({"stampede"}) | frozenset(
        kind
        for kind, way in WAYS.items()
        if getattr(file.hooks, way.hook)
        and getattr(file.hooks, HOOKS[way.hook].healed_by)
        and all(getattr(file.cluster, known) for known in way.knows)
    )


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.removeprefix("[").removesuffix("]"), int(port)


async def check_own(file: OwnFile, place: Path) -> None:
    """Whether a run can be started on the cluster of this file; nothing is left of the look."""
    with tempfile.TemporaryDirectory(prefix="chaos-") as out:
        await OwnCluster(file, place, Path(out)).check()


@asynccontextmanager
async def open_own(file: OwnFile, place: Path, out: Path) -> AsyncIterator[OwnCluster]:
    """A cluster that was checked; leaving the block heals it and collects its rows."""
    cluster = OwnCluster(file, place, out)
    async with _collected(cluster), _healed(cluster):
        yield cluster


@asynccontextmanager
async def _healed(cluster: OwnCluster) -> AsyncIterator[None]:
    try:
        yield
    finally:
        with trio.CancelScope(shield=True):
            left = await cluster.hooks.heal_rest()
        if left:
            wrong = f"still broken: {'; '.join(left)}"
            remedy = f"heal by hand: sh {cluster.directory / 'heal.sh'}"
            raise MigratoryError("NOT_HEALED", wrong, remedy)


@asynccontextmanager
async def _collected(cluster: OwnCluster) -> AsyncIterator[None]:
    try:
        yield
    except BaseException:  # whatever went wrong, or who stopped it: rows may tell why
        with trio.move_on_after(COLLECT, shield=True), suppress(MigratoryError):
            await cluster.collect()
        raise
    await cluster.collect()
    check_fullness(cluster.directory / "traces", cluster.file)
