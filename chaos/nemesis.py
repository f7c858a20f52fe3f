"""The nemesis: does each kind of fault to a cluster, holds it, and takes it back.

A fault is a function: it breaks something, calls `hold` with what it hit (which writes `fault_on`
and waits for the planned time) and repairs in `finally`, also when the run is cancelled.

Invariant: a member is made to forget (killed, restarted) only while fewer than `survive` others are
without memory; a cluster that keeps nothing on disk promises nothing beyond that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator

import trio

from chaos.cluster import CLIENTS, LOOK, Cluster, find_faketime, namespaces_of
from chaos.kinds import KINDS, ROLES
from chaos.plan import Fault
from chaos.processes import Program
from chaos.sockets import reset_connections
from chaos.trace import note
from migratory.trace_files import TraceWriter

PATIENCE = 30.0  # seconds that a fault waits for its moment, and a restarted member for NORMAL
TENTH = (0.09, 0.01)  # seconds frozen and running: a tenth of a processor
RESET_EVERY = 0.3
FLAKY = 0.25  # seconds of each state
ARRIVED = 0.3  # seconds until all that was sent has been acknowledged: TCP repeats nothing later
ASLEEP = 1.2  # seconds that a sleepwalker sleeps at least: longer than others wait for it
SECOND_LIFE = 0.55  # of a zombie's time it is frozen, then it wakes

Hold = Callable[[str], Awaitable[None]]
Break = Callable[[Cluster, str, Hold], Awaitable[None]]


# ---- processes ----------------------------------------------------------------------------------


async def kill(cluster: Cluster, name: str, hold: Hold) -> None:
    """Kill -9, and a restart after the planned time."""
    await cluster.wait_remembered(name)
    cluster.kill(name)
    try:
        await hold(name)
    finally:
        cluster.start(name)


async def pause(cluster: Cluster, name: str, hold: Hold) -> None:
    """A frozen process whose connections stay open."""
    program = cluster.programs[name]
    program.pause()
    try:
        await hold(name)
    finally:
        program.resume()


async def sleepwalk(cluster: Cluster, name: str, hold: Hold) -> None:
    """A frozen process is replaced, wakes without hearing any member, knows of nothing, and dies.

    After a mere pause the request to promise a higher epoch waits in its sockets; and as long as it
    lives, what it alone holds is not lost.
    """
    await cluster.wait_remembered(name)
    cluster.programs[name].pause()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_walk, cluster, name)
            await hold(name)
            nursery.cancel_scope.cancel()
    finally:
        cluster.kill(name)
        cluster.start(name)


async def _walk(cluster: Cluster, name: str) -> None:
    """Deafen it and wake it as soon as another member knows another coordinator in every group."""
    await trio.sleep(ARRIVED)
    others = [member for member in cluster.members if member != name]
    with _cut(cluster, *((other, name) for other in others)):
        await trio.sleep(ASLEEP)
        while await _coordinates(cluster, others[0], name):  # noqa: ASYNC110 (it tells when asked)
            await trio.sleep(LOOK)
        cluster.programs[name].resume()
        await trio.sleep_forever()


async def _coordinates(cluster: Cluster, asked: str, name: str) -> bool:
    """Whether some group has this coordinator or none, as another member sees it."""
    status = await cluster.status(asked)
    return status is None or any(g["coordinator"] in ("", name) for g in status["groups"])


async def starve(cluster: Cluster, name: str, hold: Hold) -> None:
    """A process that seldom runs: frozen nine tenths of the time, so that nobody else suffers."""
    program = cluster.programs[name]
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_turns, program)
            await hold(name)
            nursery.cancel_scope.cancel()
    finally:
        program.resume()


async def _take_turns(program: Program) -> None:
    while True:
        program.pause()
        await trio.sleep(TENTH[0])
        program.resume()
        await trio.sleep(TENTH[1])


async def zombie(cluster: Cluster, name: str, hold: Hold) -> None:
    """A frozen process is replaced on a host with the same addresses, and wakes beside it."""
    await cluster.wait_remembered(name)
    network, old = namespaces_of(cluster), cluster.programs[name]
    old.pause()
    cluster.strays.append(old)
    port = network.replace(name)
    cluster.start(name)
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_wake, cluster, name, old, port)
            await hold(name)
            nursery.cancel_scope.cancel()
    finally:
        network.leave(port)
        old.kill()


async def _wake(cluster: Cluster, name: str, old: Program, port: int) -> None:
    while name in cluster.forgetful:  # its replacement serves first
        await cluster.status(name)
        await trio.sleep(0.1)
    namespaces_of(cluster).rejoin(port)
    old.resume()


async def clock(cluster: Cluster, name: str, hold: Hold) -> None:
    """A member whose wall clock, and nothing else, is an hour ahead."""
    ahead = {
        "LD_PRELOAD": find_faketime(), "FAKETIME": "+1h", "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    await _restart(cluster, name, ahead)
    try:
        await hold(name)
    finally:
        with trio.CancelScope(shield=True):
            await _restart(cluster, name)


async def rolling_restart(cluster: Cluster, _target: str, hold: Hold) -> None:
    """All members drain and come back, one after another, however long it takes."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, "all")
        for name in cluster.members:
            await _restart(cluster, name)


async def _restart(cluster: Cluster, name: str, environment: dict[str, str] | None = None) -> None:
    with trio.move_on_after(PATIENCE):
        await cluster.wait_remembered(name)
    try:
        await cluster.stop(name)
    finally:
        cluster.start(name, environment)
    with trio.move_on_after(PATIENCE):
        while name in cluster.forgetful:
            await cluster.status(name)
            await trio.sleep(0.1)


