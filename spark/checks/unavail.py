"""UNAVAIL: a fault silences a group for a bounded time."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared
from spark.silences import silences

LONGEST = """coalesce(
    array_max(transform(starts, s -> array_min(filter(stops, e -> e >= s)) - s)), 0) div 1000"""


def check(trace: Prepared) -> DataFrame:
    """At most one in a hundred pairs of fault and group is without acks for longer than the bound.

    Time in which the cluster promised nothing does not count: the longest stretch without any is
    measured. It is attributed to all faults that the cluster may still be healing from.
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
        .withColumn("starts", _starts())
        .withColumn("stops", _stops())
        .withColumn("silence_ms", F.expr(LONGEST))
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


def _starts() -> Column:
    """Where stretches of a silence begin in which the cluster owed an answer."""
    moments = F.concat(
        F.array("since"),
        F.transform("near", lambda f: f["away_until"] + 1),
        F.transform("near", lambda f: f["keeper_until"] + 1),
    )
    moments = F.when(F.col("near").isNull(), F.array("since")).otherwise(moments)
    within = F.filter(moments, lambda at: at.between(F.col("since"), F.col("acked_at")))
    return F.filter(within, lambda at: ~F.coalesce(_is_excused(at), F.lit(False)))


def _stops() -> Column:
    """Where they end: faults with which an excuse begins, and the answer."""
    begun = F.filter(F.transform("near", lambda f: f["on_at"]), _is_excused)
    return F.concat(F.coalesce(begun, F.array().cast("array<bigint>")), F.array("acked_at"))


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
