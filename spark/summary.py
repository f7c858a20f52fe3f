"""What a report tells: verdict, counts, silences, latencies and witnesses, as plain values.

Only small things are collected: aggregates, and a bounded number of witnesses and silences.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks import CHECKS, all_violations
from spark.faults import TraceFault
from spark.missing import missing_processes
from spark.prepared import Prepared, extra, flag
from spark.times import Failover, Times, failovers, latencies, silences

WITNESSES = 5
RUNS = 10  # so many are told how to do once more
REPLAY = "python -m chaos replay RUN --out DIR"  # where run.json is; it has the whole plan


@dataclass(frozen=True)
class Found:
    """A check that does not hold in a run."""

    run: str
    check: str
    count: int
    witnesses: list[str]


@dataclass
class Summary:
    """Everything that report.json holds and report.html shows; docs/checks.md tells each name."""

    verdict: str
    violations: list[Found]
    faults: list[TraceFault]
    checks: dict[str, str]
    bounds: dict[str, Any]
    counts: dict[str, int]
    outcomes: dict[str, int]
    fault_kinds: dict[str, int]
    failovers: dict[str, Failover]
    runs: list[str]
    replay: list[str]
    seconds: float = 0.0
    start: int = 0
    end: int = 0
    bands: list[tuple[str, int, int]] = field(default_factory=list)
    silences: list[tuple[int, int, int]] = field(default_factory=list)
    latencies: Times = field(default_factory=dict)


def verdict_of(checks: set[str], faults: list[TraceFault]) -> str:
    """Rows that are missing, or too little that happened, make a verdict unknown."""
    if faults or checks == {"NON_VACUOUS"}:
        return "unknown"
    return "invalid" if checks else "valid"


def summarize(trace: Prepared, faults: list[TraceFault]) -> Summary:
    """Run all checks and gather what a person wants to see."""
    violations = _violations(all_violations(trace))
    faults = [*faults, *missing_processes(trace)]
    summary = Summary(
        verdict=verdict_of({found.check for found in violations}, faults),
        violations=violations,
        faults=faults,
        checks={name: (check.__doc__ or "").split("\n")[0] for name, check in CHECKS.items()},
        bounds=asdict(trace.bounds),
        counts=_counts(trace),
        outcomes=_tally(trace.of("sub_status"), extra("outcome")),
        fault_kinds=_tally(trace.happened, F.col("fault")),
        failovers=failovers(trace),
        runs=[],
        replay=[],
    )
    _add_runs(trace, summary)
    _add_times(trace, summary)
    return summary


def _violations(found: DataFrame) -> list[Found]:
    rows = (
        found.withColumn(
            "nth", F.row_number().over(Window.partitionBy("run", "check").orderBy("witness"))
        )
        .groupBy("run", "check")
        .agg(
            F.count("*").alias("count"),
            F.sort_array(F.collect_list(F.when(F.col("nth") <= WITNESSES, _place()))).alias("some"),
        )
        .orderBy("run", "check")
        .collect()
    )
    return [Found(row.run, row.check, row["count"], list(row.some)) for row in rows]


def _place() -> Column:
    where = F.concat_ws(" ", F.col("topic"), F.concat(F.lit("group "), F.col("group")))
    return F.concat(
        F.col("witness"), F.when(where != "", F.concat(F.lit(" — "), where)).otherwise("")
    )


def _counts(trace: Prepared) -> dict[str, int]:
    kind, outcome = F.col("kind"), extra("outcome")
    status = kind == "sub_status"

    def count(condition: Column, name: str) -> Column:
        return F.count(F.when(condition, 1)).alias(name)

    published = trace.publications.agg(
        F.count("sent_at").alias("published"), F.count("acked_at").alias("acked")
    ).first()
    seen = trace.rows.agg(
        count((kind == "pub_ack") & flag("duplicate"), "duplicates"),
        count(kind == "deliver", "delivered"),
        count(status & (outcome == "resumed"), "resumed"),
        count(status & (outcome == "gap"), "gaps"),
        count(status & (outcome == "reset"), "resets"),
        count(kind == "install", "states_installed"),
        F.count("*").alias("rows"),
    ).first()
    opened = trace.of("open").select("run", "group", "epoch").distinct()
    groups = opened.groupBy("run", "group").count().agg(F.sum(F.col("count") - 1)).first()
    others = trace.few.agg(F.count("*").alias("few"), F.count_distinct("run")).first()
    assert published is not None
    assert seen is not None
    assert groups is not None
    assert others is not None
    counts: dict[str, int] = {**published.asDict(), **seen.asDict()}
    counts |= {"takeovers": groups[0] or 0, "faults": trace.happened.count()}
    return counts | {"runs": others[1], "rows": counts["rows"] + others[0]}


def _tally(rows: DataFrame, by: Column) -> dict[str, int]:
    counted = rows.groupBy(F.coalesce(by, F.lit("?")).alias("name")).count().orderBy("name")
    return {row.name: row["count"] for row in counted.collect()}


def _add_runs(trace: Prepared, summary: Summary) -> None:
    """The first runs, and the commands that do the same faults at the same times."""
    asked = ("scenario", "load", "minutes", "seed")
    first = trace.few.where("kind = 'run'").orderBy("run").limit(RUNS)
    for row in first.select("run", *(extra(name).alias(name) for name in asked)).collect():
        known = {name: row[name] for name in asked if row[name] is not None}
        said = ", ".join(f"{name} {value}" for name, value in known.items())
        summary.runs.append(f"{row.run}: {said}")
        options = " ".join(f"--{name} {value}" for name, value in known.items())
        summary.replay.append(f"python -m chaos run {options} --out DIR")
    summary.replay.append(REPLAY)


def _add_times(trace: Prepared, summary: Summary) -> None:
    """Times of one run only: runs do not share a time line."""
    if summary.counts["runs"] != 1:
        return
    span = trace.publications.agg(F.min("sent_at"), F.max("acked_at")).first()
    if span is None or span[0] is None or span[1] is None:
        return
    summary.start, summary.end = span
    rows = trace.faults.select("fault", "on_at", "off_at").orderBy("on_at", "fault").collect()
    summary.bands = [(row.fault, row.on_at, min(row.off_at, summary.end)) for row in rows]
    summary.silences = silences(trace)
    first = min((on for _, on, _ in summary.bands), default=summary.end + 1)
    last = max((off for _, _, off in summary.bands), default=summary.end + 1)
    summary.latencies = latencies(trace, first, last)
