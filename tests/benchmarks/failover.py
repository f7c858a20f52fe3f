"""A fault at a coordinator to the next acknowledgement, over many faults.

    ./dev python -m tests.benchmarks.failover [--kills 100] [--fault kill|pause|cut|cut-peers]

`cut` takes the coordinator's host off the network, `cut-peers` cuts it from the other members only.
Every process has a host of its own (a network namespace; without root everything is on loopback and
cannot be cut). A publisher that is connected to another member sends a message every 10 ms to a
group of the victim. The time counts from just before the fault is made to the first acknowledgement
of a message sent when it was complete. Then the fault is taken back and everybody becomes NORMAL.
Members write full traces. From their logs the time is divided into phases:

    noticed   the last of the others suspects the victim
    elected   one of them has won the election in ZooKeeper
    opened    it has the promises that it needs
    acked     the publisher has its acknowledgement
"""

from __future__ import annotations

import argparse
import datetime as dt
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import trio

from chaos.cluster import CLIENTS, Cluster, open_cluster
from chaos.nemesis import BREAKS
from chaos.network import open_network
from chaos.plan import Plan
from chaos.processes import Program
from chaos.topics import topics_of
from chaos.watched import LOOK
from tests.benchmarks.load import show

KINDS = {"kill": "kill-quick", "pause": "pause", "cut": "cut", "cut-peers": "cut-peers"}
MEMBERS, SURVIVE, GROUPS = 3, 1, 100
PATIENCE = 30.0  # seconds for an acknowledgement
PHASES = ("noticed", "elected", "opened", "acked")


class Outcome(msgspec.Struct, frozen=True):
    """One fault: at which second of the run, to whom, and when each phase had ended after it."""

    at: float
    victim: str
    group: int
    ends: dict[str, float]

    @property
    def took(self) -> float:
        """The seconds without an acknowledgement."""
        return self.ends["acked"]


async def one(cluster: Cluster, fault: str, start: float) -> Outcome:
    """One fault, from a cluster that is well to one that is well again."""
    victim, group = await choose(cluster)
    others = [name for name in cluster.members if name != victim]
    contact = cluster.servers[cluster.members.index(random.choice(others))]
    topic = topics_of(GROUPS)[group][0]
    prober = Program(
        ["tests.benchmarks.prober", contact, topic],
        cluster.network.entrance(CLIENTS),
        cluster.directory / "prober.log",
        output=subprocess.PIPE,
    )
    ends: dict[str, float] = {}
    began = 0.0

    async def hold(_: str) -> None:
        if fault == "pause":  # the signal takes effect when the process would run next
            stopped = os.WSTOPPED | os.WEXITED | os.WNOWAIT
            os.waitid(os.P_PID, cluster.programs[victim].pid, stopped)  # noqa: ASYNC222 (at once)
        ends["acked"] = await first_after(lines, time.monotonic()) - began

    try:
        lines = prober.lines()
        await first_after(lines, time.monotonic() + random.uniform(0.1, 0.4))
        read = {name: (cluster.directory / f"{name}.log").stat().st_size for name in others}
        began, wall = time.monotonic(), time.time()
        await BREAKS[KINDS[fault]](cluster, victim, hold)
    finally:
        prober.kill()
        prober.close_output()
    await cluster.wait_normal()
    for name in others:
        with (cluster.directory / f"{name}.log").open("rb") as log:
            log.seek(read[name])
            look(log.read(), victim, group, wall, ends)
    return Outcome(began - start, victim, group, ends)


async def choose(cluster: Cluster) -> tuple[str, int]:
    """A member that coordinates, by its own word and that of all others, and one of its groups."""
    with trio.fail_after(PATIENCE):
        while True:
            views = [s["groups"] for s in (await cluster.statuses()).values() if s is not None]
            led: dict[str, list[int]] = {}
            for group, *others in zip(*views, strict=True):
                names = {g["coordinator"] for g in (group, *others)}
                epochs = {g["epoch"] for g in (group, *others)}
                if len(names) == len(epochs) == 1 and len(views) == MEMBERS:
                    led.setdefault(names.pop(), []).append(group["group"])
            if sum(map(len, led.values())) == GROUPS:
                victim = random.choice(list(led))
                return victim, random.choice(led[victim])
            await trio.sleep(LOOK)


async def first_after(lines: AsyncIterator[bytes], moment: float) -> float:
    """When the first message sent after a moment was acknowledged."""
    with trio.fail_after(PATIENCE):
        while True:
            sent, acked = (await anext(lines)).split()
            if float(sent) > moment:
                return float(acked)


def look(log: bytes, victim: str, group: int, wall: float, ends: dict[str, float]) -> None:
    """Find the ends of phases in what a member wrote since the fault."""
    for line in log.splitlines():
        said: dict[str, Any] = msgspec.json.decode(line)
        after = dt.datetime.fromisoformat(said["timestamp"]).timestamp() - wall
        if after > ends["acked"]:
            return
        if said["event"] == "suspect" and said["detail"].startswith(f"{victim}:"):
            ends["noticed"] = max(ends.get("noticed", 0.0), after)
        elif said["event"] in ("elect", "open") and said["group"] == group:
            ends["elected" if said["event"] == "elect" else "opened"] = after


def tell_phases(outcomes: list[Outcome]) -> None:
    """What each phase took, and everything about the slowest faults."""
    before = dict(zip(PHASES, ("", *PHASES), strict=False))
    for phase in PHASES:
        times = [
            o.ends[phase] - o.ends.get(before[phase], 0.0) for o in outcomes if phase in o.ends
        ]
        if times:
            print(f"  until {phase}: {show(times)}")
    for o in sorted(outcomes, key=lambda o: -o.took)[:5]:
        ends = ", ".join(f"{p} {o.ends[p] * 1000:.0f}" for p in PHASES if p in o.ends)
        print(f"  slowest: {o.victim}, group {o.group}, {o.at:.1f} s into the run: {ends} ms")


async def measure(args: argparse.Namespace, directory: Path) -> None:
    """All faults, and what they took."""
    network, why_not = open_network()
    if why_not and args.fault.startswith("cut"):
        sys.exit(why_not)
    plan = Plan("failover", 0, 0, MEMBERS, SURVIVE, GROUPS, [], [])
    outcomes: list[Outcome] = []
    try:
        async with open_cluster(plan, network, directory, "failover") as cluster:
            start = time.monotonic()
            for n in range(args.kills):
                outcomes.append(await one(cluster, args.fault, start))
                if n % 10 == 9:
                    print(f"{n + 1}: {show([o.took for o in outcomes])}", flush=True)
    finally:
        network.close()
    tell_phases(outcomes)
    took = show([o.took for o in outcomes])
    print(f"{args.fault} to next acknowledgement, {len(outcomes)} times: {took}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--fault", choices=list(KINDS), default="kill")
    parser.add_argument("--keep", type=Path, help="a directory for logs and traces")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as made:
        directory = args.keep or Path(made)
        directory.mkdir(parents=True, exist_ok=True)
        trio.run(measure, args, directory)


if __name__ == "__main__":
    main()
