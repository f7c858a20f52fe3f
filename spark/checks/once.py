"""ONCE: a retry makes no second copy, and nothing is delivered twice."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import STREAM, Prepared


def check(trace: Prepared) -> DataFrame:
    """Within a floor, a publication has one sequence, and a subscription sees a sequence once."""
    known = ["run", "group", "topic", "era", "pid", "pseq", "seq"]
    placed = trace.commits.select(*known).unionByName(trace.acked.select(*known))
    doubled = (
        placed.where(F.col("pid").isNotNull())
        .groupBy("run", "group", "topic", "era", "pid", "pseq")
        .agg(F.min("seq").alias("low"), F.max("seq").alias("high"))
        .where("low != high")
    )
    again = (
        trace.of("deliver")
        .groupBy(*STREAM, "era", "seq")
        .agg(F.min("n").alias("low"), F.max("n").alias("high"))
        .where("low != high")
    )
    twice = sentence("{}/{} is at sequences {} and {}", "pid", "pseq", "low", "high")
    seen = sentence("{} saw {} at {} rows {} and {}", "sub", "seq", "proc", "low", "high")
    return violations(doubled, "ONCE", twice).unionByName(violations(again, "ONCE", seen))
