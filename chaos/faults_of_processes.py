"""Faults of processes: what is killed, frozen, starved, restarted, or cannot write its files.

Each is a function: it breaks something, calls `hold` with what it hit (which writes `fault_on` and
waits for the planned time) and repairs in `finally`, also when the run is cancelled.

Invariant: a member is made to forget (killed, restarted) only while fewer than `survive` others are
without memory; a cluster that keeps nothing on disk promises nothing beyond that. The one exception
is `recover`, where an operator accepts the loss.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import trio

from chaos.cluster import Cluster, find_faketime, namespaces_of
from chaos.faults_of_network import Hold, Turns, both_ways, cuts, everybody, slowed
from chaos.kinds import COORDINATOR
from chaos.processes import Program

PATIENCE = 30.0  # seconds that a restarted member has to be NORMAL, and an order to be obeyed
TENTH = (0.09, 0.01)  # seconds frozen and running: a tenth of a processor
ARRIVED = 0.3  # seconds until all that was sent has been acknowledged: TCP repeats nothing later
ASLEEP = 1.2  # seconds that a sleepwalker sleeps at least: longer than others wait for it
AWAKE = 1.0  # seconds that a process which wakes too late has at least
MOMENT = 15.0  # seconds that a fault waits for the moment in which it is to strike once more
RECOVERING_RATE = "4mbit"  # the states of a run's groups take a second or a few
LOOK = 0.02  # seconds between two looks at a member that recovers


# ---- ends and beginnings ------------------------------------------------------------------------


async def kill(cluster: Cluster, name: str, hold: Hold) -> None:
    """Kill -9, and a restart after the planned time."""
    async with cluster.replacing(name):
        cluster.kill(name)
        try:
            await hold(name)
        finally:
            cluster.start(name)


async def kill_recovering(cluster: Cluster, name: str, hold: Turns) -> None:
    """Kill -9, and once more when the member is back and has got some of its groups, not all."""
    # Over a slow link, so that this moment lasts.
    async with cluster.replacing(name), slowed(cluster, name, RECOVERING_RATE):
        cluster.kill(name)
        hold.begin(name)
        try:
            with trio.move_on_after(MOMENT) as waited:
                await _recover_halfway(cluster, name)
            if waited.cancelled_caught:
                hold.missed()
            cluster.kill(name)
            await hold.rest()
        finally:
            cluster.kill(name)
            cluster.start(name)


async def _recover_halfway(cluster: Cluster, name: str) -> None:
    got = cluster.groups
    while got in (0, cluster.groups):
        if got:  # all of them, or the first time
            cluster.kill(name)
            cluster.start(name)
        await trio.sleep(LOOK)
        status = await cluster.status(name)
        got = sum(each["status"] == "NORMAL" for each in status["groups"]) if status else 0


async def zombie(cluster: Cluster, name: str, hold: Turns) -> None:
    """A frozen process is replaced on a host with the same addresses, and wakes beside it."""
    async with cluster.replacing(name), cluster.cables[name]:
        network, old = namespaces_of(cluster), cluster.programs[name]
        old.pause()
        hold.begin(name)
        cluster.strays.append(old)
        port = network.replace(name)
        cluster.start(name)
        try:
            with trio.move_on_after(MOMENT) as waited:
                await _wait_normal(cluster, name)  # its replacement serves first
            if waited.cancelled_caught:
                hold.missed()
            network.rejoin(port)
            old.resume()
            await trio.sleep(AWAKE)
            await hold.rest()
        finally:
            network.leave(port)
            old.kill()


async def _wait_normal(cluster: Cluster, name: str) -> None:
    while name in cluster.forgetful:
        await cluster.status(name)
        await trio.sleep(LOOK)


async def clock(cluster: Cluster, name: str, hold: Hold) -> None:
    """A member whose wall clock, and nothing else, is an hour ahead."""
    ahead = {
        "LD_PRELOAD": find_faketime(), "FAKETIME": "+1h", "DONT_FAKE_MONOTONIC": "1",
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
    }  # fmt: skip
    await _replace(cluster, name, ahead)
    try:
        await hold(name)
    finally:
        with trio.move_on_after(PATIENCE, shield=True):
            await _replace(cluster, name)


async def _replace(cluster: Cluster, name: str, environment: dict[str, str] | None = None) -> None:
    async with cluster.replacing(name):
        cluster.kill(name)
        cluster.start(name, environment)


async def rolling_restart(cluster: Cluster, _target: str, hold: Turns) -> None:
    """All members drain and come back, one after another, however long it takes."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(hold, "all")
        for name in cluster.members:
            async with contextlib.AsyncExitStack() as stack:
                with trio.move_on_after(PATIENCE) as waited:
                    await stack.enter_async_context(cluster.replacing(name))
                if waited.cancelled_caught:
                    break  # somebody does not get well, which the end of the run will tell
                with hold.turn(name):
                    await _restart(cluster, name)


