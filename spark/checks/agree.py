"""AGREE: one topic and sequence, and one index of a group, has one epoch and one message."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Within a floor, a topic's sequence has one epoch and message wherever it is seen.

    Seen means delivered, acknowledged, applied or read at the end. The same holds for an applied
    index of a group.
    """
    seen = trace.of("deliver", "pub_ack", "final_read", "commit").where("epoch > 0")
    sighting = F.struct("epoch", F.coalesce("mid", F.lit("")).alias("mid"), "kind", "proc", "n")
    told = sentence(
        "{} has {}/{} at {} row {} and {}/{} at {} row {}",
        *("place", "low.epoch", "low.mid", "low.proc", "low.n"),
        *("high.epoch", "high.mid", "high.proc", "high.n"),
    )

    def torn(rows: DataFrame, keys: list[str], place: str) -> DataFrame:
        both = rows.groupBy("run", "group", "era", *keys).agg(
            F.min(sighting).alias("low"), F.max(sighting).alias("high")
        )
        differ = both.where("low.epoch != high.epoch or low.mid != high.mid")
        return violations(differ.withColumn("place", sentence(place, keys[-1])), "AGREE", told)

    by_sequence = torn(seen.where(F.col("topic").isNotNull()), ["topic", "seq"], "sequence {}")
    return by_sequence.unionByName(torn(trace.of("commit"), ["idx"], "index {}"))
