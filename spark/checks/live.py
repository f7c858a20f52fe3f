"""LIVE: a healed cluster works."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.acts import losses
from spark.checks.witness import sentence, violations
from spark.prepared import TOPIC, Prepared, extra, number


def check(trace: Prepared) -> DataFrame:
    """When the last fault is over the cluster heals in time; then publications are acked in time.

    The last life of each member is normal in every group that was ever opened, also after the last
    floor that made it forget, and the ends of all topics are equal at all members. No member ends
    by itself, or badly when it is drained.
    """
    found = _late(trace).unionByName(_not_normal(trace)).unionByName(_unequal(trace))
    return found.unionByName(_ended(trace)).unionByName(_unhealed(trace))


def _unhealed(trace: Prepared) -> DataFrame:
    """All members were seen to be well, but late after the last fault."""
    found = (
        trace.few.where("kind = 'phase'")
        .withColumn("took_ms", number("took_ms"))
        .where(F.col("took_ms") > trace.bounds.heal_ms)
    )
    return violations(found, "LIVE", sentence("healed {} ms after the last fault", "took_ms"))


def _ended(trace: Prepared) -> DataFrame:
    ended = trace.few.where("kind = 'ended'")
    told = sentence("{} ended with {} {}", extra("member"), extra("code"), extra("when"))
    return violations(ended, "LIVE", told)


def _late(trace: Prepared) -> DataFrame:
    # Without any fault, the start of the run is what the cluster must recover from.
    start = F.min(F.when(F.col("kind") == "phase", F.col("t_wall")))
    last = F.max(F.when(F.col("kind").isin("fault_on", "fault_off"), F.col("t_wall")))
    end = F.max(F.when(F.col("kind") == "phase", F.col("t_wall")))
    times = trace.few.groupBy("run").agg(
        (F.coalesce(last, start) + trace.bounds.heal_ms * 1000).alias("healed_at"),
        end.alias("end_at"),
    )
    bound = trace.bounds.ack_ms * 1000
    found = (
        trace.publications.join(F.broadcast(times), "run")
        .where("sent_at >= healed_at")
        .where(F.col("sent_at") + bound <= F.col("end_at"))
        .where(F.col("acked_at").isNull() | (F.col("acked_at") - F.col("sent_at") > bound))
        .withColumn("took_ms", ((F.col("acked_at") - F.col("sent_at")) / 1000).cast("long"))
    )
    told = sentence("{}/{} was acked after {} ms, long after healing", "pid", "pseq", "took_ms")
    return violations(found, "LIVE", told)


def _not_normal(trace: Prepared) -> DataFrame:
    lives = trace.few.where("kind = 'boot'").groupBy("run", "node").agg(F.max("boot").alias("boot"))
    opened = trace.of("open").select("run", "group").distinct()
    turns = trace.of("normal").unionByName(losses(trace))
    normal = (
        turns.groupBy("run", "group", "node", "boot")
        .agg(F.max_by(F.col("kind") == "normal", "n").alias("normal"))
        .where("normal")
    )
    found = opened.join(F.broadcast(lives), "run").join(
        normal, ["run", "group", "node", "boot"], "left_anti"
    )
    told = sentence("{}, boot {}, is not normal in group {}", "node", "boot", "group")
    return violations(found, "LIVE", told)


def _unequal(trace: Prepared) -> DataFrame:
    tail = F.struct("head_epoch", "head_seq", "member")
    found = (
        trace.heads.groupBy(*TOPIC)
        .agg(F.min(tail).alias("low"), F.max(tail).alias("high"))
        .where("low.head_epoch != high.head_epoch or low.head_seq != high.head_seq")
    )
    told = sentence(
        "ends at {} of epoch {} at {}, at {} of epoch {} at {}",
        *("low.head_seq", "low.head_epoch", "low.member"),
        *("high.head_seq", "high.head_epoch", "high.member"),
    )
    return violations(found, "LIVE", told)
