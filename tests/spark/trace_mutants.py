"""Which check sees which mutation of a good trace: `python -m tests.spark.trace_mutants`.

The quick checker tells; with `--spark` the Spark checks tell too, and must name the same. Ends with
1 if other checks fire on a mutation than those whose sentence it breaks.
"""

from __future__ import annotations

import argparse
import sys

from rich.console import Console
from rich.table import Table

from chaos import checker as quick
from tests.spark.good_trace import Row
from tests.spark.mutants_of_owed import EVERY
from tests.spark.test_checks import GOOD, SAMPLED, traces

Found = dict[str, set[str]]
WIDE = 160  # columns of the table at least


def by_python(batch: dict[str, list[Row]]) -> Found:
    """The quick checker's checks that fire, per run."""
    return {run: {violation.check for violation in quick.check(batch[run])} for run in batch}


def by_spark(batch: dict[str, list[Row]]) -> Found:
    """The Spark checks that fire, per run."""
    from spark.checks import all_violations
    from spark.prepared import Prepared
    from spark.schemas import TRACE
    from spark.session import local_session

    session = local_session(cores="2")
    try:
        columns = TRACE.fieldNames()
        rows = [tuple(row.get(c) for c in columns) for trace in batch.values() for row in trace]
        found: Found = {run: set() for run in batch}
        for row in all_violations(Prepared(session.createDataFrame(rows, TRACE))).collect():
            found[row["run"]].add(row["check"])
        return found
    finally:
        session.stop()


def main(arguments: list[str]) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser("trace_mutants", description=__doc__)
    parser.add_argument("--spark", action="store_true", help="ask Spark too: half a minute")
    given = parser.parse_args(arguments)
    batch = traces()
    found = by_python(batch)
    told = by_spark(batch) if given.spark else found
    differ = [run for run in batch if told[run] != found[run]]
    wanted = {mutant.__name__: set(checks.split()) for mutant, checks in EVERY.items()}
    table = Table("mutation of a good trace", "checks that fire")
    for run in (*GOOD, SAMPLED):
        table.add_row(run, ", ".join(sorted(found[run])) or "none")
    for name in wanted:
        table.add_row(name.replace("_", " "), ", ".join(sorted(found[name])) or "none: excused")
    console = Console()
    console.width = max(console.width, WIDE)
    console.print(table)
    missed = [name for name, checks in wanted.items() if checks != found[name]]
    for name in missed:
        print(f"WRONG: {name}: {', '.join(sorted(wanted[name])) or 'nothing'} should fire")
    for name in differ:
        print(f"Spark says something else: {name}")
    return 1 if missed or differ or any(found[run] for run in (*GOOD, SAMPLED)) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
