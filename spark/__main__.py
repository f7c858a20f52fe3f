"""`python -m spark check TRACES [--follow] --report OUT` and `convert TRACES --out DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark.faults import TraceError
from spark.follow import follow
from spark.job import NO_VERDICT, add_arguments, bounds_of, judge, run, told_failure
from spark.reading import read_trace, rows_in
from spark.report import claim_report
from spark.session import local_session

PATIENCE = 60.0
FOLLOWED = 5_000_000  # rows that a run which is followed may come to have


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command in a local session; what goes wrong is told in a sentence and ends with 2."""
    parser = argparse.ArgumentParser(prog="python -m spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    checks = commands.add_parser("check", help="check a trace and report")
    add_arguments(checks)
    told = "read on while the run writes, and judge when it has ended"
    checks.add_argument("--follow", action="store_true", help=told)
    told = f"with --follow: seconds without a row after which a run is over; default {PATIENCE:.0f}"
    checks.add_argument("--patience", type=float, default=PATIENCE, help=told)
    convert = commands.add_parser("convert", help="write a trace as Parquet")
    convert.add_argument("traces")
    convert.add_argument("--out", required=True)
    given = parser.parse_args(arguments)
    try:
        follows = given.command == "check" and given.follow
        session = local_session(FOLLOWED if follows else rows_in(given.traces))
        try:
            if given.command == "convert":
                return _convert(session, given)
            return follow_and_judge(session, given) if follows else run(session, given)
        finally:
            session.stop()
    except Exception as wrong:  # noqa: BLE001 (1 is for what was judged)
        return told_failure(wrong)


def follow_and_judge(session: SparkSession, given: argparse.Namespace) -> int:
    """Check a trace that still grows; the exit code is that of a check after its end."""
    bounds = bounds_of(given)
    if given.report:
        claim_report(given.report)
    with TemporaryDirectory(prefix="migratory-follow-") as work:
        reading = follow(session, Path(given.traces), Path(work), bounds, given.patience)
        return judge(reading, bounds, given.report)


def _convert(session: SparkSession, given: argparse.Namespace) -> int:
    """Write what can be read; what cannot is told, and stays a hole in the numbers."""
    reading = read_trace(session, given.traces)
    try:
        reading.rows.write.mode("errorifexists").parquet(given.out)
    except AnalysisException as wrong:
        remedy = "name a directory that does not exist yet"
        raise TraceError("CANNOT_WRITE", f"{given.out}: {wrong.getCondition()}", remedy) from wrong
    for fault in reading.faults:
        print(f"fault: {fault}")
    return NO_VERDICT if reading.faults else 0


if __name__ == "__main__":
    sys.exit(main())
