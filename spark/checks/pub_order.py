"""PUB_ORDER: a publisher's messages keep their order."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Per publisher and topic, the order of sequences is the publisher's own order."""
    placed = trace.positions.where("pid is not null and shown > 0").withColumn(
        "publisher", F.xxhash64("run", "group", "topic", "era", "pid")
    )
    earlier = (
        Window.partitionBy("publisher", "group", "run")
        .orderBy("seq", "pseq")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    found = placed.withColumn("above", F.max("pseq").over(earlier)).where("pseq < above")
    told = sentence("{}/{} has sequence {}, after {}/{}", "pid", "pseq", "seq", "pid", "above")
    return violations(found, "PUB_ORDER", told)
