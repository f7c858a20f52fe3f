"""COMMIT_BEFORE_SEE: nobody sees what Q members do not hold."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import POSITION, Prepared


def check(trace: Prepared) -> DataFrame:
    """What was delivered or acknowledged was stored by Q lives of members.

    Stored is what was appended or applied, and what lies below a state that was installed whole.
    """
    seen = (
        trace.of("deliver")
        .select(*POSITION, "era")
        .unionByName(trace.acked.select(*POSITION, "era"))
        .distinct()
    )
    stored = (
        trace.of("append", "commit")
        .where(F.col("topic").isNotNull())
        .groupBy(*POSITION)
        .agg(F.collect_set(F.struct("node", "boot")).alias("lives"), F.max("idx").alias("idx"))
    )
    installs = (
        trace.of("install")
        .groupBy("run", "group", "era")
        .agg(F.collect_set(F.struct("node", "boot", "idx")).alias("installs"))
    )
    covering = F.filter("installs", lambda state: state["idx"] >= F.col("idx"))
    installed = F.transform(
        covering, lambda s: F.struct(s["node"].alias("node"), s["boot"].alias("boot"))
    )
    copies = F.coalesce(F.size(F.array_union("lives", installed)), F.size("lives"), F.lit(0))
    found = (
        seen.join(stored, POSITION, "left")
        .join(F.broadcast(installs), ["run", "group", "era"], "left")
        .join(F.broadcast(trace.runs), "run")
        .withColumn("held", F.greatest(copies, F.lit(0)))
        .where("held < copies")
    )
    told = sentence(
        "{} of epoch {} was seen, {} of {} copies were stored", "seq", "epoch", "held", "copies"
    )
    return violations(found, "COMMIT_BEFORE_SEE", told)
