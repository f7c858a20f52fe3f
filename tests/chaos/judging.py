"""What both checkers say of traces of runs: the quick one of each, Spark of all in one frame."""

from __future__ import annotations

from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from chaos.checker import Bounds, check, verdict
from chaos.runner import RUN_FILE

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class Judged(msgspec.Struct, frozen=True):
    """What a checker says of a trace."""

    verdict: str
    checks: list[str]


def rows_of(traces: Path) -> list[dict[str, Any]]:
    """All rows of a run."""
    files = sorted(traces.glob("*.jsonl"))
    return [msgspec.json.decode(line) for file in files for line in file.read_bytes().splitlines()]


def judge(traces: list[Path], bounds: Bounds) -> list[Judged]:
    """What the quick checker says."""
    judged = []
    for each in traces:
        found = check(rows_of(each), bounds)
        judged.append(Judged(verdict(found), sorted({violation.check for violation in found})))
    return judged


def judge_by_spark(session: SparkSession, traces: list[Path], bounds: Bounds) -> list[Judged]:
    """What Spark says."""
    from spark.bounds import Bounds as SparkBounds
    from spark.checks import all_violations
    from spark.missing import missing_processes
    from spark.prepared import Prepared
    from spark.reading import read_trace
    from spark.summary import verdict_of

    runs = [msgspec.json.decode((each.parent / RUN_FILE).read_bytes())["run"] for each in traces]
    readings = [read_trace(session, str(each)) for each in traces]
    rows = reduce(lambda one, other: one.unionByName(other), (each.rows for each in readings))
    prepared = Prepared(rows, SparkBounds(**vars(bounds)))
    fired: dict[str, set[str]] = {run: set() for run in runs}
    for row in all_violations(prepared).select("run", "check").distinct().collect():
        fired[row["run"]].add(row["check"])
    missing = missing_processes(prepared)
    prepared.release()
    judged = []
    for run, reading in zip(runs, readings, strict=True):
        reading.release()
        lost = [fault for fault in missing if fault.file == f"run {run}"]
        judged.append(Judged(verdict_of(fired[run], reading.faults + lost), sorted(fired[run])))
    return judged
