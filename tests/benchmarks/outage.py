"""Minutes without ZooKeeper under load: no publication may fail, and afterwards all is NORMAL.

    ./dev python -m tests.benchmarks.outage [--minutes 10] [--fault pause|kill] [--rate 300]

All ZooKeeper servers are frozen (SIGSTOP), or killed and started again with their disks. Publishers
and subscribers are at all members. When ZooKeeper is back, every member must be NORMAL and
connected to it, and every coordinator must have its node again; then one coordinator is killed, to
see that elections work. The exit code is 1 when a client saw an error, a gap or a reset.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
import trio

from coordinator.keeper import CoordNode, Fault, Node, Paths, read_many
from migratory.shell.bell import Bell
from migratory.shell.ensemble import Ensemble
from migratory.shell.local_cluster import LocalCluster, open_cluster
from migratory.shell.zookeeper import open_keeper
from tests.benchmarks.load import Load, Sample, open_load, tell_times

SESSION = 4.0
BACK = 120.0  # seconds for ZooKeeper to have a quorum, and for members to find it again
TELL_EVERY = 60.0


async def take_away(ensemble: Ensemble, fault: str) -> None:
    """Freeze or kill all servers."""
    for server in ensemble.numbers:
        await trio.to_thread.run_sync(ensemble.pause if fault == "pause" else ensemble.kill, server)


async def give_back(ensemble: Ensemble, fault: str) -> None:
    """The opposite; returns when there is a quorum."""
    for server in ensemble.numbers:
        ensemble.resume(server) if fault == "pause" else ensemble.start(server)
    await trio.to_thread.run_sync(ensemble.wait_ready)


async def nodes_are_right(cluster: LocalCluster) -> bool:
    """Whether ZooKeeper names the coordinator of every group that the members name."""
    paths = Paths(cluster.file.name)
    async with open_keeper(cluster.file.zookeeper, SESSION, Bell()) as keeper:
        wanted = [paths.coord(g) for g in range(cluster.groups)]
        nodes: list[Node | Fault] = await keeper.run(read_many(wanted))
    held = [
        msgspec.json.decode(node.value, type=CoordNode).owner if isinstance(node, Node) else ""
        for node in nodes
    ]
    return all(
        status is not None
        and status["zookeeper"]["connected"]
        and held == [group["coordinator"] for group in status["groups"]]
        for status in (await cluster.statuses()).values()
    )


async def wait_over(cluster: LocalCluster) -> None:
    """Wait until the outage has left nothing behind: all NORMAL, all nodes there again."""
    with trio.fail_after(BACK):
        while not await nodes_are_right(cluster):  # noqa: ASYNC110 (members tell when asked)
            await trio.sleep(0.1)
        await cluster.wait_normal()


async def hold(load: Load, seconds: float) -> None:
    """Let time pass, and tell how it goes."""
    began = trio.current_time()
    while (gone := trio.current_time() - began) < seconds:
        print(f"  {gone:.0f} s: {len(load.samples)} acknowledged", flush=True)
        await trio.sleep(min(TELL_EVERY, seconds - gone))


async def lose_one(cluster: LocalCluster) -> None:
    """Kill a member that coordinates: others take its groups over, so elections work again."""
    statuses = await cluster.statuses()
    victim = next(g["coordinator"] for s in statuses.values() if s for g in s["groups"])
    cluster.kill(victim)
    with trio.fail_after(BACK):
        while await coordinates(cluster, victim):  # noqa: ASYNC110 (members tell when asked)
            await trio.sleep(0.1)
    cluster.start(victim)
    await cluster.wait_normal()


async def coordinates(cluster: LocalCluster, victim: str) -> bool:
    """Whether a group is without a coordinator, or still with one that is dead."""
    views = [s["groups"] for s in (await cluster.statuses()).values() if s]
    return any(group["coordinator"] in ("", victim) for view in views for group in view)


def result(load: Load, samples: list[Sample], args: argparse.Namespace, back: float) -> str:
    """The line that counts."""
    return (
        f"{args.minutes:g} minutes without ZooKeeper ({args.fault}), {tell_times(samples)};"
        f" everything as before {back:.1f} s after its return, a lost coordinator replaced;"
        f" seen by clients: {'nothing' if load.flawless else load.verdict()}"
    )


async def run(cluster: LocalCluster, load: Load, args: argparse.Namespace) -> str:
    """The outage, from its begin to the proof that it is over."""
    await trio.sleep(2)
    began = trio.current_time()
    await take_away(cluster.ensemble, args.fault)
    await hold(load, args.minutes * 60)
    ended = trio.current_time()
    await give_back(cluster.ensemble, args.fault)
    await wait_over(cluster)
    back = trio.current_time() - ended
    await lose_one(cluster)
    await load.finish()
    samples = [s for s in load.samples if began <= s.at < ended]
    return result(load, samples, args, back)


async def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--fault", choices=["pause", "kill"], default="pause")
    parser.add_argument("--rate", type=float, default=300.0)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as made:
        async with open_cluster(3, Path(made), zookeepers=3) as cluster:
            await cluster.wait_normal()
            async with open_load(cluster, rate=args.rate) as load:
                print(await run(cluster, load, args))
                return 0 if load.flawless else 1


if __name__ == "__main__":
    sys.exit(trio.run(main))
