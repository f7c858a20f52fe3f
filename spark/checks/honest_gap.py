"""HONEST_GAP: what a subscriber is told to be lost is lost."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.bounds import SURE_MS
from spark.checks.witness import sentence, violations
from spark.prepared import POSITION, TOPIC, Prepared, extra, number


def check(trace: Prepared) -> DataFrame:
    """A GAP's range was really out of that member's history; a RESET had a reason.

    The reasons: the floor rose above the position, or nobody ever applied it.
    """
    return _unfounded_gaps(trace).unionByName(_held_after_all(trace)).unionByName(_resets(trace))


def _unfounded_gaps(trace: Prepared) -> DataFrame:
    windows = trace.of("window").select(
        *TOPIC, F.col("node").alias("member"), F.col("seq").alias("first"), F.lit(1).alias("shown")
    )
    found = (
        trace.of("sub_status")
        .where(extra("outcome") == "gap")
        .withColumn("member", extra("member"))
        .withColumn("asked", number("asked"))
        .withColumn("first", number("first"))
        .join(windows.distinct(), [*TOPIC, "member", "first"], "left")
        .where(F.col("shown").isNull() | (F.col("asked") >= F.col("first")))
    )
    told = sentence(
        "{} asked {} of {}, got a gap up to {}, where the history did not begin ({} row {})",
        *("sub", "asked", "member", "first", "proc", "n"),
    )
    return violations(found, "HONEST_GAP", told)


def _held_after_all(trace: Prepared) -> DataFrame:
    """Messages that the same process had applied and had no reason to drop when it told the gap.

    Sequences are applied without holes, so the one before the window's first tells for all.
    """
    cleared = (
        trace.of("install", "floor")
        .groupBy("run", "group", "proc")
        .agg(F.collect_list("n").alias("cleared"))
    )
    windows = trace.of("window").select(
        *(*TOPIC, "proc", "n", "t_mono"),
        (F.col("seq") - 1).alias("seq"),
        number("head").alias("head"),
    )
    applied = trace.of("commit").select(
        *(*TOPIC, "proc", "seq"), F.col("n").alias("had_n"), F.col("t_mono").alias("had_at")
    )
    young = (F.col("t_mono") - F.col("had_at")) / 1000 + SURE_MS < F.col("max_age_ms")
    found = (
        applied.join(windows.hint("shuffle_hash"), [*TOPIC, "proc", "seq"])
        .join(F.broadcast(cleared), ["run", "group", "proc"], "left")
        .join(F.broadcast(trace.runs.select("run", "max_messages", "max_age_ms")), "run")
        .where("had_n < n")
        .where("cleared is null or not exists(cleared, each -> each > had_n and each < n)")
        .where(F.col("head") - F.col("seq") < F.col("max_messages"))
        .where(young)
    )
    told = sentence("{} row {} says from after {}, which it had applied", "proc", "n", "seq")
    return violations(found, "HONEST_GAP", told)


def _resets(trace: Prepared) -> DataFrame:
    applied = trace.commits.select(*POSITION, F.lit(1).alias("applied")).distinct()
    applied = applied.hint("shuffle_hash")
    found = (
        trace.streams.where("kind = 'sub_status'")
        .where((extra("outcome") == "reset") & (F.col("position.era") == F.col("last_floor")))
        .withColumn("reason", F.coalesce(extra("reason"), F.lit("?")))
        .withColumn("epoch", F.col("position.epoch"))
        .withColumn("seq", F.col("position.seq"))
        .join(applied, POSITION, "left")
        .where((F.col("reason") != "unknown_position") | F.col("applied").isNotNull())
    )
    told = sentence(
        "{} was reset ({}) from {} of epoch {} at {} row {}, which is part of the present history",
        *("sub", "reason", "seq", "epoch", "proc", "n"),
    )
    return violations(found, "HONEST_GAP", told)
