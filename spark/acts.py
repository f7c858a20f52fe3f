"""What members did, row by row against what the same life had done before: one sort for all rules.

Each rule of members asks for the past of a process in a group. Here all of them look back in the
same pass, and only the acts that break one are kept; the checks of these names say what they mean.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.columns import before, extra, flag

if TYPE_CHECKING:
    from spark.prepared import Prepared

KINDS = (
    *("promise", "open", "append", "ack", "commit", "normal", "install", "quorum", "told", "floor"),
)  # fmt: skip
RISING = ("promise", "open", "ack", "commit", "normal")
ERA = 2**40  # indexes stay below: one number orders indexes of all eras


def broken_acts(trace: Prepared) -> DataFrame:
    """Acts that break a rule: `fell`, `below`, `unready`, `early`, `unproved`, `weak` say which."""
    acts = _with_past(trace)
    kind, epoch = F.col("kind"), F.col("epoch")
    fell = [(kind == each) & (epoch < F.col(f"above_{each}")) for each in RISING]
    binds = kind.isin("open", "ack") | ((kind == "append") & F.col("own"))
    counted = (kind == "ack") | ((kind == "promise") & F.col("counts"))
    holds = kind.isin("append", "commit")
    rules = {
        "fell": _any(fell),
        "below": binds & (epoch < F.col("above_promise")),
        "unready": (counted & ~F.coalesce("normal_before", F.lit(False)))
        | (holds & ~F.coalesce("state_before", F.lit(False))),
        "early": (kind == "commit")
        & (F.col("copies") > 1)
        & (F.col("mark") > F.coalesce("granted", F.lit(-1))),
        "unproved": (kind == "ack")
        & (F.col("sample") == 1)
        & (F.col("idx") > F.coalesce("stored_before", F.lit(0))),
        "weak": (kind == "quorum")
        & ((F.col("others") < F.col("copies") - 1) | (F.col("idx") < F.col("opened_at"))),
    }
    flags = [F.coalesce(rule, F.lit(False)).alias(name) for name, rule in rules.items()]
    shown = ("run", "group", "topic", "proc", "n", "kind", "epoch", "idx", "others", "copies")
    past = ("above_promise", "stored_before", "opened_at")
    highest = F.coalesce(*(F.when(kind == each, F.col(f"above_{each}")) for each in RISING))
    return (
        acts.select(*shown, *past, highest.alias("above"), *flags)
        .where(_any([F.col(name) for name in rules]))
        .persist(StorageLevel.MEMORY_AND_DISK)
    )


def _any(conditions: list[Column]) -> Column:
    """Whether one of them holds; unknown is no."""
    found = F.lit(False)
    for each in conditions:
        found = found | F.coalesce(each, F.lit(False))
    return found


def _with_past(trace: Prepared) -> DataFrame:
    """Acts with what the same life had done before."""
    kind, idx, epoch = F.col("kind"), F.col("idx"), F.col("epoch")
    past = before("life")
    lost = losses(trace).select("run", "group", "proc", "n", F.lit(True).alias("loses"))
    acts = (
        grounds(trace)
        .join(F.broadcast(lost), ["run", "group", "proc", "n"], "left")
        .withColumn("life", F.xxhash64("run", "group", "proc"))
    )
    highest = [
        F.max(F.when(kind == each, epoch)).over(past).alias(f"above_{each}") for each in RISING
    ]
    held = F.when(kind.isin("append", "install"), idx).when(F.col("loses"), F.lit(0))
    stored = F.last(held, ignorenulls=True)
    return acts.select(
        "*",
        *highest,
        _latest(kind == "normal").over(past).alias("normal_before"),
        _latest(kind.isin("normal", "install")).over(past).alias("state_before"),
        F.max("grant").over(past).alias("granted"),
        stored.over(past).alias("stored_before"),
    )


def _latest(gains: Column) -> Column:
    """Yes since an act by which a member gains something, no since one that lost it all."""
    return F.last(F.when(gains, True).when(F.col("loses"), False), ignorenulls=True)


def losses(trace: Prepared) -> DataFrame:
    """Floors after which a life holds nothing of the group, as they say.

    Only whoever raised it itself keeps what it held, and was elected for that epoch just before:
    another one that says so is not believed. Rows of older members say neither.
    """
    past = before("life")
    elected = F.last(F.when(F.col("kind") == "elect", F.col("epoch")), ignorenulls=True).over(past)
    keeps = F.coalesce(flag("normal") & (F.col("elected") == F.col("epoch")), F.lit(False))
    return (
        trace.of("elect", "floor")
        .withColumn("life", F.xxhash64("run", "group", "proc"))
        .withColumn("elected", elected)
        .where((F.col("kind") == "floor") & extra("normal").isNotNull() & ~keeps)
        .drop("life", "elected")
    )


def grounds(trace: Prepared) -> DataFrame:
    """Acts with `mark`, the index across eras, and `grant`: up to where entries may be applied.

    Because copies were counted; because a coordinator's and one's own are all that it takes;
    because the state was installed, or another member told.
    """
    kind, mark = F.col("kind"), F.col("mark")
    opened = trace.of("open").groupBy("run", "group", "epoch").agg(F.min("idx").alias("opened_at"))
    numbers = trace.runs.select("run", "copies", "sample")
    enough = F.col("others") >= F.col("copies") - 1
    of_epoch = F.col("idx") >= F.coalesce("opened_at", F.lit(0))
    second = (kind == "ack") & (F.col("copies") == 2) & of_epoch
    grant = (
        F.when(kind.isin("install", "told"), mark)
        .when((kind == "quorum") & enough & of_epoch, mark)
        .when(second, mark)
    )
    by = F.split(F.coalesce(extra("by"), F.lit("")), ",")
    return (
        trace.of(*KINDS)
        .join(F.broadcast(opened), ["run", "group", "epoch"], "left")
        .join(F.broadcast(numbers), "run")
        .select(
            *("run", "group", "topic", "proc", "n", "kind", "epoch", "idx", "own"),
            *("opened_at", "copies", "sample"),
            F.when(kind == "promise", flag("normal")).alias("counts"),
            F.when(kind == "quorum", F.size(F.array_remove(F.array_distinct(by), ""))).alias(
                "others"
            ),
            (F.col("era") * ERA + F.col("idx")).alias("mark"),
        )
        .withColumn("grant", grant)
    )


def counted_lives(trace: Prepared) -> DataFrame:
    """Lives that coordinators counted, up to which index; only those that began in their run.

    On a cluster that others started, members take the name of a run one after another: rows of
    lives before that bear another name.
    """
    began = (
        trace.few.where("kind = 'boot'").groupBy("run", "node").agg(F.min("boot").alias("began"))
    )
    life = F.regexp_extract("life", "^(.*)-([0-9]+)$", 1)
    boot = F.regexp_extract("life", "^(.*)-([0-9]+)$", 2).try_cast("long")
    return (
        trace.of("quorum")
        .groupBy("run", "group", "era", "epoch", "proc", extra("by").alias("by"))
        .agg(F.max("idx").alias("idx"))
        .withColumn("life", F.explode(F.split("by", ",")))
        .where("life != ''")
        .withColumns({"node": life, "boot": boot})
        .join(F.broadcast(began), ["run", "node"], "left")
        .where("boot >= coalesce(began, 0) or boot is null")
    )
