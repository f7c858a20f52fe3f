"""Run whole members from many seeds on all cores, or one seed again with all that happens.

./dev python -m tests.simulation.tier2 --seconds 60 [--seed FIRST] [--members N --faults F]
./dev python -m tests.simulation.tier2 --seed N [--members N --faults F] [--show]
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections import Counter
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count

from migratory.observability.logs import configure
from tests.simulation.tier2.run import Report, run

# Members and faults, in the order in which seeds take them.
CONFIGURATIONS = ((3, 1), (5, 2), (3, 1), (1, 0), (3, 1), (5, 1))
FIGURES = ("turns", "events", "takeovers", "transfers", "acked", "delivered")


def configuration(seed: int, members: int | None, faults: int | None) -> tuple[int, int]:
    """The cluster that a seed runs, unless it was said."""
    usual = CONFIGURATIONS[seed % len(CONFIGURATIONS)]
    if members is None:
        return usual
    return members, (members - 1) // 2 if faults is None else faults


def replay(seed: int, members: int, faults: int, *, shown: bool) -> int:
    """One seed again."""
    report = run(seed, members, faults, shown=shown)
    for name in report.__struct_fields__:
        print(f"{name:>10}  {getattr(report, name)}")
    return 1 if report.violation else 0


class Campaign:
    """As many seeds as time allows."""

    def __init__(self, first: int, members: int | None, faults: int | None) -> None:
        self.seeds = count(first)
        self.members, self.faults = members, faults
        self.totals: Counter[str] = Counter()
        self.failed: list[Report] = []
        self.seconds = 0.0

    def run(self, seconds: float) -> int:
        """Try seeds on all cores; 1 when a promise was broken."""
        began = said = time.monotonic()
        workers = os.cpu_count() or 1
        running: set[Future[Report]] = set()
        with ProcessPoolExecutor(workers, initializer=_be_quiet) as pool:
            while time.monotonic() - began < seconds or running:
                while len(running) < 2 * workers and time.monotonic() - began < seconds:
                    seed = next(self.seeds)
                    running.add(
                        pool.submit(run, seed, *configuration(seed, self.members, self.faults))
                    )
                done, running = wait(running, timeout=1.0, return_when=FIRST_COMPLETED)
                for future in done:
                    self._count(future.result())
                if time.monotonic() - said > 10:
                    said = time.monotonic()
                    print(f"{said - began:6.0f} s  {self.totals['runs']} runs", flush=True)
        self._tell(time.monotonic() - began)
        return 1 if self.failed else 0

    def _count(self, report: Report) -> None:
        self.totals["runs"] += 1
        self.seconds += report.seconds
        for name in FIGURES:
            self.totals[name] += getattr(report, name)
        self.totals.update(report.struck)
        self.totals.update(report.outcomes)
        self.totals.update({f"closed {code}": n for code, n in report.closed.items()})
        if report.violation:
            self.totals["violations"] += 1
            self.failed.append(report)
            print(f"\n{report.violation}\n  replay: {report.replay}\n", flush=True)

    def _tell(self, elapsed: float) -> None:
        totals = self.totals
        print(f"\n{totals.pop('runs'):>12,}  runs in {elapsed:.0f} s")
        print(f"{self.seconds:>12,.0f}  virtual seconds")
        violations = totals.pop("violations", 0)
        for name, value in totals.items():
            print(f"{value:>12,}  {name}")
        print(f"{violations:>12,}  violations")
        for report in self.failed:
            print(f"{report.violation[:200]}\n  replay: {report.replay}")


def _be_quiet() -> None:
    configure(level="critical")


def main(arguments: list[str]) -> int:
    """Read the arguments and do what they say."""
    parser = argparse.ArgumentParser("tier2", description=__doc__)
    parser.add_argument("--seconds", type=float, help="how long to try seeds")
    parser.add_argument("--seed", type=int, help="the first seed, or the only one")
    parser.add_argument("--members", type=int)
    parser.add_argument("--faults", type=int)
    parser.add_argument("--show", action="store_true", help="print what happens")
    options = parser.parse_args(arguments)
    _be_quiet()
    if options.seconds is None and options.seed is not None:
        chosen = configuration(options.seed, options.members, options.faults)
        return replay(options.seed, *chosen, shown=options.show)
    campaign = Campaign(options.seed or 0, options.members, options.faults)
    return campaign.run(60.0 if options.seconds is None else options.seconds)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
