"""Is the chaos able to see a broken server? `python -m tests.chaos.server_mutants` tells.

Every mutant runs in the scenario that is aimed at it, and the server itself in each of these
scenarios, two runs at a time, with real processes. Both checkers judge each trace: all mutants must
be invalid by the check that is named beside them, the server must be valid, and the checkers must
name the same checks. A cluster of mutants may fall apart so far that its run cannot be carried out
to the end; what it left is judged all the same.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec
import trio
from rich.console import Console
from rich.table import Table

from chaos.checker import Bounds
from chaos.cluster import SERVER
from chaos.launcher import HERE
from chaos.processes import Program
from chaos.runner import start_run
from tests.chaos.judging import Judged, judge, judge_by_spark
from tests.chaos.mutant_server import SERVER_MUTANTS

MINUTES = 0.4
AT_ONCE = 2
# What is checked here is safety; how long a machine under test is silent says nothing of it. One
# aimed fault does not make all that a long run must have seen.
BOUNDS = Bounds(
    silence_ms=20_000, lag_ms=20_000, ack_ms=4000, require=("takeover", "resume")
)  # fmt: skip
NONE = "none"
WIDE = 160  # columns of the table at least


class Case(msgspec.Struct, frozen=True):
    """A server in a scenario."""

    mutant: str  # or NONE
    scenario: str
    check: str  # that must fire; none of the server itself

    @property
    def name(self) -> str:
        """A name for people and directories."""
        return f"{self.mutant}-{self.scenario}"


def convicts(judged: Judged, case: Case) -> bool:
    """Whether a mutant is caught as it must be, or the server is found without fault."""
    if case.mutant == NONE:
        return judged.verdict == "valid"
    return judged.verdict == "invalid" and case.check in judged.checks


def cases_of(mutants: list[str]) -> list[Case]:
    """These mutants, and the server itself in their scenarios."""
    chosen = [(name, SERVER_MUTANTS[name]) for name in mutants]
    broken = [Case(name, mutant.scenario, mutant.check) for name, mutant in chosen]
    return [*broken, *(Case(NONE, each, "") for each in {case.scenario: "" for case in broken})]


# ---- running -------------------------------------------------------------------------------------


async def run_all(cases: list[Case], directory: Path, seed: int) -> dict[str, int]:
    """Carry all cases out, some at a time; with which code each run ended."""
    codes: dict[str, int] = {}
    limit = trio.CapacityLimiter(AT_ONCE)

    async def run_one(case: Case) -> None:
        async with limit:
            words = ["tests.chaos.server_mutants", "--run", case.mutant, case.scenario]
            out = ["--seed", str(seed), "--out", str(directory / case.name)]
            program = Program([*words, *out], HERE, directory / f"{case.name}.log")
            try:
                codes[case.name] = await program.ended()
            finally:
                program.kill()

    async with trio.open_nursery() as nursery:
        for case in cases:
            nursery.start_soon(run_one, case)
    return codes


def run_case(mutant: str, scenario: str, seed: int, out: Path) -> None:
    """One run, in this process."""
    server = SERVER if mutant == NONE else ("tests.chaos.mutant_server", mutant)
    trio.run(lambda: start_run(scenario, seed, MINUTES, out, server=server))


# ---- judging -------------------------------------------------------------------------------------


def judge_all(traces: list[Path]) -> tuple[list[Judged], list[Judged]]:
    """What both checkers say of each."""
    from spark.session import local_session

    session = local_session(cores="2")
    try:
        return judge(traces, BOUNDS), judge_by_spark(session, traces, BOUNDS)
    finally:
        session.stop()


def show(cases: list[Case], quick: list[Judged], spark: list[Judged]) -> bool:
    """The table for people; whether everything is as it must be."""
    table = Table("server", "without the rule", "scenario", "verdict", "checks that fired", "")
    good = True
    for case, one, other in zip(cases, quick, spark, strict=True):
        right = convicts(one, case) and one == other
        good = good and right
        rule = SERVER_MUTANTS[case.mutant].replaced.rule if case.mutant != NONE else "-"
        checks = ", ".join(f"[bold]{c}[/]" if c == case.check else c for c in one.checks)
        if one != other:
            checks += f"; Spark: {other.verdict} {', '.join(other.checks)}"
        ending = "as it must be" if right else "NOT CAUGHT" if case.check else "NOT VALID"
        table.add_row(case.mutant, rule, case.scenario, one.verdict, checks, ending)
    console = Console()
    console.width = max(console.width, WIDE)
    console.print(table)
    return good


def main(arguments: list[str]) -> int:
    """All mutants, or those that are named; 1 if one survives."""
    parser = argparse.ArgumentParser("server_mutants", description=__doc__)
    parser.add_argument("mutants", nargs="*", help=f"of {', '.join(SERVER_MUTANTS)}; else all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--out", type=Path, help="where runs are kept; else they are thrown away")
    parser.add_argument("--run", nargs=2, metavar=("MUTANT", "SCENARIO"), help="only run, in OUT")
    given = parser.parse_args(arguments)
    if given.run:
        mutant, scenario = given.run
        run_case(mutant, scenario, given.seed, given.out)
        return 0
    unknown = [name for name in given.mutants if name not in SERVER_MUTANTS]
    if unknown:
        parser.error(f"there is no mutant {unknown[0]}: choose from {', '.join(SERVER_MUTANTS)}")
    cases = cases_of(given.mutants or list(SERVER_MUTANTS))
    with tempfile.TemporaryDirectory() as scratch:
        directory = given.out or Path(scratch)
        directory.mkdir(parents=True, exist_ok=True)
        trio.run(run_all, cases, directory, given.seed)
        traces = [directory / case.name / "traces" for case in cases]
        return 0 if show(cases, *judge_all(traces)) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
