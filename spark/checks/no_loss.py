"""NO_LOSS: what was acknowledged is there, for members and for subscriptions."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.bounds import SURE_MS
from spark.checks.witness import sentence, violations
from spark.prepared import STREAM, TOPIC, Prepared, extra


def check(trace: Prepared) -> DataFrame:
    """An acknowledged message is in every final read, and reached each subscription across it.

    History bounds, a floor change, GAP and RESET excuse it; being older than the subscription too.
    What was acked well before a subscription ended has reached it.
    """
    found = _lost_at_members(trace).unionByName(_lost_for_subscriptions(trace))
    return found.unionByName(_silent(trace))


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
    young = (head["read_at"] - F.col("acked_at")) / 1000 + SURE_MS < F.col("max_age_ms")
    short = last - first + 1 < F.col("max_messages")
    same = head["head_era"] == F.col("era")
    missing = (seq > last) | ((seq < first) & young & short) | (seq.between(first, last) & ~has)
    return (head["head_era"] < F.col("era")) | (same & missing)


def _lost_for_subscriptions(trace: Prepared) -> DataFrame:
    """Most subscriptions get all numbers between two; only the others are searched."""
    delivered = trace.streams.where("kind = 'deliver'")
    suspects = trace.parts.where("jumped or count != high - low + 1").select(
        *STREAM, "era", "low", "high"
    )
    streams = suspects.select(*STREAM).distinct()
    seen = delivered.join(F.broadcast(streams), STREAM, "left_semi").select(*STREAM, "era", "seq")
    found = (
        trace.acked.join(F.broadcast(suspects), [*TOPIC, "era"])
        .where("seq between low and high")
        .join(seen.hint("shuffle_hash"), [*STREAM, "era", "seq"], "left_anti")
    )
    told = sentence(
        "acked {} of epoch {} ({}) never reached {}, which saw {} to {}",
        *("seq", "epoch", "mid", "sub", "low", "high"),
    )
    return violations(found, "NO_LOSS", told)


def _silent(trace: Prepared) -> DataFrame:
    """Subscriptions that ended before something that they were owed: the last of it.

    Acknowledgements and ends in the order of time say what was acked before each end.
    """
    place = F.struct("era", "seq", "epoch", "mid")
    acked = trace.acked.select(*TOPIC, F.col("acked_at").alias("at"), place.alias("last"))
    events = acked.unionByName(_owing(trace), allowMissingColumns=True)
    order = Window.partitionBy(*TOPIC).orderBy("at", F.col("sub").isNotNull())
    last = F.max("last").over(order.rowsBetween(Window.unboundedPreceding, 0))
    beyond = F.struct("last.era", "last.seq") > F.struct("stands.era", "stands.high")
    found = events.withColumn("last", last).where(F.col("sub").isNotNull() & beyond)
    told = sentence(
        "acked {} of epoch {} ({}) never reached {}, which stood at {} when it ended",
        *("last.seq", "last.epoch", "last.mid", "sub", "stands.high"),
    )
    return violations(found, "NO_LOSS", told)


def _owing(trace: Prepared) -> DataFrame:
    """Where each subscription stood in the end (`stands`), and up to when (`at`) it was owed acks.

    It ends with its last connection, when the user leaves or it is denied, or with its process. An
    end amid faults counts as one at their beginning. Who reads slowly on purpose is owed nothing.
    """
    status = F.col("kind") == "sub_status"
    denied = F.when(extra("outcome") == "denied", F.col("t_wall"))
    link = F.xxhash64("conn").alias("link")  # numbers need no sorting
    down = trace.few.where("kind = 'link_down'").select(
        "run", "proc", link, F.col("t_wall").alias("down_at")
    )
    closed = trace.of("sub_close").groupBy(*STREAM).agg(F.min("t_wall").alias("closed_at"))
    ends = trace.trace.groupBy("run", "proc").agg(F.max("t_wall").alias("end_at"))
    stands = trace.parts.groupBy(*STREAM).agg(
        F.max(F.struct("part", "era", "high")).alias("stands")
    )
    busy = F.broadcast(trace.busy.withColumnRenamed("run", "of_run"))
    amid = (F.col("run") == F.col("of_run")) & F.expr("end_at between on_at and over_at")
    owed_at = F.coalesce("on_at", "end_at") - trace.bounds.heal_ms * 1000
    return (
        trace.streams.groupBy(*STREAM)
        .agg(
            F.max_by(link, F.when(F.col("conn").isNotNull(), F.col("n"))).alias("link"),
            F.max_by(denied, F.when(status, F.col("n"))).alias("denied_at"),
        )
        .join(F.broadcast(trace.slow), ["run", "sub"], "left_anti")
        .join(stands.hint("shuffle_hash"), STREAM)
        .join(closed.hint("shuffle_hash"), STREAM, "left")
        .join(F.broadcast(down), ["run", "proc", "link"], "left")
        .join(F.broadcast(ends), ["run", "proc"])
        .withColumn("end_at", F.least("end_at", "closed_at", "down_at", "denied_at"))
        .join(busy, amid, "left")
        .select(*STREAM, owed_at.alias("at"), "stands")
    )
