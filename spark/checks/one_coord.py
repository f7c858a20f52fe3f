"""ONE_COORD: an epoch has one coordinator."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """One life of one member is elected, opens and makes entries in an epoch of a group."""
    made = F.col("kind").isin("elect", "open") | F.col("own")
    # Hashes find the epochs with two; only these are looked at by name.
    life = F.xxhash64("node", "boot")
    acts = trace.of("elect", "open", "append").where(made)
    torn = (
        acts.groupBy("run", "group", "epoch")
        .agg(F.min(life).alias("low"), F.max(life).alias("high"))
        .where("low != high")
        .select("run", "group", "epoch")
    )
    act = F.struct("node", "boot", "kind", "proc", "n")
    found = (
        acts.join(F.broadcast(torn), ["run", "group", "epoch"], "left_semi")
        .groupBy("run", "group", "epoch")
        .agg(F.min(act).alias("one"), F.max(act).alias("two"))
    )
    told = sentence(
        "epoch {}: {} by {} row {}, {} by {} row {}",
        *("epoch", "one.kind", "one.proc", "one.n", "two.kind", "two.proc", "two.n"),
    )
    return violations(found, "ONE_COORD", told)
