"""Rolling restarts under load: what clients see of them, and how late acknowledgements are.

    ./dev python -m tests.benchmarks.restart [--rounds 10] [--rate 300]

In each round every member in turn gets SIGTERM, drains, ends, is started again and becomes NORMAL,
then the next one follows at once. Publishers and subscribers are connected to all members. All
messages published from the first SIGTERM to the end of the last round count. The exit code is 1
when a client saw an error, a gap or a reset.
"""

from __future__ import annotations

import argparse
import bisect
import sys
import tempfile
from collections import Counter
from pathlib import Path

import trio

from migratory.shell.local_cluster import LocalCluster, open_cluster
from tests.benchmarks.load import Load, Sample, open_load, show, tell_times

LATE = 0.1  # seconds
DRAIN, START = "while a member drains", "while a member starts"


class Phases:
    """When what happened."""

    def __init__(self) -> None:
        self.begins: list[float] = []
        self.names: list[str] = []

    def begin(self, name: str) -> None:
        """From now on it is this phase."""
        self.begins.append(trio.current_time())
        self.names.append(name)

    def at(self, moment: float) -> str:
        """The phase of a moment."""
        found = bisect.bisect_right(self.begins, moment)
        return self.names[found - 1] if found else ""


async def roll(cluster: LocalCluster, phases: Phases) -> None:
    """Restart all members, one after another."""
    for name in cluster.names:
        phases.begin(DRAIN)
        code = await cluster.stop(name)
        if code != 0:
            sys.exit(f"{name} did not drain, it ended with {code}:\n{cluster.log_tail(name)}")
        phases.begin(START)
        cluster.start(name)
        await cluster.wait_normal()


def tell(samples: list[Sample], phases: Phases) -> None:
    """Where late acknowledgements come from."""
    parts: dict[str, list[float]] = {}
    late: Counter[str] = Counter()
    for sample in samples:
        part = f"{phases.at(sample.at)}, publisher {'moved' if sample.moved else 'stayed'}"
        parts.setdefault(part, []).append(sample.took)
        late[part] += sample.took > LATE
    for part, times in sorted(parts.items()):
        print(f"  {part}: {len(times)} messages, {late[part]} later than 100 ms, {show(times)}")


def result(load: Load, samples: list[Sample], rounds: int) -> str:
    """The line that counts."""
    late = sum(sample.took > LATE for sample in samples)
    return (
        f"{rounds} rolling restarts, {tell_times(samples)}, {late} later than 100 ms;"
        f" seen by clients: {'nothing' if load.flawless else load.verdict()}"
    )


async def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--rate", type=float, default=300.0)
    args = parser.parse_args()
    phases = Phases()
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as made:
        async with open_cluster(3, Path(made), zookeepers=3) as cluster:
            await cluster.wait_normal()
            async with open_load(cluster, rate=args.rate) as load:
                await trio.sleep(2)
                began = trio.current_time()
                for n in range(args.rounds):
                    await roll(cluster, phases)
                    done = [s for s in load.samples if s.at >= began]
                    print(f"{n + 1}: {show([s.took for s in done])}", flush=True)
                await load.finish()
                samples = [s for s in load.samples if s.at >= began]
                tell(samples, phases)
                print(result(load, samples, args.rounds))
                return 0 if load.flawless else 1


if __name__ == "__main__":
    sys.exit(trio.run(main))
