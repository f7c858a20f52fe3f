"""AGREE: one topic and sequence, and one index of a group, has one epoch and one message."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import TOPIC, Prepared


def check(trace: Prepared) -> DataFrame:
    """Within a floor, a topic's sequence has one epoch and message wherever it is seen.

    Seen means delivered, acknowledged, applied or read at the end. The same holds for an applied
    index of a group.
    """
    return _by_sequence(trace).unionByName(_by_index(trace))


def _by_sequence(trace: Prepared) -> DataFrame:
    found = (
        trace.positions.where("shown > 0")
        .groupBy(*TOPIC, "era", "seq")
        .agg(
            *(F.min("epoch").alias("low"), F.max("epoch").alias("high")),
            *(F.min("mid").alias("one"), F.max("mid").alias("other")),
        )
        .where("low != high or one != other")
    )
    told = sentence(
        "sequence {} has epochs {} to {}, messages {} and {}", "seq", "low", "high", "one", "other"
    )
    return violations(found, "AGREE", told)


def _by_index(trace: Prepared) -> DataFrame:
    message = F.xxhash64("topic", "seq", "mid")
    found = (
        trace.of("commit")
        .groupBy("run", "group", "era", "idx")
        .agg(
            *(F.min("epoch").alias("low"), F.max("epoch").alias("high")),
            *(F.min(message).alias("one"), F.max(message).alias("other")),
        )
        .where("low != high or one != other")
    )
    told = sentence("index {} has two entries, of epochs {} to {}", "idx", "low", "high")
    return violations(found, "AGREE", told)
