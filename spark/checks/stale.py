"""STALE: an open connection is not left behind."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """At most one delivery in a hundred comes later after the ack than the bound.

    Only clients count that do not read slowly on purpose, and only what comes from a contact that
    no fault hits between ack and delivery, nor just before.
    """
    lags = trace.lags.withColumn("lag_ms", F.expr("(t_wall - acked_at) div 1000"))
    late = F.col("lag_ms") > trace.bounds.lag_ms
    amid = F.exists(
        "troubles",
        lambda each: (each.on_at <= F.col("t_wall")) & (each.back_at >= F.col("acked_at")),
    )
    judged = lags.join(F.broadcast(trace.links), ["run", "conn"], "left").where(
        ~F.coalesce(amid, F.lit(False))
    )
    shares = judged.groupBy("run").agg(F.avg(late.cast("int")).alias("share"))
    found = judged.where(late).join(
        F.broadcast(shares.where(F.col("share") > trace.bounds.late_share)), "run"
    )
    told = sentence(
        "{} got {} {} ms after its ack ({} row {})", "sub", "seq", "lag_ms", "proc", "n"
    )
    return violations(found, "STALE", told)
