"""ONE_COORD: an epoch has one coordinator."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared, extra


def check(trace: Prepared) -> DataFrame:
    """One life of one member is elected, opens and makes entries in an epoch of a group."""
    made = F.col("kind").isin("elect", "open") | (extra("role") == "coordinator")
    life = F.struct("node", "boot", "kind", "proc", "n")
    found = (
        trace.of("elect", "open", "append")
        .where(made)
        .groupBy("run", "group", "epoch")
        .agg(F.min(life).alias("one"), F.max(life).alias("two"))
        .where("one.node != two.node or one.boot != two.boot")
    )
    told = sentence(
        "epoch {}: {} by {} row {}, {} by {} row {}",
        *("epoch", "one.kind", "one.proc", "one.n", "two.kind", "two.proc", "two.n"),
    )
    return violations(found, "ONE_COORD", told)
