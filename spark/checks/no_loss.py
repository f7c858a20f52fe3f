"""NO_LOSS: what was acknowledged is there, for members and for subscriptions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.columns import STREAM, TOPIC
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """An acknowledged message is in every final read, and reached each subscription across it.

    History bounds, a floor change, GAP and RESET excuse it; being older than the subscription too.
    """
    return _lost_at_members(trace).unionByName(_lost_for_subscriptions(trace))


def _lost_at_members(trace: Prepared) -> DataFrame:
    read = (
        trace.positions.where("read is not null")
        .groupBy(*TOPIC, "seq", "mid")
        .agg(F.bit_or("read").alias("at"))
    )
    members = trace.heads.groupBy("run").agg(F.count_distinct("member").alias("members"))
    heads = trace.heads.groupBy(*TOPIC).agg(
        F.collect_list(
            F.struct("member", "place", "head_era", "head_first", "head_seq", "read_at")
        ).alias("heads")
    )
    found = (
        trace.acked.drop("read")
        .join(read.hint("shuffle_hash"), [*TOPIC, "seq", "mid"], "left")
        .join(F.broadcast(members), "run")
        .where((F.bit_count("at") < F.col("members")) | F.col("at").isNull())
        .join(heads.hint("shuffle_hash"), TOPIC, "left")
        .join(F.broadcast(trace.runs.select("run", "max_messages", "max_age_ms")), "run")
        .withColumn("lost", F.filter("heads", _lost_there))
        .withColumn("nowhere", F.coalesce(F.size("heads"), F.lit(0)) < F.col("members"))
        .where((F.size("lost") > 0) | (F.col("nowhere") & (F.col("era") == F.col("last_floor"))))
        .withColumn("head", F.get("lost", F.lit(0)))
    )
    told = sentence(
        "acked {} of epoch {} ({}) is not at {}, which holds {} to {}",
        *("seq", "epoch", "mid", "head.member", "head.head_first", "head.head_seq"),
    )
    return violations(found, "NO_LOSS", told)


def _lost_there(head: Column) -> Column:
    """Whether a message is missing at a member without an excuse."""
    seq, first, last = F.col("seq"), head["head_first"], head["head_seq"]
    mark = F.call_function("shiftleft", F.lit(1).cast("long"), head["place"] - 1)
    has = F.coalesce(F.col("at"), F.lit(0)).bitwiseAND(mark) != 0
    young = (head["read_at"] - F.col("acked_at")) / 1000 < F.col("max_age_ms") - 1000
    short = last - first + 1 < F.col("max_messages")
    same = head["head_era"] == F.col("era")
    missing = (seq > last) | ((seq < first) & young & short) | (seq.between(first, last) & ~has)
    return (head["head_era"] < F.col("era")) | (same & missing)


def _lost_for_subscriptions(trace: Prepared) -> DataFrame:
    """Most subscriptions get all numbers from the first to the last; only the others are searched.

    A subscription that is still connected when its process ends owes whatever was acked before.
    """
    delivered = trace.streams.where("kind = 'deliver'")
    ends = trace.acked.groupBy(*TOPIC, "era").agg(F.max("seq").alias("acked_to"))
    suspects = (
        trace.parts.join(_owing(trace).hint("shuffle_hash"), [*STREAM, "part"], "left")
        .join(ends.hint("shuffle_hash"), [*TOPIC, "era"])
        .where("jumped or count != high - low + 1 or (owed_at is not null and acked_to > high)")
        .select(*STREAM, "era", "low", "high", "owed_at")
    )
    due = F.col("seq").between(F.col("low"), F.col("high")) | (
        (F.col("seq") > F.col("high")) & (F.col("acked_at") <= F.col("owed_at"))
    )
    streams = suspects.select(*STREAM).distinct()
    seen = delivered.join(F.broadcast(streams), STREAM, "left_semi").select(*STREAM, "seq")
    found = (
        trace.acked.join(F.broadcast(suspects), [*TOPIC, "era"])
        .where(due)
        .join(seen.hint("shuffle_hash"), [*STREAM, "seq"], "left_anti")
    )
    told = sentence(
        "acked {} of epoch {} ({}) never reached {}, which saw {} to {}",
        *("seq", "epoch", "mid", "sub", "low", "high"),
    )
    return violations(found, "NO_LOSS", told)


def _owing(trace: Prepared) -> DataFrame:
    """Subscriptions that were neither closed nor cut off, and up to when they owe messages."""
    closed = trace.of("sub_close").select(*STREAM)
    link = F.xxhash64("conn").alias("link")  # numbers need no sorting
    down = trace.few.where("kind = 'link_down'").select("run", "proc", link)
    ends = trace.trace.groupBy("run", "proc").agg(F.max("t_wall").alias("end_at"))
    owed_at = F.col("end_at") - trace.bounds.heal_ms * 1000
    return (
        trace.streams.groupBy(*STREAM)
        .agg(F.max("part").alias("part"), F.max_by(link, "n").alias("link"))
        .join(closed.hint("shuffle_hash"), STREAM, "left_anti")
        .join(F.broadcast(down), ["run", "proc", "link"], "left_anti")
        .join(F.broadcast(ends), ["run", "proc"])
        .select(*STREAM, "part", owed_at.alias("owed_at"))
    )
