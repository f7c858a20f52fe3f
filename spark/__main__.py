"""`python -m spark check TRACES --report OUT` and `python -m spark convert TRACES --out DIR`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession

from spark.faults import TraceError
from spark.job import BAD_INPUT, add_arguments, run
from spark.reading import read_trace, rows_in
from spark.session import local_session


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command in a local session; bad input is told in one sentence and ends with 2."""
    parser = argparse.ArgumentParser(prog="python -m spark", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    add_arguments(commands.add_parser("check", help="check a trace and report"))
    convert = commands.add_parser("convert", help="write a trace as Parquet")
    convert.add_argument("traces")
    convert.add_argument("--out", required=True)
    given = parser.parse_args(arguments)
    try:
        session = local_session(rows_in(given.traces))
        try:
            return run(session, given) if given.command == "check" else _convert(session, given)
        finally:
            session.stop()
    except TraceError as wrong:
        print(wrong, file=sys.stderr)
        return BAD_INPUT


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
    return BAD_INPUT if reading.faults else 0


if __name__ == "__main__":
    sys.exit(main())
