"""Many runs on all cores: the totals, and every violation with the command that replays it."""

from __future__ import annotations

import os
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from itertools import count, islice

import msgspec

from tests.simulation.checker import Violation
from tests.simulation.storm import run
from tests.simulation.world import World

# Members and faults, in the order in which seeds take them; the paper's own cluster most often.
CONFIGURATIONS: tuple[tuple[int, int], ...] = (
    (3, 1),
    (5, 2),
    (3, 1),
    (5, 1),
    (4, 1),
    (3, 1),
    (5, 2),
    (1, 0),
)
BATCH = 4  # runs per task of a worker


class Run(msgspec.Struct, frozen=True):
    """What to run."""

    seed: int
    members: int
    faults: int
    forced: dict[str, float] = {}

    @property
    def replay(self) -> str:
        """The command that repeats it and tells everything that happens."""
        return f"./dev simulate --seed {self.seed} --members {self.members} --faults {self.faults}"


class Outcome(msgspec.Struct, frozen=True):
    """How a run ended: its counts, and the violation with its name if there was one."""

    run: Run
    counts: dict[str, int]
    violation: str = ""
    detail: str = ""


def mixed(
    first: int, configurations: tuple[tuple[int, int], ...] = CONFIGURATIONS
) -> Iterator[Run]:
    """Runs of all configurations from a seed on."""
    for seed in count(first):
        yield Run(seed, *configurations[seed % len(configurations)])


def perform(task: Run, tell: Callable[[World], None] | None = None) -> Outcome:
    """One run. A failed assertion of a decider counts as a violation too: it ends a member."""
    try:
        world, storm = run(task.seed, task.members, task.faults, forced=task.forced, tell=tell)
    except Violation as violation:
        return Outcome(task, {}, violation.name, str(violation))
    except Exception as error:  # noqa: BLE001 (whatever a decider raises would end its process)
        where = "".join(traceback.format_tb(error.__traceback__)[-3:])
        return Outcome(task, {}, type(error).__name__, f"{error}\n{where}")
    counts = {
        "events": world.events,
        "runs": 1,
        "takeovers": world.checker.takeovers,
        "transfers": world.checker.transfers,
        "acked": sum(p.acked for p in world.publishers),
        "unknown": sum(p.unknown for p in world.publishers),
        **storm.counts,
    }
    for subscriber in world.subscribers:
        for name, times in subscriber.outcomes.items():
            counts[name] = counts.get(name, 0) + times
    return Outcome(task, counts)


def perform_all(tasks: list[Run]) -> list[Outcome]:
    """Several runs, one after the other."""
    return [perform(task) for task in tasks]


def campaign(
    runs: Iterator[Run], seconds: float, progress: Callable[[Counter[str], float], None]
) -> tuple[Counter[str], list[Outcome]]:
    """Run for a while on all cores; the totals and what went wrong."""
    began = time.monotonic()
    totals: Counter[str] = Counter()
    failed: list[Outcome] = []
    workers = os.cpu_count() or 1
    with ProcessPoolExecutor(workers) as pool:
        pending: set[Future[list[Outcome]]] = set()
        while True:
            elapsed = time.monotonic() - began
            while elapsed < seconds and len(pending) < 2 * workers:
                pending.add(pool.submit(perform_all, list(islice(runs, BATCH))))
            if not pending:
                return totals, failed
            done, pending = wait(pending, return_when=FIRST_COMPLETED)
            for future in done:
                for outcome in future.result():
                    totals.update(outcome.counts)
                    if outcome.violation:
                        totals["violations"] += 1
                        failed.append(outcome)
            progress(totals, time.monotonic() - began)
