"""ONCE: a retry makes no second copy, and nothing is delivered twice."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import PUBLICATION, STREAM, Prepared


def check(trace: Prepared) -> DataFrame:
    """Within a floor, a publication has one sequence, and a subscription sees a sequence once."""
    doubled = (
        trace.positions.where("pid is not null and shown > 0")
        .groupBy(*PUBLICATION, "era")
        .agg(F.min("seq").alias("low"), F.max("seq").alias("high"))
        .where("low != high")
    )
    # Only where pieces overlap, or did not come in order, can anything have come twice.
    earlier = Window.partitionBy(*STREAM, "era").orderBy("part")
    highest = F.max("high").over(earlier.rowsBetween(Window.unboundedPreceding, -1))
    suspects = (
        trace.parts.withColumn("before", highest)
        .where("jumped or count > high - low + 1 or low <= before")
        .select(*STREAM, "era")
        .distinct()
    )
    again = (
        trace.streams.where("kind = 'deliver'")
        .join(F.broadcast(suspects), [*STREAM, "era"], "left_semi")
        .groupBy(*STREAM, "era", "seq")
        .agg(F.min("n").alias("low"), F.max("n").alias("high"))
        .where("low != high")
    )
    twice = sentence("{}/{} is at sequences {} and {}", "pid", "pseq", "low", "high")
    seen = sentence("{} saw {} at {} rows {} and {}", "sub", "seq", "proc", "low", "high")
    return violations(doubled, "ONCE", twice).unionByName(violations(again, "ONCE", seen))
