"""One run from a seed: storm, heal, rest; and what is said of it."""

from __future__ import annotations

from collections import Counter

import msgspec
import trio

from tests.simulation.checker import Violation
from tests.simulation.tier2.scheduling import run_seeded
from tests.simulation.tier2.storm import Storm
from tests.simulation.tier2.world import World

STORM = 20.0  # virtual seconds of faults


class Report(msgspec.Struct):
    """What a run did."""

    seed: int
    members: int
    faults: int
    digest: str = ""
    events: int = 0
    turns: int = 0
    seconds: float = 0.0
    takeovers: int = 0
    transfers: int = 0
    acked: int = 0
    delivered: int = 0
    struck: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    closed: dict[str, int] = {}  # connections, by the reason of the member
    violation: str = ""

    @property
    def replay(self) -> str:
        """How to see it again."""
        return (
            f"./dev python -m tests.simulation.tier2 --seed {self.seed}"
            f" --members {self.members} --faults {self.faults}"
        )


def run(seed: int, members: int = 3, faults: int = 1, *, shown: bool = False) -> Report:
    """One run; a broken promise is in the report."""
    report = Report(seed, members, faults)

    async def main() -> None:
        world = World(seed, members, faults, shown=shown)
        storm = Storm(world)
        try:
            async with trio.open_nursery() as nursery:
                with world.inhabited(nursery):
                    await _course(world, storm)
        finally:
            _tell(report, world, storm)

    try:
        run_seeded(seed, main)
    except BaseExceptionGroup as group:
        report.violation = _named(_first(group))
    except Violation as violation:
        report.violation = str(violation)
    return report


async def _course(world: World, storm: Storm) -> None:
    """Calm, storm, calm."""
    await trio.sleep(2.0)
    world.clients_come()
    storm.begin()
    await trio.sleep(STORM / 2)
    if world.weather.loss:
        storm.disaster()
    await trio.sleep(STORM / 2)
    world.heal()
    await trio.sleep(3.0)
    await world.settle()


def _tell(report: Report, world: World, storm: Storm) -> None:
    report.digest = world.trace.digest
    report.events = world.trace.events
    report.seconds = trio.current_time()
    lives = [*world.former, *world.processes.values()]
    report.turns = sum(p.driver.counts.turns for p in lives if p.driver is not None)
    report.takeovers = world.checker.takeovers
    report.transfers = world.checker.transfers
    report.acked = world.judge.acked
    report.struck = storm.counts
    outcomes: Counter[str] = Counter()
    for subscriber in world.subscribers:
        for reader in subscriber.readers.values():
            outcomes.update(reader.outcomes)
            report.delivered += reader.messages
    report.outcomes = dict(outcomes)
    report.closed = dict(sum((p.fifo.front.closed for p in lives), Counter()))


def _first(error: BaseException) -> BaseException:
    """The violation among what happened at once, else the first error that is no cancellation."""
    if not isinstance(error, BaseExceptionGroup):
        return error
    leaves = [_first(part) for part in error.exceptions]
    violations = [leaf for leaf in leaves if isinstance(leaf, Violation)]
    if not violations and any(isinstance(leaf, KeyboardInterrupt) for leaf in leaves):
        raise KeyboardInterrupt
    return (violations or leaves)[0]


def _named(error: BaseException) -> str:
    """A broken promise by its name; anything else is a crash of the program."""
    if isinstance(error, Violation):
        return str(error)
    at = error.__traceback__
    while at is not None and at.tb_next is not None:
        at = at.tb_next
    where = f"{at.tb_frame.f_code.co_filename}:{at.tb_lineno}" if at is not None else "?"
    return f"CRASH {type(error).__name__}: {error} at {where}"
