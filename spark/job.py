"""The job: read a trace, check it, write the report, and say by the exit code what was found.

`spark-submit spark/job.py TRACES --report OUT` runs it on any master; `python -m spark check` runs
the same in a local session.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if __name__ == "__main__":  # spark-submit puts this folder on the path, not the one above it
    sys.path[0] = str(Path(__file__).resolve().parent.parent)

from spark.bounds import HAPPENINGS, Bounds
from spark.faults import TraceError
from spark.prepared import Prepared
from spark.reading import Reading, read_trace
from spark.report import claim_report, write_report
from spark.summary import Summary, summarize

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXIT_CODES = {"valid": 0, "invalid": 1, "unknown": 2}
NO_VERDICT = 2
OPTIONS = ("silence_ms", "lag_ms", "heal_ms", "ack_ms")  # bounds that a caller may state


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What the job takes, wherever it runs."""
    parser.add_argument("traces", help="a trace directory: .jsonl or .parquet files")
    parser.add_argument("--report", type=Path, help="directory for report.html and report.json")
    wanted = Bounds()
    for name in OPTIONS:
        default = getattr(wanted, name)
        flag = "--" + name.replace("_", "-")
        parser.add_argument(flag, type=int, default=default, help=f"default {default}")
    listed = ",".join(HAPPENINGS)
    told = f"what must have happened, separated by commas; default {listed}"
    parser.add_argument("--require", default=listed, help=told)


def bounds_of(given: argparse.Namespace) -> Bounds:
    """The bounds that the arguments state."""
    require = tuple(name for name in given.require.split(",") if name)
    unknown = [name for name in require if name not in HAPPENINGS]
    if unknown:
        remedy = f"known: {', '.join(HAPPENINGS)}"
        raise TraceError("UNKNOWN_HAPPENING", f"--require names {', '.join(unknown)}", remedy)
    return Bounds(**{name: getattr(given, name) for name in OPTIONS}, require=require)


def run(session: SparkSession, given: argparse.Namespace) -> int:
    """Check a trace; the exit code is 0 for valid, 1 for invalid, 2 for unknown."""
    bounds = bounds_of(given)
    if given.report:
        claim_report(given.report)
    return judge(read_trace(session, given.traces), bounds, given.report)


def judge(reading: Reading, bounds: Bounds, report: Path | None) -> int:
    """Check what was read, report, tell, and answer with the exit code."""
    began = time.monotonic()
    prepared = Prepared(reading.rows, bounds)
    summary = summarize(prepared, reading.faults)
    prepared.release()
    reading.release()
    summary.seconds = round(time.monotonic() - began, 1)
    if report:
        write_report(summary, report)
    tell(summary)
    return EXIT_CODES[summary.verdict]


def told_failure(wrong: Exception) -> int:
    """Say why there is no verdict, in a sentence; never with the exit code of an invalid trace."""
    if not isinstance(wrong, TraceError):
        first = str(wrong).split("\n")[0]
        remedy = "the trace is not judged: mend that, or give Spark more memory or disk"
        wrong = TraceError("CHECK_FAILED", f"{type(wrong).__name__}: {first}", remedy)
    print(wrong, file=sys.stderr)
    return NO_VERDICT


def tell(summary: Summary) -> None:
    """The verdict and its reasons on the terminal."""
    for fault in summary.faults:
        print(f"fault: {fault}")
    for found in summary.violations:
        print(f"{found.check} ({found.count}) in {found.run}: {found.witnesses[0]}")
    print(f"verdict: {summary.verdict}")


def main() -> int:
    """The job under spark-submit."""
    from pyspark.sql import SparkSession

    from spark.session import SHARED

    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    given = parser.parse_args()
    builder = SparkSession.builder.appName("migratory checks")
    for key, value in SHARED.items():
        builder = builder.config(key, value)
    try:
        session = builder.getOrCreate()
        try:
            return run(session, given)
        finally:
            session.stop()
    except Exception as wrong:  # noqa: BLE001 (1 is for what was judged)
        return told_failure(wrong)


if __name__ == "__main__":
    sys.exit(main())
