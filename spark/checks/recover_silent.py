"""RECOVER_SILENT: who has forgotten does not count."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import LIFE, Prepared, before, flag


def check(trace: Prepared) -> DataFrame:
    """Before it is normal in a group, a life gives no counted promise and no acknowledgement."""
    counted = (F.col("kind") == "ack") | ((F.col("kind") == "promise") & flag("normal"))
    ready = F.max((F.col("kind") == "normal").cast("int")).over(before(LIFE))
    found = (
        trace.of("promise", "ack", "normal")
        .withColumn("ready", F.coalesce(ready, F.lit(0)))
        .where(counted & (F.col("ready") == 0))
    )
    told = sentence("{} of epoch {} at {} row {}, not yet normal", "kind", "epoch", "proc", "n")
    return violations(found, "RECOVER_SILENT", told)
