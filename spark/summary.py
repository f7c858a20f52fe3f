"""What a report tells: verdict, counts, silences, latencies and witnesses, as plain values.

Only small things are collected: aggregates, and a bounded number of witnesses and silences.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks import CHECKS, all_violations
from spark.faults import TraceFault
from spark.prepared import Prepared, extra, flag

WITNESSES = 5
SILENCES = 2000
SHOWN_SILENCE_MS = 250
PERCENTILES = (50, 90, 99, 100)


@dataclass(frozen=True)
class Found:
    """A check that does not hold in a run."""

    run: str
    check: str
    count: int
    witnesses: list[str]


@dataclass
class Summary:
    """Everything that report.json holds and report.html shows."""

    verdict: str
    violations: list[Found]
    faults: list[TraceFault]
    checks: dict[str, str]
    counts: dict[str, int]
    outcomes: dict[str, int]
    fault_kinds: dict[str, int]
    replay: list[str]
    start: int = 0
    end: int = 0
    bands: list[tuple[str, int, int]] = field(default_factory=list)
    silences: list[tuple[int, int, int]] = field(default_factory=list)
    latencies: dict[str, dict[str, list[int]]] = field(default_factory=dict)


def verdict_of(checks: set[str], faults: list[TraceFault]) -> str:
    """Rows that are missing, or too little that happened, make a verdict unknown."""
    if faults or checks == {"NON_VACUOUS"}:
        return "unknown"
    return "invalid" if checks else "valid"


def summarize(trace: Prepared, faults: list[TraceFault]) -> Summary:
    """Run all checks and gather what a person wants to see."""
    violations = _violations(all_violations(trace))
    summary = Summary(
        verdict=verdict_of({found.check for found in violations}, faults),
        violations=violations,
        faults=faults,
        checks={name: (check.__doc__ or "").split("\n")[0] for name, check in CHECKS.items()},
        counts=_counts(trace),
        outcomes=_tally(trace.of("sub_status"), extra("outcome")),
        fault_kinds=_tally(trace.few.where("kind = 'fault_on'"), extra("fault")),
        replay=_replay(trace),
    )
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
    kind = F.col("kind")
    opened = trace.of("open").select("run", "group", "epoch").distinct()
    rows = trace.rows.agg(
        F.count(F.when(kind == "pub_ack", 1)).alias("acknowledgements"),
        F.count(F.when((kind == "pub_ack") & flag("duplicate"), 1)).alias("duplicates"),
        F.count(F.when(kind == "deliver", 1)).alias("delivered"),
        F.count(F.when(kind == "install", 1)).alias("states installed"),
    ).first()
    published = trace.publications.agg(
        F.count("sent_at").alias("published"), F.count("acked_at").alias("acked")
    ).first()
    groups = opened.groupBy("run", "group").count().agg(F.sum(F.col("count") - 1)).first()
    assert rows is not None
    assert published is not None
    assert groups is not None
    return {**published.asDict(), **rows.asDict(), "takeovers": groups[0] or 0}


def _tally(rows: DataFrame, by: Column) -> dict[str, int]:
    counted = rows.groupBy(F.coalesce(by, F.lit("?")).alias("name")).count().orderBy("name")
    return {row.name: row["count"] for row in counted.collect()}


def _replay(trace: Prepared) -> list[str]:
    runs = trace.few.where("kind = 'run'").select(
        extra("scenario").alias("scenario"), extra("seed").alias("seed")
    )
    return [
        f"python -m chaos run --scenario {row.scenario} --seed {row.seed} --out DIR"
        for row in runs.limit(10).collect()
    ]


def _add_times(trace: Prepared, summary: Summary) -> None:
    """Times of one run only: runs do not share a time line."""
    if trace.runs.count() != 1:
        return
    span = trace.publications.agg(F.min("sent_at"), F.max("acked_at")).first()
    if span is None or span[0] is None or span[1] is None:
        return
    summary.start, summary.end = span
    healing = trace.bounds.heal_ms * 1000
    rows = trace.faults.select("fault", "on_at", "over_at").orderBy("on_at").collect()
    summary.bands = [
        (row.fault or "?", row.on_at, min(row.over_at - healing, summary.end)) for row in rows
    ]
    in_group = Window.partitionBy("run", "group").orderBy("acked_at")
    since = F.greatest(F.lag("acked_at").over(in_group), F.col("sent_at"))
    silent = (
        trace.publications.where("acked_at is not null")
        .select("group", since.alias("since"), "acked_at")
        .where(F.col("acked_at") - F.col("since") > SHOWN_SILENCE_MS * 1000)
        .orderBy(F.desc(F.col("acked_at") - F.col("since")))
        .limit(SILENCES)
    )
    summary.silences = [(row.group, row.since, row.acked_at) for row in silent.collect()]
    first = min((on for _, on, _ in summary.bands), default=summary.end + 1)
    last = max((off for _, _, off in summary.bands), default=summary.end + 1)
    summary.latencies = _latencies(trace, first, last)


def _latencies(trace: Prepared, first: int, last: int) -> dict[str, dict[str, list[int]]]:
    """Percentiles in microseconds, before, during and after the faults."""

    def by_time(rows: DataFrame, at: str, took: Column) -> dict[str, list[int]]:
        when = F.when(F.col(at) < first, "before").when(F.col(at) <= last, "during")
        points = F.percentile_approx(took, [p / 100 for p in PERCENTILES])
        grouped = rows.groupBy(when.otherwise("after").alias("time")).agg(points.alias("points"))
        return {row.time: list(row.points) for row in grouped.collect() if row.points}

    answered = trace.publications.where("acked_at is not null and sent_at is not null")
    # A subscriber may hear of a message before its publisher does.
    lag = F.greatest(F.col("t_wall") - F.col("acked_at"), F.lit(0))
    return {
        "publish to ack": by_time(answered, "sent_at", F.col("acked_at") - F.col("sent_at")),
        "ack to delivery": by_time(trace.lags, "acked_at", lag),
    }
