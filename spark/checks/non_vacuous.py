"""NON_VACUOUS: a run proves something only if something happened."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared, extra, flag, number


def check(trace: Prepared) -> DataFrame:
    """Every planned fault happened, every group had traffic, and what must happen did.

    That is: a takeover, a SYNC, a GAP, a duplicate retry, a resume with missed messages (of these
    only what the run requires, if it says so), a final read of all members; and nearly all that was
    published in quiet times was acknowledged.
    """
    missing = _missing_happenings(trace).unionByName(_missing_faults(trace))
    return missing.unionByName(_quiet(trace)).unionByName(_unread(trace))


def _missing_happenings(trace: Prepared) -> DataFrame:
    def seen(condition: Column) -> Column:
        return F.coalesce(F.max(condition), F.lit(False))

    kind, outcome = F.col("kind"), extra("outcome")
    opens = F.count_distinct(F.when(kind == "open", F.col("epoch")))
    telling = trace.of("open", "install", "sub_status", "pub_ack", "final_head")
    by_group = telling.groupBy("run", "group").agg(
        (opens > 1).alias("takeover"),
        seen(kind == "install").alias("sync"),
        seen((kind == "sub_status") & (outcome == "gap")).alias("gap"),
        seen((kind == "pub_ack") & flag("duplicate")).alias("duplicate"),
        seen(
            (kind == "sub_status")
            & (outcome == "resumed")
            & (F.coalesce(number("missed"), F.lit(0)) > 0)
        ).alias("resume"),
        seen(kind == "final_head").alias("final read"),
        seen(kind == "pub_ack").alias("traffic"),
    )
    wanted = [*trace.bounds.require, "final read"]
    by_run = by_group.groupBy("run").agg(
        F.sum(F.col("traffic").cast("int")).alias("busy"),
        *(F.max(name).alias(name) for name in wanted),
    )

    def due(name: str) -> Column:
        told = F.split("require", ",")
        return (F.lit(name) == "final read") | F.array_contains(told, name) | told.isNull()

    def lacks(name: str) -> Column:
        return F.coalesce(~F.col(name), F.lit(True)) & due(name)

    absent = F.array(*(F.when(lacks(name), F.lit(f"no {name} happened")) for name in wanted))
    few = F.when(
        (F.coalesce("busy", F.lit(0)) < F.col("groups")) & (F.col("sample") == 1),
        sentence("{} of {} groups had traffic", "busy", "groups"),
    )
    found = (
        trace.runs.join(by_run, "run", "left")
        .select("run", F.explode(F.concat(absent, F.array(few))).alias("lacks"))
        .where(F.col("lacks").isNotNull())
    )
    return violations(found, "NON_VACUOUS", F.col("lacks"))


def _missing_faults(trace: Prepared) -> DataFrame:
    plans = trace.few.where("kind = 'plan'").select(
        "run", extra("id").alias("id"), extra("fault").alias("fault")
    )
    happened = trace.faults.where("not missed").select("run", "id")
    found = plans.join(happened, ["run", "id"], "left_anti")
    return violations(found, "NON_VACUOUS", sentence("{} ({}) never happened", "fault", "id"))


def _unread(trace: Prepared) -> DataFrame:
    """Members of which nothing was read at the end, though others were."""
    read = trace.heads.select("run", "member").distinct()
    found = (
        trace.runs.select("run", F.explode("members").alias("member"))
        .join(F.broadcast(read.select("run").distinct()), "run", "left_semi")
        .join(F.broadcast(read), ["run", "member"], "left_anti")
    )
    return violations(found, "NON_VACUOUS", sentence("{} was not read at the end", "member"))


def _quiet(trace: Prepared) -> DataFrame:
    in_run = Window.partitionBy("run").orderBy("t_wall")
    quiet = (
        trace.few.where("kind = 'phase'")
        .select(
            "run",
            extra("phase").alias("phase"),
            F.col("t_wall").alias("from_at"),
            F.lead("t_wall", 1, 2**62).over(in_run).alias("to_at"),
        )
        .where("phase = 'quiet'")
    )
    found = (
        trace.publications.join(F.broadcast(quiet), "run")
        .where("sent_at >= from_at and sent_at < to_at")
        .groupBy("run")
        .agg(F.count("*").alias("sent"), F.count("acked_at").alias("acked"))
        .where(F.col("acked") < F.col("sent") * trace.bounds.quiet_acked)
    )
    told = sentence("{} of {} were acknowledged in quiet times", "acked", "sent")
    return violations(found, "NON_VACUOUS", told)
