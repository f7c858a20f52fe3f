"""Processes whose rows are not there at all: a hole that no row's number can show.

What the others say of them would look like broken promises; it is a trace that was not brought here
as a whole.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.acts import counted_lives
from spark.columns import extra
from spark.faults import TraceFault
from spark.prepared import Prepared

TOLD = 50  # more faults than a person reads


def missing_processes(trace: Prepared) -> list[TraceFault]:
    """Members that a run has and that never booted in it; lives that were counted without rows."""
    found = _silent_members(trace).unionByName(_lost_lives(trace)).orderBy("run", "who")
    return [
        TraceFault(f"run {row.run}", row.who, "no row of it is there: bring all files of the run")
        for row in found.limit(TOLD).collect()
    ]


def _silent_members(trace: Prepared) -> DataFrame:
    named = trace.few.where("kind = 'run'").select(
        "run", F.explode(F.split(extra("members"), ",")).alias("who")
    )
    booted = trace.few.where("kind = 'boot'").select("run", F.col("node").alias("who")).distinct()
    return named.distinct().join(booted, ["run", "who"], "left_anti")


def _lost_lives(trace: Prepared) -> DataFrame:
    """Of members that are known: a life that nobody could have is no matter of files."""
    wrote = trace.few.where("kind = 'boot'").select("run", F.col("proc").alias("who")).distinct()
    counted = counted_lives(trace).where("began is not null")
    lives = counted.select("run", F.col("life").alias("who")).distinct()
    return lives.join(wrote, ["run", "who"], "left_anti")
