"""STALE: an open connection is not left behind."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Far from faults, at most one delivery in a hundred comes later after the ack than the bound.

    Only clients count that do not read slowly on purpose.
    """
    lags = trace.lags.withColumn("lag_ms", F.expr("(t_wall - acked_at) div 1000"))
    totals = lags.groupBy("run").agg(F.count("*").alias("all"))
    faults = F.broadcast(trace.faults.withColumnRenamed("run", "of_run"))
    near = (
        (F.col("run") == F.col("of_run"))
        & (F.col("on_at") <= F.col("t_wall"))
        & (F.col("over_at") >= F.col("acked_at"))
    )
    found = (
        lags.where(F.col("lag_ms") > trace.bounds.lag_ms)
        .join(faults, near, "left_anti")
        .withColumn("late", F.count("*").over(Window.partitionBy("run")))
        .join(F.broadcast(totals), "run")
        .where(F.col("late") > F.col("all") * trace.bounds.late_share)
    )
    told = sentence(
        "{} got {} {} ms after its ack ({} row {})", "sub", "seq", "lag_ms", "proc", "n"
    )
    return violations(found, "STALE", told)
