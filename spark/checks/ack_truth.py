"""ACK_TRUTH: answers to publishers stay true."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import PUBLICATION, TOPIC, Prepared, extra


def check(trace: Prepared) -> DataFrame:
    """A message that is certainly not published never appears; an acked one never disappears.

    A refused or timed-out message whose outcome is unknown may appear.
    """
    identity = [*PUBLICATION, "mid"]
    certain = (extra("outcome") == "not_published") & F.col("pid").isNotNull()
    refused = trace.of("pub_nack").where(certain).select(*identity)
    appeared = trace.commits.join(refused.distinct().hint("shuffle_hash"), identity)
    bounds = trace.heads.groupBy(*TOPIC, F.col("head_era").alias("era")).agg(
        F.min("head_first").alias("first")
    )
    read = trace.positions.where("read is not null").select(*TOPIC, "seq", "mid")
    gone = (
        trace.acked.join(bounds.hint("shuffle_hash"), [*TOPIC, "era"])
        .where("seq >= first")
        .join(read.hint("shuffle_hash"), [*TOPIC, "seq", "mid"], "left_anti")
    )
    was = sentence("{}/{} is not published, and is at sequence {}", "pid", "pseq", "seq")
    is_gone = sentence("{}/{} was acked at sequence {}, no member has it", "pid", "pseq", "seq")
    return violations(appeared, "ACK_TRUTH", was).unionByName(
        violations(gone, "ACK_TRUTH", is_gone)
    )