async def _restart(cluster: Cluster, name: str) -> None:
    try:
        await cluster.stop(name)
    finally:
        cluster.start(name)
    with trio.move_on_after(PATIENCE):
        await _wait_normal(cluster, name)


async def recover(cluster: Cluster, _target: str, hold: Hold) -> None:
    """One member is cut off, all others forget, and the operator gives up what only it holds."""
    kept = await cluster.in_role(COORDINATOR)
    others = [name for name in cluster.members if name != kept]
    with cuts(cluster, *both_ways(kept, everybody(cluster))):
        for name in others:
            cluster.kill(name)
            cluster.start(name)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(hold, "all")
            with trio.move_on_after(PATIENCE):
                while cluster.forgetful.intersection(others):
                    await cluster.recover(others[0])
                    await cluster.statuses()


# ---- time and room ------------------------------------------------------------------------------


async def pause(cluster: Cluster, name: str, hold: Hold) -> None:
    """A frozen process whose connections stay open."""
    cluster.pause(name)
    try:
        await hold(name)
    finally:
        cluster.resume(name)


async def sleepwalk(cluster: Cluster, name: str, hold: Turns) -> None:
    """A frozen process is replaced, wakes without hearing any member, knows of nothing, and dies.

    After a mere pause the request to promise a higher epoch waits in its sockets; and as long as it
    lives, what it alone holds is not lost.
    """
    others = [member for member in cluster.members if member != name]
    async with cluster.replacing(name):
        cluster.pause(name)
        hold.begin(name)
        try:
            await trio.sleep(ARRIVED)
            with cuts(cluster, *((other, name) for other in others)):
                with trio.move_on_after(MOMENT) as waited:
                    await _wait_replaced(cluster, others[0], name)
                if waited.cancelled_caught:
                    hold.missed()
                cluster.resume(name)
                await trio.sleep(AWAKE)
                await hold.rest()
                cluster.kill(name)
        finally:
            cluster.kill(name)
            cluster.start(name)


async def _wait_replaced(cluster: Cluster, other: str, name: str) -> None:
    """Until another member knows other coordinators in every group of a member."""
    await trio.sleep(ASLEEP)
    while await _coordinates(cluster, other, name):  # noqa: ASYNC110 (it tells when asked)
        await trio.sleep(LOOK)


async def _coordinates(cluster: Cluster, asked: str, name: str) -> bool:
    """Whether some group has this coordinator or none, as another member sees it."""
    status = await cluster.status(asked)
    return status is None or any(g["coordinator"] in ("", name) for g in status["groups"])


async def starve(cluster: Cluster, name: str, hold: Hold) -> None:
    """A process that seldom runs: frozen nine tenths of the time, so that nobody else suffers."""
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_take_turns, cluster, name)
            await hold(name)
            nursery.cancel_scope.cancel()
    finally:
        cluster.resume(name)


async def _take_turns(cluster: Cluster, name: str) -> None:
    while True:
        cluster.pause(name)
        await trio.sleep(TENTH[0])
        cluster.resume(name)
        await trio.sleep(TENTH[1])


async def full_disk(cluster: Cluster, name: str, hold: Hold) -> None:
    """No file of a member takes a byte more; what it could not write, it writes afterwards."""
    async with cluster.keeping(name):  # rows that wait for room would die with the process
        with _no_room(cluster.programs[name]):
            await hold(name)
        written = cluster.trace_bytes(name)
        with trio.move_on_after(PATIENCE):
            while cluster.trace_bytes(name) == written:  # noqa: ASYNC110 (files tell nobody)
                await trio.sleep(LOOK)


async def full_zookeeper_disk(cluster: Cluster, _target: str, hold: Hold) -> None:
    """No file of ZooKeeper's leader takes a byte more; it ends, and is started when there is room.

    Only a supervisor with an eye on the disk would start it sooner.
    """
    name = await cluster.zookeeper_leader()
    async with cluster.replacing(name):
        program = cluster.programs[name]
        cluster.down.add(name)
        try:
            with _no_room(program):
                await hold(name)
        finally:
            cluster.down.discard(name)
            if not program.running:
                cluster.start(name)


@contextlib.contextmanager
def _no_room(program: Program) -> Iterator[None]:
    program.allow_files(grow=False)
    try:
        yield
    finally:
        program.allow_files(grow=True)


# ---- ZooKeeper ----------------------------------------------------------------------------------


async def kill_zookeeper(cluster: Cluster, _target: str, hold: Hold) -> None:
    """Kill -9 of the server that leads, which keeps its disk."""
    await kill(cluster, await cluster.zookeeper_leader(), hold)


async def stall_zookeeper(cluster: Cluster, target: str, hold: Hold) -> None:
    """All servers freeze together."""
    for name in cluster.zookeepers:
        cluster.pause(name)
    try:
        await hold(target)
    finally:
        for name in cluster.zookeepers:
            cluster.resume(name)
