"""PUB_ORDER: a publisher's messages keep their order."""

from __future__ import annotations

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Per publisher and topic, the order of sequences is the publisher's own order."""
    known = ["run", "group", "topic", "era", "pid", "pseq", "seq"]
    placed = trace.commits.select(*known).unionByName(trace.acked.select(*known)).distinct()
    earlier = (
        Window.partitionBy("run", "group", "topic", "era", "pid")
        .orderBy("seq", "pseq")
        .rowsBetween(Window.unboundedPreceding, -1)
    )
    found = placed.withColumn("above", F.max("pseq").over(earlier)).where("pseq < above")
    told = sentence("{}/{} has sequence {}, after {}/{}", "pid", "pseq", "seq", "pid", "above")
    return violations(found, "PUB_ORDER", told)
