"""Kill -9 of a coordinator to the next acknowledgement, over many kills.

    ./dev python -m tests.benchmarks.failover [--kills 100] [--fault kill|pause]

A publisher that is connected to another member publishes one message after another to a group of
the victim. The time counts from the kill to the first acknowledgement of a message sent after it,
on the publisher's own clock. Then the victim is started again and everybody becomes NORMAL.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import trio

from client_sdk.client import open_client
from migratory.shell.local_cluster import LocalCluster, open_cluster
from migratory.wire.ids import group_of


async def one(cluster: LocalCluster, fault: str) -> float:
    """One fault; the seconds without an acknowledgement."""
    statuses = await cluster.statuses()
    victim = random.choice(cluster.names)
    led = [g["group"] for g in statuses[victim]["groups"] if g["role"] == "coordinator"]  # type: ignore[index]
    if not led:
        return await one(cluster, fault)
    wanted = random.choice(led)
    topic = next(f"/f/{n}" for n in range(100_000) if group_of(f"/f/{n}", cluster.groups) == wanted)
    others = [a.client for name, a in cluster.file.members.items() if name != victim]
    async with open_client(others[:1]) as client:
        for _ in range(3):
            await client.publish(topic, "before")
        await trio.sleep(random.random() * 0.2)
        began = time.monotonic()
        if fault == "kill":
            cluster.kill(victim)
        else:
            cluster.pause(victim)
        await client.publish(topic, "after")
        took = time.monotonic() - began
    if fault == "kill":
        cluster.start(victim)
    else:
        cluster.resume(victim)
    await cluster.wait_normal()
    return took


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--fault", choices=["kill", "pause"], default="kill")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as made:
        async with open_cluster(3, Path(made), zookeepers=3) as cluster:
            await cluster.wait_normal()
            times = []
            for n in range(args.kills):
                times.append(await one(cluster, args.fault))
                if n % 10 == 9:
                    print(f"{n + 1}: {show(times)}", flush=True)
    print(f"{args.fault} to next acknowledgement, {len(times)} times: {show(times)}")


def show(times: list[float]) -> str:
    """Percentiles in milliseconds."""
    ordered = sorted(times)
    p99 = ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))]
    p50 = statistics.median(ordered)
    return f"p50 {p50 * 1000:.0f} ms, p99 {p99 * 1000:.0f} ms, max {ordered[-1] * 1000:.0f} ms"


if __name__ == "__main__":
    trio.run(main)
