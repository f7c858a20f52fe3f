"""The trace as the checks take it: one shuffle by (run, group), cut into frames with names.

A topic lies in one group, so whatever is asked per topic, publisher, subscription or index needs no
further shuffle. Invariant: `run` is part of every key, no check looks across runs.

Cost is linear in rows, so a check may go over all rows once in a frame that is shared (`rows`,
`positions`, `streams`, `acts`); whatever it joins beyond that has been reduced before.

`era` is the floor that a position belongs to: the highest known floor at or below its epoch.
`last_floor` is the highest floor of its group. A position whose era is below it was given up.
`place` is the number of a member in its run, from 1, so that sets of members are bits of a number.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.acts import broken_acts
from spark.bounds import Bounds
from spark.columns import (
    POSITION,
    PUBLICATION,
    STREAM,
    TOPIC,
    before,
    bit,
    extra,
    flag,
    number,
    until,
)

__all__ = ["POSITION", "PUBLICATION", "STREAM", "TOPIC", "Prepared", "extra", "flag", "number"]

# Most rows are of these kinds; what they say in `extra` is in columns of its own.
MANY = ("append", "commit", "ack", "deliver", "final_read")
FREQUENT = (*MANY, "pub_send", "pub_ack", "quorum")
NEVER = 2**62
# Members that these hit are there, and count; all others that hit members take them away.
STAYS = ("starve", "reset", "cut-zookeeper", "slow-link", "late-link", "lossy-link", "full-disk")
FORGETS = "^(kill|sleepwalk|zombie|clock|recover)"  # a rolling restart waits for its members
HITS_CLIENTS = ("cut-clients", "deaf-clients", "recover")
COLUMNS = (
    *("run", "group", "node", "boot", "proc", "t_mono", "t_wall", "n", "kind", "topic"),
    *("epoch", "seq", "idx", "pid", "pseq", "mid", "sub", "conn"),
)


@dataclass(frozen=True)
class Prepared:
    """All frames that more than one check reads; each is made once, when first asked for."""

    trace: DataFrame
    bounds: Bounds = field(default_factory=Bounds)

    @cached_property
    def rows(self) -> DataFrame:
        """Rows that name a group, with era, last_floor and place; the one shuffle that is shared.

        `own`: an entry that its coordinator made; `first`: a delivery behind a forgotten history.
        """
        only = F.get("floors", F.lit(0))
        one = F.when(only <= F.col("epoch"), only)
        some = F.array_max(F.filter("floors", lambda floor: floor <= F.col("epoch")))
        whose = F.when(F.col("kind").startswith("final_"), extra("member")).otherwise(F.col("node"))
        return (
            self.trace.where(F.col("group").isNotNull())
            .join(F.broadcast(self._floors), ["run", "group"], "left")
            .join(F.broadcast(self.runs.select("run", "nodes")), "run", "left")
            .select(
                *COLUMNS,
                F.coalesce(F.when(F.size("floors") == 1, one).otherwise(some), F.lit(0)).alias(
                    "era"
                ),
                F.coalesce(F.array_max("floors"), F.lit(0)).alias("last_floor"),
                F.coalesce(F.array_position("nodes", whose), F.lit(0)).cast("int").alias("place"),
                (extra("role") == "coordinator").alias("own"),
                flag("first").alias("first"),
                F.when(~F.col("kind").isin(*MANY), F.col("extra")).alias("extra"),
            )
            .repartition("run", "group")
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def _floors(self) -> DataFrame:
        floor = F.when(F.col("kind") == "floor", F.col("epoch"))
        return (
            self._side.where(F.col("kind").isin("open", "normal", "floor"))
            .select("run", "group", floor.otherwise(number("floor")).alias("floor"))
            .groupBy("run", "group")
            .agg(F.collect_set("floor").alias("floors"))
        )

    @cached_property
    def _side(self) -> DataFrame:
        """What must be known before the shuffle."""
        early = F.col("group").isNull() | F.col("kind").isin("open", "normal", "floor")
        return self.trace.where(early).persist(StorageLevel.MEMORY_AND_DISK)

    @cached_property
    def rare(self) -> DataFrame:
        """Rows of all kinds but the frequent ones."""
        kinds = F.col("kind").isin(*FREQUENT)
        return self.rows.where(~kinds).persist(StorageLevel.MEMORY_AND_DISK)

    @cached_property
    def few(self) -> DataFrame:
        """Rows without a group: of the runner, the nemesis, boots and links."""
        return self._side.where(F.col("group").isNull())

    @cached_property
    def runs(self) -> DataFrame:
        """One row per run: its numbers, members, what it requires; Q of the plan or of members."""

        def highest(kind: str, key: str, default: int) -> Column:
            told = F.max(F.when(F.col("kind") == kind, number(key)))
            return F.coalesce(told, F.lit(default)).alias(key)

        def kept(key: str, default: int) -> Column:
            """By all members, also where one keeps more."""
            told = F.min(F.when(F.col("kind") == "boot", number(key)))
            return F.coalesce(told, F.lit(default)).alias(key)

        booted = F.when(F.col("kind") == "boot", F.col("node"))
        named = F.when(F.col("kind") == "run", F.split(extra("members"), ","))
        return (
            self.few.groupBy("run")
            .agg(
                highest("run", "faults", 1),
                highest("run", "groups", 1),
                kept("max_messages", 1000),
                kept("max_age_ms", 180_000),
                highest("boot", "copies", 1),
                F.max(F.when(F.col("kind") == "run", extra("require"))).alias("require"),
                highest("boot", "sample", 1),
                F.max(F.when(F.col("kind") == "run", number("faults"))).alias("f"),
                F.sort_array(F.collect_set(booted)).alias("nodes"),
                F.flatten(F.collect_list(named)).alias("named"),
            )
            .withColumn("members", F.array_remove(F.array_union("nodes", "named"), ""))
            .withColumn("copies", F.greatest("copies", F.coalesce(F.col("f") + 1, F.lit(1))))
            .drop("f", "named")
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    def of(self, *kinds: str) -> DataFrame:
        """Rows of these kinds."""
        rows = self.rows if set(kinds) & set(FREQUENT) else self.rare
        return rows.where(F.col("kind").isin(*kinds))

    @cached_property
    def positions(self) -> DataFrame:
        """What was seen of each message of each publisher at each place: who, when, how often.

        Subscribers and final readers do not know the publisher: theirs are rows of their own.
        Only numbers are gathered, so that nothing needs to be sorted.
        """
        kind = F.col("kind")
        rows = self.of("append", "commit", "deliver", "pub_ack", "final_read")
        return (
            rows.where("epoch > 0 and topic is not null")
            .groupBy(*POSITION, "mid", "pid", "pseq", "era", "last_floor")
            .agg(
                F.sum((kind == "commit").cast("int")).alias("commits"),
                F.sum((kind != "append").cast("int")).alias("shown"),
                F.sum((kind == "deliver").cast("int")).alias("delivered"),
                F.max("idx").alias("idx"),
                F.bit_or(F.when(kind.isin("append", "commit"), bit("place"))).alias("stored"),
                F.bit_or(F.when(kind == "final_read", bit("place"))).alias("read"),
                F.min(F.when(kind == "pub_ack", F.col("t_wall"))).alias("acked_at"),
            )
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def commits(self) -> DataFrame:
        """Messages that were applied anywhere, each once."""
        return self.positions.where("commits > 0")

    @cached_property
    def acked(self) -> DataFrame:
        """Acknowledged publications at a known position, each with its first acknowledgement."""
        return self.positions.where("acked_at is not null")

    @cached_property
    def publications(self) -> DataFrame:
        """Publications with a number: first and last given to a connection, first acknowledged."""
        rows = self.of("pub_send", "pub_ack").where(F.col("pid").isNotNull())
        sent = F.col("kind") == "pub_send"
        return (
            rows.groupBy(*PUBLICATION)
            .agg(
                F.min(F.when(sent, F.col("t_wall"))).alias("sent_at"),
                F.max_by("conn", F.when(sent, F.col("n"))).alias("conn"),
                F.min(F.when(F.col("kind") == "pub_ack", F.col("t_wall"))).alias("acked_at"),
            )
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def streams(self) -> DataFrame:
        """What each subscription was told, with what was to come next before each row.

        `expected` is a sequence; -1 where anything may come; null: nothing is known.
        `part` counts the pieces between gaps, resets and openings; `above` is the highest epoch
        before; `open_since`: when this connection said how it goes on; `position`: what was held
        when it said so.
        """
        outcome = extra("outcome")
        status = F.col("kind") == "sub_status"
        anew = (F.col("kind") == "sub_open") | (status & outcome.isin("gap", "reset", "fresh"))
        says = (
            F.when(F.col("kind") == "deliver", F.col("seq") + 1)
            .when(F.col("kind") == "sub_open", F.coalesce(F.col("seq") + 1, F.lit(-1)))
            .when(status & (outcome == "gap"), number("first"))
            .when(status & outcome.isin("reset", "fresh"), F.coalesce(F.col("seq") + 1, F.lit(-1)))
        )
        held = F.when(
            F.col("kind").isin("deliver", "sub_open") & F.col("seq").isNotNull(),
            F.struct("epoch", "seq", "era"),
        )
        delivered = F.when(F.col("kind") == "deliver", F.col("epoch"))
        told = F.when(status, F.struct("conn", "t_wall"))
        last = before("stream")
        begun = F.last(told, ignorenulls=True).over(last)
        return (
            self.of("sub_open", "sub_status", "deliver")
            .withColumn("stream", F.xxhash64(*STREAM))
            .select(
                *(*STREAM, "stream", "kind", "n", "epoch", "seq", "era", "last_floor", "first"),
                *("conn", "t_wall", "extra"),
                F.last(says, ignorenulls=True).over(last).alias("expected"),
                F.last(held, ignorenulls=True).over(last).alias("held"),
                begun.alias("begun"),
                F.max(delivered).over(last).alias("above"),
                F.sum(anew.cast("int")).over(until("stream")).alias("part"),
            )
            .withColumn("position", F.when(status, F.col("held")))
            .withColumn("open_since", F.when(F.expr("begun.conn = conn"), F.col("begun.t_wall")))
            .drop("held", "begun", "stream")
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def parts(self) -> DataFrame:
        """The pieces of subscriptions between gaps, resets and openings: what came in them.

        `low` and `count` are of messages, and `high` is where it stands: also where a contact said
        that it begins or goes on, when no message came. `jumped`: not all of it came in its order.
        """
        message = F.col("kind") == "deliver"
        jumped = message & (F.col("expected") >= 0) & (F.col("seq") != F.col("expected"))
        begins = (F.col("kind") == "sub_status") & (extra("outcome") != "denied")
        return (
            self.streams.where(message | begins)
            .groupBy(*STREAM, "part", "era")
            .agg(
                F.min(F.when(message, F.col("seq"))).alias("low"),
                F.max("seq").alias("high"),
                F.sum(message.cast("int")).alias("count"),
                F.coalesce(F.max(jumped), F.lit(False)).alias("jumped"),
            )
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def acts(self) -> DataFrame:
        """What members did against a rule; see spark/acts.py."""
        return broken_acts(self)

    @cached_property
    def lags(self) -> DataFrame:
        """Deliveries of acknowledged messages, with the moment of the acknowledgement.

        Only those on connections on which the subscription was answered before that, and of clients
        that do not read slowly on purpose.
        """
        acked = self.acked.select(*TOPIC, "era", "seq", "acked_at").hint("shuffle_hash")
        return (
            self.streams.where("kind = 'deliver'")
            .join(F.broadcast(self.slow), ["run", "sub"], "left_anti")
            .join(acked, [*TOPIC, "era", "seq"])
            .where("open_since < acked_at")
        )

    @cached_property
    def faults(self) -> DataFrame:
        """Faults as intervals that end when the cluster may be expected to be whole again.

        `hits` are the members that it may take away: of a broken pair, one is enough; they count as
        away until `away_until`, null if they stay. `at` are the contacts whose clients may have to
        wait for them. Until `keeper_until` nobody can be elected; null: elections go on. `missed`:
        the moment that it waited for did not come.
        """
        off = F.max(F.when(F.col("kind") == "fault_off", F.col("t_wall")))
        hit = F.coalesce(F.max(extra("hit")), F.max(extra("target")), F.lit(""))
        names = F.array_intersect(F.split("hit", "[,|>]"), F.col("nodes"))
        pair = F.col("hit").rlike("[|>]")
        fault = F.col("fault")
        at_all = fault.isin(*HITS_CLIENTS)

        def later(at: str, ms: int) -> Column:
            return F.col(at) + F.lit(ms * 1000)

        forgets = fault.rlike(FORGETS)
        back = F.when(forgets, later("off_at", self.bounds.return_ms)).otherwise(F.col("off_at"))
        leader = fault == "zookeeper-leader"
        elect = self.bounds.elect_ms
        elected = F.when(leader, later("on_at", elect)).otherwise(later("off_at", elect))
        return (
            self.few.where(F.col("kind").isin("fault_on", "fault_off"))
            .withColumn("id", extra("id"))
            .groupBy("run", "id")
            .agg(
                F.coalesce(F.max(extra("fault")), F.lit("?")).alias("fault"),
                F.min(F.when(F.col("kind") == "fault_on", F.col("t_wall"))).alias("on_at"),
                F.coalesce(off, F.lit(NEVER)).alias("off_at"),
                hit.alias("hit"),
                F.coalesce(F.max(flag("missed")), F.lit(False)).alias("missed"),
            )
            .where(F.col("on_at").isNotNull())
            .join(F.broadcast(self.runs.select("run", "nodes")), "run")
            .withColumn("named", names)
            .withColumn("over_at", later("off_at", self.bounds.heal_ms))
            .withColumn("hits", F.when(pair, F.slice("named", 1, 1)).otherwise(F.col("named")))
            .withColumn("hits", F.when(fault == "recover", F.col("nodes")).otherwise(F.col("hits")))
            .withColumn("at", F.when(at_all, F.col("nodes")).otherwise(F.col("named")))
            .withColumn("away_until", F.when(~fault.isin(*STAYS) & (F.size("hits") > 0), back))
            .withColumn("keeper_until", F.when(fault.startswith("zookeeper"), elected))
            .drop("nodes", "named", "hit")
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def happened(self) -> DataFrame:
        """Faults that were planned and came; a restart of all members is one."""
        planned = self.few.where("kind = 'plan'").select("run", extra("id").alias("id"))
        return self.faults.where("not missed").join(planned, ["run", "id"], "left_semi")

    @cached_property
    def links(self) -> DataFrame:
        """When each connection was welcomed, and the faults at its contact while it was there.

        `troubles`: from when a fault hits the contact until that may be back.
        """
        up = F.when(F.col("kind") == "link_up", F.col("t_wall"))
        down = F.when(F.col("kind") == "link_down", F.col("t_wall"))
        links = (
            self.few.where("kind in ('link_up', 'link_down')")
            .groupBy("run", "conn")
            .agg(
                F.max(up).alias("up_at"),
                F.coalesce(F.max(down), F.lit(NEVER)).alias("down_at"),
                F.max(extra("member")).alias("contact"),
            )
        )
        troubles = self.faults.select(
            F.col("run").alias("of_run"),
            F.explode("at").alias("of"),
            "on_at",
            (F.col("off_at") + F.lit(self.bounds.return_ms * 1000)).alias("back_at"),
        )
        met = (F.col("run") == F.col("of_run")) & (F.col("contact") == F.col("of"))
        while_up = (F.col("back_at") >= F.col("up_at")) & (F.col("on_at") <= F.col("down_at"))
        trouble = F.when(F.col("on_at").isNotNull(), F.struct("on_at", "back_at"))
        return (
            links.join(F.broadcast(troubles), met & while_up, "left")
            .groupBy("run", "conn", "up_at")
            .agg(F.collect_list(trouble).alias("troubles"))
            .persist(StorageLevel.MEMORY_AND_DISK)
        )

    @cached_property
    def busy(self) -> DataFrame:
        """The times in which there were faults, or healing: (run, on_at, over_at), all apart."""
        order = Window.partitionBy("run").orderBy("on_at")
        before = F.max("over_at").over(order.rowsBetween(Window.unboundedPreceding, -1))
        begins = before.isNull() | (F.col("on_at") > before)
        return (
            self.faults.select("run", "on_at", "over_at", begins.cast("int").alias("begins"))
            .withColumn(
                "piece", F.sum("begins").over(order.rowsBetween(Window.unboundedPreceding, 0))
            )
            .groupBy("run", "piece")
            .agg(F.min("on_at").alias("on_at"), F.max("over_at").alias("over_at"))
            .drop("piece")
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
            "place",
            F.col("era").alias("head_era"),
            F.col("epoch").alias("head_epoch"),
            F.col("seq").alias("head_seq"),
            number("first").alias("head_first"),
            F.col("t_wall").alias("read_at"),
        )

    def release(self) -> None:
        """Give the memory of the shared frames back."""
        for frame in list(self.__dict__.values()):
            if isinstance(frame, DataFrame) and frame is not self.trace and frame.is_cached:
                frame.unpersist()
