"""COMMIT_BEFORE_SEE: nobody sees what Q members do not hold."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.acts import ERA, counted_lives, grounds
from spark.checks.witness import sentence, violations
from spark.columns import bit
from spark.prepared import Prepared

CHECK = "COMMIT_BEFORE_SEE"
PLACE = ["run", "group", "topic", "era", "epoch", "seq"]


def check(trace: Prepared) -> DataFrame:
    """Q members held what was delivered or acked, and had been counted when it was applied.

    By the order within processes alone: a coordinator counts lives, these have acknowledged so
    much, and held it when they did; who only was told was told what somebody had counted.
    """
    found = [_few_copies(trace), _early(trace), _never_acknowledged(trace), _rumours(trace)]
    return found[0].unionByName(found[1]).unionByName(found[2]).unionByName(found[3])


def _seen(trace: Prepared) -> DataFrame:
    """Places of messages that a client saw, with who stored them."""
    visible = F.col("acked_at").isNotNull() | (F.col("delivered") > 0)
    return (
        trace.positions.groupBy(*PLACE)
        .agg(
            F.max(visible).alias("visible"),
            F.coalesce(F.bit_or("stored"), F.lit(0)).alias("stored"),
            F.max("idx").alias("idx"),
        )
        .where("visible")
    )


def _ends(trace: Prepared) -> DataFrame:
    """Up to which index of a group clients saw messages.

    What members did behind that, one after another, may be in the trace of one and not yet in that
    of another: files of a cluster that goes on are copied one by one.
    """
    return _seen(trace).groupBy("run", "group", "era").agg(F.max("idx").alias("end"))


def _few_copies(trace: Prepared) -> DataFrame:
    """Stored is what was appended or applied, and what lies below an installed state."""
    held = (
        _seen(trace)
        .join(F.broadcast(trace.runs.select("run", "copies")), "run")
        .where(F.bit_count("stored") < F.col("copies"))
    )
    installs = trace.of("install").select(
        "run", "group", "era", "place", F.col("idx").alias("upto")
    )
    covered = F.when(F.col("upto") >= F.col("idx"), bit("place"))
    found = (
        held.join(F.broadcast(installs), ["run", "group", "era"], "left")
        .groupBy(*PLACE, "stored", "copies")
        .agg(F.coalesce(F.bit_or(covered), F.lit(0)).alias("installed"))
        .withColumn("held", F.bit_count(F.col("stored").bitwiseOR(F.col("installed"))))
        .where("held < copies")
    )
    told = sentence(
        "{} of epoch {} was seen, {} of {} copies were stored", "seq", "epoch", "held", "copies"
    )
    return violations(found, CHECK, told)


def _early(trace: Prepared) -> DataFrame:
    """Applied before enough copies were counted, counted too few, acknowledged what is not held."""
    early = sentence(
        "{} row {} applies index {} before {} copies were counted", "proc", "n", "idx", "copies"
    )
    weak = sentence(
        "{} row {} commits index {} with {} other copies, epoch {} begins at {}",
        *("proc", "n", "idx", "others", "epoch", "opened_at"),
    )
    unproved = sentence(
        "{} row {} acknowledges index {}, its log ends at {}", "proc", "n", "idx", "stored_before"
    )
    return (
        violations(trace.acts.where("early"), CHECK, early)
        .unionByName(violations(trace.acts.where("weak"), CHECK, weak))
        .unionByName(violations(trace.acts.where("unproved"), CHECK, unproved))
    )


def _never_acknowledged(trace: Prepared) -> DataFrame:
    """Lives that were counted and never said so; of a life before the run nothing is known."""
    said = (
        trace.of("ack")
        .groupBy("run", "group", "epoch", F.col("proc").alias("life"))
        .agg(F.max("idx").alias("said"))
    )
    counted = (
        counted_lives(trace)
        .join(F.broadcast(_ends(trace)), ["run", "group", "era"])
        .withColumn("idx", F.least("idx", "end"))
    )
    found = counted.join(said, ["run", "group", "epoch", "life"], "left").where(
        "idx > coalesce(said, -1)"
    )
    told = sentence(
        "{} counted {} up to index {} of epoch {}, which acknowledged {}",
        *("proc", "life", "idx", "epoch", "said"),
    )
    return violations(found, CHECK, told)


def _rumours(trace: Prepared) -> DataFrame:
    """Told to be committed, though nobody had counted it."""
    kind = F.col("kind")
    first_hand = F.max(F.when(kind.isin("quorum", "ack"), F.col("grant")))
    ends = (
        _ends(trace)
        .groupBy("run", "group")
        .agg(F.max(F.col("era") * ERA + F.col("end")).alias("end"))
    )
    found = (
        grounds(trace)
        .groupBy("run", "group")
        .agg(
            F.max(F.when(kind == "told", F.col("mark"))).alias("mark"),
            F.max(F.when(kind == "told", F.col("idx"))).alias("idx"),
            F.coalesce(first_hand, F.lit(-1)).alias("first_hand"),
        )
        .join(F.broadcast(ends), ["run", "group"])
        .where("least(mark, end) > first_hand and mark is not null")
    )
    return violations(found, CHECK, sentence("index {} was told, and counted by nobody", "idx"))
