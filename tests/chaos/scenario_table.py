"""Every named scenario once, judged by Spark: `python -m tests.chaos.scenario_table`.

One run after another, each a minute long unless told otherwise, as `python -m chaos run` does it;
then all traces are judged in one frame, by the bounds of docs/guarantees.md. Prints a table, and
ends with 1 if a run is not valid.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import trio
from rich.console import Console
from rich.table import Table

from chaos.checker import Bounds
from chaos.runner import Outcome, start_run
from chaos.scenarios import SCENARIOS, find_scenario
from migratory.errors import MigratoryError
from tests.chaos.judging import Judged, judge_by_spark

WIDE = 110  # columns of the table at least
VALID = Judged("valid", [])


def carry_out(names: list[str], seed: int, minutes: float, out: Path) -> dict[str, Outcome | None]:
    """Run each; nothing for one that could not be carried out."""
    outcomes: dict[str, Outcome | None] = {}
    for name in names:
        print(f"== {name}, seed {seed}", flush=True)
        outcomes[name] = None
        try:
            outcomes[name] = trio.run(start_run, name, seed, minutes, out / name)
        except* MigratoryError as group:
            print(*group.exceptions, sep="\n", flush=True)
    return outcomes


def judged_by_spark(traces: list[Path]) -> list[Judged]:
    """What Spark says of each."""
    from spark.session import local_session

    session = local_session(cores="2")
    try:
        return judge_by_spark(session, traces, Bounds())
    finally:
        session.stop()


def show(outcomes: dict[str, Outcome | None], judged: list[Judged]) -> bool:
    """The table for people; whether all are valid."""
    table = Table("scenario", "faults", "takeovers", "acked", "delivered", "verdict", "failing")
    for (name, outcome), said in zip(outcomes.items(), judged, strict=True):
        counts = ["not carried out", "", "", ""]
        if outcome is not None:
            tally = outcome.tally
            faults = f"{outcome.happened} of {outcome.planned}"
            counts = [faults, *map(str, (outcome.takeovers, tally.acked, tally.delivered))]
        table.add_row(name, *counts, said.verdict, ", ".join(said.checks))
    console = Console()
    console.width = max(console.width, WIDE)
    console.print(table)
    return all(said == VALID for said in judged) and None not in outcomes.values()


def main(arguments: list[str]) -> int:
    """All scenarios, or those that are named."""
    parser = argparse.ArgumentParser("scenario_table", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help="else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--out", type=Path, help="where runs are kept; else they are thrown away")
    given = parser.parse_args(arguments)
    names = [find_scenario(name).name for name in given.scenarios] or list(SCENARIOS)
    with tempfile.TemporaryDirectory() as scratch:
        out = given.out or Path(scratch)
        outcomes = carry_out(names, given.seed, given.minutes, out)
        judged = judged_by_spark([out / name / "traces" for name in names])
        return 0 if show(outcomes, judged) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