async def kill_zookeeper(cluster: Cluster, _target: str, hold: Hold) -> None:
    """Kill -9 of the server that leads."""
    await kill_server(cluster, await cluster.zookeeper_leader(), hold)


async def kill_server(cluster: Cluster, name: str, hold: Hold) -> None:
    """Kill -9 of a ZooKeeper server, which keeps its disk."""
    cluster.kill(name)
    try:
        await hold(name)
    finally:
        cluster.start(name)


async def stall_zookeeper(cluster: Cluster, target: str, hold: Hold) -> None:
    """All servers freeze together."""
    frozen = [cluster.programs[name] for name in cluster.zookeepers]
    for program in frozen:
        program.pause()
    try:
        await hold(target)
    finally:
        for program in frozen:
            program.resume()


# ---- connections --------------------------------------------------------------------------------


async def reset(cluster: Cluster, name: str, hold: Hold) -> None:
    """All connections of a member are reset again and again."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reset_often, cluster.programs[name])
        await hold(name)
        nursery.cancel_scope.cancel()


async def _reset_often(program: Program) -> None:
    while True:
        reset_connections(program.pid)
        await trio.sleep(RESET_EVERY)


@contextlib.contextmanager
def _cut(cluster: Cluster, *pairs: tuple[str, str]) -> Iterator[None]:
    for source, target in pairs:
        cluster.network.cut(source, target)
    try:
        yield
    finally:
        for source, target in pairs:
            cluster.network.heal(source, target)


def _both(name: str, others: list[str]) -> list[tuple[str, str]]:
    return [pair for other in others if other != name for pair in ((name, other), (other, name))]


def _everybody(cluster: Cluster) -> list[str]:
    return [*cluster.members, *cluster.zookeepers, CLIENTS]


async def cut(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host reaches nobody and is reached by nobody."""
    with _cut(cluster, *_both(name, _everybody(cluster))):
        await hold(name)


async def mute(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host hears everybody and is heard by nobody."""
    with _cut(cluster, *((name, other) for other in _everybody(cluster) if other != name)):
        await hold(name)


async def cut_zookeeper(cluster: Cluster, name: str, hold: Hold) -> None:
    """A member does not reach ZooKeeper."""
    with _cut(cluster, *_both(name, cluster.zookeepers)):
        await hold(name)


async def cut_peers(cluster: Cluster, name: str, hold: Hold) -> None:
    """A member does not reach the other members."""
    with _cut(cluster, *_both(name, cluster.members)):
        await hold(name)


async def cut_pair(cluster: Cluster, target: str, hold: Hold) -> None:
    """Two members do not reach each other."""
    one, _, other = target.partition("|")
    with _cut(cluster, (one, other), (other, one)):
        await hold(target)


async def cut_one_way(cluster: Cluster, target: str, hold: Hold) -> None:
    """One member is not heard by another."""
    source, _, deaf = target.partition(">")
    with _cut(cluster, (source, deaf)):
        await hold(target)


async def cut_clients(cluster: Cluster, target: str, hold: Hold) -> None:
    """Clients reach nobody."""
    with _cut(cluster, *_both(CLIENTS, cluster.members)):
        await hold(target)


async def flaky(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host that is gone for moments: what loss there is without netem."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_flap, cluster, name)
        await hold(name)
        nursery.cancel_scope.cancel()


async def _flap(cluster: Cluster, name: str) -> None:
    while True:
        with _cut(cluster, *_both(name, _everybody(cluster))):
            await trio.sleep(FLAKY)
        await trio.sleep(FLAKY)


async def slow_link(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host's network carries little."""
    network = namespaces_of(cluster)
    network.slow(name)
    try:
        await hold(name)
    finally:
        network.unslow(name)


BREAKS: dict[str, Break] = {
    "kill-quick": kill, "kill-long": kill, "pause": pause, "sleepwalk": sleepwalk, "zombie": zombie,
    "starve": starve, "reset": reset, "cut": cut, "mute": mute, "cut-zookeeper": cut_zookeeper,
    "cut-peers": cut_peers, "cut-pair": cut_pair, "cut-one-way": cut_one_way, "flaky": flaky,
    "slow-link": slow_link, "clock": clock, "rolling-restart": rolling_restart,
    "zookeeper-leader": kill_zookeeper, "zookeeper-stall": stall_zookeeper,
    "cut-clients": cut_clients,
}  # fmt: skip


class Nemesis:
    """Carries planned faults out and writes down when each had hold."""

    def __init__(self, cluster: Cluster, trace: TraceWriter, stampede: Callable[[], None]) -> None:
        self.cluster = cluster
        self.active: dict[str, str] = {}  # id: what is broken now
        self.happened = 0
        self._trace = trace
        self._stampede = stampede

    async def carry_out(self, fault: Fault) -> None:
        """Break, hold, repair. A fault whose moment does not come in time does not happen."""
        extra = {"fault": fault.kind, "target": fault.target, "id": fault.id}
        target = fault.target
        if target in ROLES:
            target = await self.cluster.in_role(target)
        with trio.move_on_after(PATIENCE) as moment:

            async def hold(hit: str) -> None:
                moment.deadline = float("inf")
                self.active[fault.id] = f"{fault.kind} {hit}"
                self.happened += 1
                note(self._trace, "fault_on", {**extra, "hit": hit})
                await trio.sleep(fault.for_ms / 1000)

            try:
                await self._break(fault.kind)(self.cluster, target, hold)
            finally:
                if self.active.pop(fault.id, None) is not None:
                    note(self._trace, "fault_off", extra)

    def _break(self, kind: str) -> Break:
        assert kind in KINDS
        return self._stampede_once if kind == "stampede" else BREAKS[kind]

    async def _stampede_once(self, _cluster: Cluster, target: str, hold: Hold) -> None:
        self._stampede()
        await hold(target)
