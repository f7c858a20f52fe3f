"""The trace as the checks take it: one shuffle by (run, group), cut into frames with names.

A topic lies in one group, so whatever is asked per topic, publisher, subscription or index needs no
further shuffle. Invariant: `run` is part of every key, no check looks across runs.

`era` is the floor that a position belongs to: the highest known floor at or below its epoch.
`last_floor` is the highest floor of its group. A position whose era is below it was given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window, WindowSpec
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.bounds import Bounds

TOPIC = ["run", "group", "topic"]
POSITION = [*TOPIC, "epoch", "seq"]
PUBLICATION = [*TOPIC, "pid", "pseq"]
STREAM = [*TOPIC, "proc", "sub"]
LIFE = ["run", "group", "proc"]


def extra(key: str) -> Column:
    """One value of `extra`, as a string."""
    return F.col("extra").getItem(key)


def flag(key: str) -> Column:
    """One value of `extra` as yes or no; absent is no."""
    return F.coalesce(F.lower(extra(key)).isin("true", "1"), F.lit(False))


def before(keys: list[str]) -> WindowSpec:
    """The rows of a process that precede this one."""
    frame = Window.partitionBy(*keys).orderBy("n")
    return frame.rowsBetween(Window.unboundedPreceding, -1)


def until(keys: list[str]) -> WindowSpec:
    """The rows of a process up to this one, included."""
    frame = Window.partitionBy(*keys).orderBy("n")
    return frame.rowsBetween(Window.unboundedPreceding, Window.currentRow)


@dataclass(frozen=True)
class Prepared:
    """All frames that more than one check reads; each is made once, when first asked for."""

    trace: DataFrame
    bounds: Bounds = field(default_factory=Bounds)

    @cached_property
    def rows(self) -> DataFrame:
        """Rows that name a group, with era and last_floor; the one shuffle that is shared."""
        floors = (
            self.trace.where(F.col("kind").isin("open", "normal", "floor"))
            .select(
                "run",
                "group",
                F.when(F.col("kind") == "floor", F.col("epoch"))
                .otherwise(extra("floor").cast("long"))
                .alias("floor"),
            )
            .groupBy("run", "group")
            .agg(F.collect_set("floor").alias("floors"))
        )
        reached = F.filter("floors", lambda floor: floor <= F.col("epoch"))
        return (
            self.trace.where(F.col("group").isNotNull())
            .join(F.broadcast(floors), ["run", "group"], "left")
            .withColumn("era", F.coalesce(F.array_max(reached), F.lit(0)))
            .withColumn("last_floor", F.coalesce(F.array_max("floors"), F.lit(0)))
            .drop("floors")
            .repartition("run", "group")
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def few(self) -> DataFrame:
        """Rows without a group: of the runner, the nemesis, boots and links."""
        return self.trace.where(F.col("group").isNull()).persist(StorageLevel.MEMORY_AND_DISK)

    @cached_property
    def runs(self) -> DataFrame:
        """One row per run: its numbers, what it requires, and Q as the members state it."""

        def number(kind: str, key: str, default: int) -> Column:
            told = F.max(F.when(F.col("kind") == kind, extra(key).cast("long")))
            return F.coalesce(told, F.lit(default)).alias(key)

        return (
            self.few.groupBy("run")
            .agg(
                number("run", "faults", 1),
                number("run", "groups", 1),
                number("run", "max_messages", 1000),
                number("run", "max_age_ms", 180_000),
                number("boot", "copies", 1),
                F.max(F.when(F.col("kind") == "run", extra("require"))).alias("require"),
            )
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    def of(self, *kinds: str) -> DataFrame:
        """Rows of these kinds."""
        return self.rows.where(F.col("kind").isin(*kinds))

    @cached_property
    def commits(self) -> DataFrame:
        """Messages as they were applied."""
        return self.of("commit").where(F.col("topic").isNotNull())

    @cached_property
    def acked(self) -> DataFrame:
        """Acknowledged publications at a known position, each with its first acknowledgement."""
        return (
            self.of("pub_ack")
            .where("epoch > 0")
            .groupBy(*PUBLICATION, "mid", "era", "last_floor", "epoch", "seq")
            .agg(F.min("t_wall").alias("acked_at"))
        )

    @cached_property
    def publications(self) -> DataFrame:
        """Publications with a number: first and last given to a connection, first acknowledged."""
        rows = self.of("pub_send", "pub_ack").where(F.col("pid").isNotNull())
        sent = F.col("kind") == "pub_send"
        return rows.groupBy(*PUBLICATION).agg(
            F.min(F.when(sent, F.col("t_wall"))).alias("sent_at"),
            F.max_by("conn", F.when(sent, F.col("n"))).alias("conn"),
            F.min(F.when(F.col("kind") == "pub_ack", F.col("t_wall"))).alias("acked_at"),
        )

    @cached_property
    def streams(self) -> DataFrame:
        """What each subscription was told, with what was to come next before each row.

        `expected` is a sequence; -1 where anything may come (fresh, reset); null: nothing is known.
        `part` counts the pieces between gaps, resets and openings.
        """
        outcome = extra("outcome")
        status = F.col("kind") == "sub_status"
        anew = (F.col("kind") == "sub_open") | (status & outcome.isin("gap", "reset", "fresh"))
        says = (
            F.when(F.col("kind") == "deliver", F.col("seq") + 1)
            .when(F.col("kind") == "sub_open", F.coalesce(F.col("seq") + 1, F.lit(-1)))
            .when(status & (outcome == "gap"), extra("first").cast("long"))
            .when(status & outcome.isin("reset", "fresh"), F.lit(-1))
        )
        held = F.when(
            F.col("kind").isin("deliver", "sub_open") & F.col("seq").isNotNull(),
            F.struct("epoch", "seq", "era"),
        )
        return (
            self.of("sub_open", "sub_status", "deliver")
            .withColumn("says", says)
            .withColumn("held", held)
            .withColumn("told", F.when(status, F.struct("conn", "t_wall")))
            .withColumn("expected", F.last("says", ignorenulls=True).over(before(STREAM)))
            .withColumn("position", F.last("held", ignorenulls=True).over(before(STREAM)))
            .withColumn("begun", F.last("told", ignorenulls=True).over(before(STREAM)))
            .withColumn("part", F.sum(anew.cast("int")).over(until(STREAM)))
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def faults(self) -> DataFrame:
        """Faults as intervals that end when the cluster may be expected to be whole again.

        `weight` is how many members a fault may take away; `all` takes more than any f. `hit` is
        whom it turned out to be.
        """
        whole = F.lit(self.bounds.heal_ms * 1000)
        target = F.coalesce(F.max(extra("target")), F.lit(""))
        off = F.max(F.when(F.col("kind") == "fault_off", F.col("t_wall")))
        return (
            self.few.where(F.col("kind").isin("fault_on", "fault_off"))
            .withColumn("id", extra("id"))
            .groupBy("run", "id")
            .agg(
                F.max(extra("fault")).alias("fault"),
                F.coalesce(F.max(extra("hit")), F.max(extra("target"))).alias("hit"),
                F.min(F.when(F.col("kind") == "fault_on", F.col("t_wall"))).alias("on_at"),
                F.coalesce(off + whole, F.lit(2**62)).alias("over_at"),
                F.when(target.isin("all", "*"), F.lit(1000))
                .otherwise(F.size(F.split(target, ",")))
                .alias("weight"),
            )
            .where(F.col("on_at").isNotNull())
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def slow(self) -> DataFrame:
        """Subscriptions of clients that read slowly on purpose: (run, sub)."""
        asked = self.few.where("kind = 'run'").select(
            "run", F.explode(F.split(extra("slow_clients"), ",")).alias("client")
        )
        opened = self.of("sub_open").select("run", "sub", extra("client").alias("client"))
        return opened.join(F.broadcast(asked), ["run", "client"]).select("run", "sub").distinct()

    @cached_property
    def heads(self) -> DataFrame:
        """Where each topic ended and began at each member, after healing."""
        return self.of("final_head").select(
            *TOPIC,
            extra("member").alias("member"),
            F.col("era").alias("head_era"),
            F.col("epoch").alias("head_epoch"),
            F.col("seq").alias("head_seq"),
            extra("first").cast("long").alias("first"),
            F.col("t_wall").alias("read_at"),
        )

    @cached_property
    def reads(self) -> DataFrame:
        """The messages that each member held, after healing."""
        return self.of("final_read").select(
            *TOPIC, extra("member").alias("member"), "epoch", "seq", "mid"
        )

    def release(self) -> None:
        """Give the memory of the shared frames back."""
        for name in ("rows", "few", "runs", "streams", "faults"):
            if name in self.__dict__:
                self.__dict__[name].unpersist()
