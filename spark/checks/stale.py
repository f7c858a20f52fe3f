"""STALE: an open connection is not left behind."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import TOPIC, Prepared


def lags(trace: Prepared) -> DataFrame:
    """Deliveries with when they were acknowledged, and how much later they came.

    Only those on connections on which the subscription was answered before the acknowledgement.
    """
    acked = trace.acked.select(*TOPIC, "era", "seq", "acked_at")
    return (
        trace.streams.where("kind = 'deliver'")
        .join(F.broadcast(trace.slow), ["run", "sub"], "left_anti")
        .join(acked, [*TOPIC, "era", "seq"])
        .where("begun.conn = conn and begun.t_wall < acked_at")
        .withColumn("lag_ms", ((F.col("t_wall") - F.col("acked_at")) / 1000).cast("long"))
    )


def check(trace: Prepared) -> DataFrame:
    """Far from faults, at most one delivery in a hundred comes later after the ack than the bound.

    Only clients count that do not read slowly on purpose.
    """
    lagging = lags(trace).withColumn("all", F.count("*").over(Window.partitionBy("run")))
    faults = F.broadcast(trace.faults.withColumnRenamed("run", "of_run"))
    near = (
        (F.col("run") == F.col("of_run"))
        & (F.col("on_at") <= F.col("t_wall"))
        & (F.col("over_at") >= F.col("acked_at"))
    )
    found = (
        lagging.where(F.col("lag_ms") > trace.bounds.lag_ms)
        .join(faults, near, "left_anti")
        .withColumn("late", F.count("*").over(Window.partitionBy("run")))
        .where(F.col("late") > F.col("all") * trace.bounds.late_share)
    )
    told = sentence(
        "{} got {} {} ms after its ack ({} row {})", "sub", "seq", "lag_ms", "proc", "n"
    )
    return violations(found, "STALE", told)
