"""How long things took by the clocks of clients and nemesis: failovers, latencies, silences.

A failover, as docs/checks.md defines it: a fault hit a member, and of what was sent to a group
after that, the first answer came under a higher epoch than every answer before. It took from the
fault, or from when somebody first waited, whichever is later, to that answer. Of faults that come
together the latest counts.
"""

from __future__ import annotations

from typing import TypedDict

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.prepared import PUBLICATION, Prepared, extra
from spark.silences import silences as silent_times

PERCENTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "p99.9": 0.999, "max": 1.0}
SHOWN_SILENCE_MS = 250
SILENCES = 2000

MOST_FAILOVERS = 10_000

Times = dict[str, dict[str, dict[str, int]]]


class Failover(TypedDict):
    """Failovers after one kind of fault; `ms` has them all, in order, up to MOST_FAILOVERS."""

    count: int
    p50_ms: int
    p99_ms: int
    max_ms: int
    ms: list[int]


def failovers(trace: Prepared) -> dict[str, Failover]:
    """Per kind of fault: how many, p50, p99 and the longest in milliseconds, and all of them."""
    hits = _hits(trace).withColumnRenamed("run", "of_run")
    caused = (F.col("run") == F.col("of_run")) & F.col("on_at").between(
        F.col("sent_before") + 1, F.col("acked_at")
    )
    took = (
        _turns(trace)
        .join(F.broadcast(hits), caused)
        .groupBy("run", "group", "acked_at", "waiting_since")
        .agg(F.max(F.struct("on_at", "fault")).alias("hit"))
        .withColumn(
            "ms", (F.col("acked_at") - F.greatest("hit.on_at", "waiting_since")) / F.lit(1000)
        )
        .groupBy(F.col("hit.fault").alias("fault"))
        .agg(
            F.count("*").alias("count"),
            F.percentile_approx("ms", [0.5, 0.99, 1.0]).alias("points"),
            F.slice(F.sort_array(F.collect_list("ms")), 1, MOST_FAILOVERS).alias("all"),
        )
        .orderBy("fault")
    )
    found: dict[str, Failover] = {}
    for row in took.collect():
        p50, p99, most = map(round, row.points)
        times = [round(ms) for ms in row["all"]]
        found[row.fault] = Failover(
            count=row["count"], p50_ms=p50, p99_ms=p99, max_ms=most, ms=times
        )
    return found


def _turns(trace: Prepared) -> DataFrame:
    """First answers under a higher epoch than all before in their group.

    With when the latest of what was answered before was sent, and since when somebody waited.
    """
    rows = trace.of("pub_send", "pub_ack").where(F.col("pid").isNotNull())
    acked = F.when((F.col("kind") == "pub_ack") & (F.col("epoch") > 0), F.col("t_wall"))
    answered = (
        rows.groupBy(*PUBLICATION)
        .agg(
            F.min(F.when(F.col("kind") == "pub_send", F.col("t_wall"))).alias("sent_at"),
            F.min(acked).alias("acked_at"),
            F.min_by("epoch", acked).alias("epoch"),
        )
        .where("sent_at is not null and acked_at is not null")
    )
    group = Window.partitionBy("run", "group")
    earlier = group.orderBy("acked_at", "epoch").rowsBetween(Window.unboundedPreceding, -1)
    # Backwards, as Spark takes quadratic time for frames that end with the last row.
    later = group.orderBy(F.desc("acked_at"), F.desc("epoch")).rowsBetween(
        Window.unboundedPreceding, Window.currentRow
    )
    return (
        answered.withColumn("above", F.max("epoch").over(earlier))
        .withColumn("sent_before", F.max("sent_at").over(earlier))
        .withColumn("waiting_since", F.min("sent_at").over(later))
        .where("epoch > above")
    )


def _hits(trace: Prepared) -> DataFrame:
    """Faults that hit members, not ZooKeeper, clients or everybody."""
    members = (
        trace.few.where("kind = 'boot'").groupBy("run").agg(F.collect_set("node").alias("members"))
    )
    hit = F.split(F.coalesce(extra("hit"), extra("target"), F.lit("")), r"[,|>]")
    return (
        trace.few.where("kind = 'fault_on'")
        .select(
            "run", F.col("t_wall").alias("on_at"), extra("fault").alias("fault"), hit.alias("hit")
        )
        .join(members, "run")
        .where(F.size(F.array_except("hit", "members")) == 0)
        .select("run", "on_at", F.coalesce("fault", F.lit("?")).alias("fault"))
    )


def silences(trace: Prepared) -> list[tuple[int, int, int]]:
    """The longest times without an ack while one was waited for: group, since, until."""
    silent = (
        silent_times(trace)
        .where(F.col("acked_at") - F.col("since") > SHOWN_SILENCE_MS * 1000)
        .orderBy(F.desc(F.col("acked_at") - F.col("since")), "group", "acked_at")
        .limit(SILENCES)
    )
    return [(row.group, row.since, row.acked_at) for row in silent.collect()]


def latencies(trace: Prepared, first: int, last: int) -> Times:
    """Percentiles in microseconds, before, during and after the faults."""

    def by_time(rows: DataFrame, at: str, took: Column) -> dict[str, dict[str, int]]:
        when = F.when(F.col(at) < first, "before").when(F.col(at) <= last, "during")
        points = F.percentile_approx(took, list(PERCENTILES.values()))
        grouped = rows.groupBy(when.otherwise("after").alias("time")).agg(points.alias("points"))
        return {
            row.time: dict(zip(PERCENTILES, row.points, strict=True))
            for row in grouped.orderBy("time").collect()
            if row.points
        }

    answered = trace.publications.where("acked_at is not null and sent_at is not null")
    # A subscriber may hear of a message before its publisher does.
    lag = F.greatest(F.col("t_wall") - F.col("acked_at"), F.lit(0))
    return {
        "publish to ack": by_time(answered, "sent_at", F.col("acked_at") - F.col("sent_at")),
        "ack to delivery": by_time(trace.lags, "acked_at", lag),
    }
