"""NO_LOSS: what was acknowledged is there, for members and for subscriptions."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import STREAM, TOPIC, Prepared


def check(trace: Prepared) -> DataFrame:
    """An acknowledged message is in every final read, and reached each subscription across it.

    History bounds, a floor change, GAP and RESET excuse it; being older than the subscription too.
    """
    return _lost_at_members(trace).unionByName(_lost_for_subscriptions(trace))


def _lost_at_members(trace: Prepared) -> DataFrame:
    members = trace.heads.select("run", "member").distinct()
    reads = trace.reads.select(*TOPIC, "member", "seq", "mid", F.lit(True).alias("read"))
    young = (F.col("read_at") - F.col("acked_at")) / 1000 < F.col("max_age_ms") - 1000
    short = F.col("head_seq") - F.col("first") + 1 < F.col("max_messages")
    same = F.col("head_era") == F.col("era")
    lost = (
        (F.col("head_seq").isNull() & (F.col("era") == F.col("last_floor")))
        | (F.col("head_era") < F.col("era"))
        | (same & (F.col("seq") > F.col("head_seq")))
        | (same & (F.col("seq") < F.col("first")) & young & short)
        | (same & F.col("seq").between(F.col("first"), F.col("head_seq")) & F.col("read").isNull())
    )
    found = (
        trace.acked.join(F.broadcast(members), "run")
        .join(trace.heads, [*TOPIC, "member"], "left")
        .join(reads, [*TOPIC, "member", "seq", "mid"], "left")
        .join(F.broadcast(trace.runs), "run")
        .where(lost)
    )
    told = sentence(
        "acked {} of epoch {} ({}) is not at {}, which holds {} to {}",
        *("seq", "epoch", "mid", "member", "first", "head_seq"),
    )
    return violations(found, "NO_LOSS", told)


def _lost_for_subscriptions(trace: Prepared) -> DataFrame:
    delivered = trace.streams.where("kind = 'deliver'")
    spans = delivered.groupBy(*STREAM, "part", "era").agg(
        F.min("seq").alias("low"), F.max("seq").alias("high")
    )
    # A subscription that is still connected when its process ends owes whatever was acked before.
    closed = trace.of("sub_close").select(*STREAM).distinct()
    down = trace.few.where("kind = 'link_down'").select("run", "proc", "conn").distinct()
    ends = trace.trace.groupBy("run", "proc").agg(F.max("t_wall").alias("end_at"))
    owing = (
        trace.streams.groupBy(*STREAM)
        .agg(F.max("part").alias("part"), F.max_by("conn", "n").alias("conn"))
        .join(closed, STREAM, "left_anti")
        .join(F.broadcast(down), ["run", "proc", "conn"], "left_anti")
        .join(F.broadcast(ends), ["run", "proc"])
        .select(*STREAM, "part", (F.col("end_at") - trace.bounds.heal_ms * 1000).alias("owed_at"))
    )
    seen = delivered.select(*STREAM, "seq").distinct()
    due = F.col("seq").between(F.col("low"), F.col("high")) | (
        (F.col("seq") > F.col("high")) & (F.col("acked_at") <= F.col("owed_at"))
    )
    found = (
        trace.acked.join(spans.join(owing, [*STREAM, "part"], "left"), [*TOPIC, "era"])
        .where(due)
        .join(seen, [*STREAM, "seq"], "left_anti")
    )
    told = sentence(
        "acked {} of epoch {} ({}) never reached {}, which saw {} to {}",
        *("seq", "epoch", "mid", "sub", "low", "high"),
    )
    return violations(found, "NO_LOSS", told)
