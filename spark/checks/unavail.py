"""UNAVAIL: a fault silences a group for a bounded time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared, extra


def check(trace: Prepared) -> DataFrame:
    """At most one in a hundred pairs of fault and group is without acks for longer than the bound.

    Silence counts while an acknowledgement is waited for, on the connection that brought it and at
    a contact that no fault hit: how long clients stay with one that is frozen or cut off is their
    own patience. A fault lasts until the cluster had time to heal.
    """
    in_group = Window.partitionBy("run", "group").orderBy("acked_at")
    links = (
        trace.few.where("kind = 'link_up'")
        .groupBy("run", "conn")
        .agg(F.max("t_wall").alias("up_at"), F.max(extra("member")).alias("contact"))
    )
    answered = trace.publications.where("sent_at is not null and acked_at is not null").join(
        F.broadcast(links), ["run", "conn"], "left"
    )
    silences = answered.withColumn(
        "since", F.greatest(F.lag("acked_at").over(in_group), F.col("sent_at"), F.col("up_at"))
    ).withColumn("silence_ms", ((F.col("acked_at") - F.col("since")) / 1000).cast("long"))
    pairs = (
        answered.groupBy("run")
        .agg(F.count_distinct("group").alias("spoke"))
        .join(trace.faults.groupBy("run").agg(F.count("*").alias("happened")), "run")
        .select("run", (F.col("spoke") * F.col("happened")).alias("pairs"))
    )
    silence = ["run", "group", "topic", "since", "acked_at", "silence_ms"]
    found = (
        silences.where(F.col("silence_ms") > trace.bounds.silence_ms)
        .join(F.broadcast(trace.faults), "run")
        .where("on_at <= acked_at and over_at >= since")
        .groupBy(*silence)
        .agg(
            F.array_distinct(F.flatten(F.collect_list("hits"))).alias("hits"),
            F.max(F.col("hit").isin("all", "*")).alias("everybody"),
            F.max(F.col("fault").startswith("zookeeper")).alias("keeper"),
            F.collect_set("id").alias("ids"),
            F.min("fault").alias("fault"),
            F.max(F.coalesce(F.col("hit") == F.col("contact"), F.lit(False))).alias("at_hit"),
        )
        .join(F.broadcast(trace.runs.select("run", "faults")), "run")
        .where(~_excused() & ~F.col("at_hit"))
        .select(*silence, "fault", F.explode("ids").alias("id"))
        .groupBy("run", "group", "id")
        .agg(F.max("silence_ms").alias("silence_ms"), F.max("fault").alias("fault"))
        .withColumn("late", F.count("*").over(Window.partitionBy("run")))
        .join(F.broadcast(pairs), "run")
        .where(F.col("late") > F.col("pairs") * trace.bounds.late_share)
    )
    told = sentence("{} ms without an ack after {} ({})", "silence_ms", "fault", "id")
    return violations(found, "UNAVAIL", told)


def _excused() -> Column:
    """More than f members are away, or one is and nobody can be elected while ZooKeeper is."""
    away = F.size("hits")
    return F.col("everybody") | (away > F.col("faults")) | (F.col("keeper") & (away > 0))
