"""UNAVAIL: a fault silences a group for a bounded time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared
from spark.silences import silences


def check(trace: Prepared) -> DataFrame:
    """At most one in a hundred pairs of fault and group is without acks for longer than the bound.

    Time in which the cluster promised nothing does not count: the silence begins at its end. What
    is left is attributed to all faults that the cluster may still be healing from.
    """
    all_silences = silences(trace)
    fault = F.struct(
        "id", "fault", "on_at", "off_at", "over_at", "hits", "away_until", "keeper_until"
    )
    faults = trace.faults.groupBy("run").agg(F.collect_list(fault).alias("happened"))
    pairs = (
        all_silences.groupBy("run")
        .agg(F.count_distinct("group").alias("spoke"))
        .join(faults, "run", "left")
        .select("run", (F.col("spoke") * F.greatest(F.size("happened"), F.lit(0))).alias("pairs"))
    )
    bound = F.lit(trace.bounds.silence_ms * 1000)
    near = F.filter("happened", lambda f: _overlaps(f["on_at"], f["over_at"]))
    found = (
        all_silences.where(F.col("acked_at") - F.col("since") > bound)
        .join(F.broadcast(faults), "run", "left")
        .join(F.broadcast(trace.runs.select("run", "faults")), "run")
        .withColumn("near", near)
        .withColumn("since", F.greatest("since", _excused_until()))
        .withColumn("silence_ms", F.expr("(acked_at - since) div 1000"))
        .where(F.col("silence_ms") > trace.bounds.silence_ms)
        .select("run", "group", "silence_ms", F.explode_outer("near").alias("by"))
        .groupBy("run", "group", F.coalesce("by.id", F.lit("no fault")).alias("id"))
        .agg(F.max("silence_ms").alias("silence_ms"), F.max("by.fault").alias("fault"))
        .withColumn("late", F.count("*").over(Window.partitionBy("run")))
        .join(F.broadcast(pairs), "run")
        .where(F.col("late") > F.col("pairs") * trace.bounds.late_share)
    )
    told = sentence("{} ms without an ack after {} ({})", "silence_ms", "id", "fault")
    return violations(found, "UNAVAIL", told)


def _overlaps(begin: Column, end: Column) -> Column:
    return (begin <= F.col("acked_at")) & (end >= F.col("since"))


def _excused_until() -> Column:
    """The last moment of a silence at which the cluster promised nothing."""
    ends = F.concat(
        F.transform("near", lambda f: f["away_until"]),
        F.transform("near", lambda f: f["keeper_until"]),
        F.array("acked_at"),
    )
    moments = F.filter(ends, lambda at: at.between(F.col("since"), F.col("acked_at")))
    return F.array_max(F.filter(moments, _is_excused))


def _is_excused(at: Column) -> Column:
    """More than f members are away, or nobody can be elected after a fault of one."""
    away = F.filter("near", lambda f: (f["on_at"] <= at) & (f["away_until"] >= at))
    members = F.array_distinct(F.flatten(F.transform(away, lambda f: f["hits"])))
    keeper = F.exists("near", lambda f: (f["on_at"] <= at) & (f["keeper_until"] >= at))
    needed = F.exists(
        "near",
        lambda f: (
            (f["on_at"] <= at)
            & (F.size(f["hits"]) > 0)
            & (F.greatest(f["off_at"], f["away_until"]) >= F.col("since"))
        ),
    )
    return (F.size(members) > F.col("faults")) | (keeper & needed)
