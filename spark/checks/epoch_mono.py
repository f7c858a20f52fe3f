"""EPOCH_MONO: epochs never fall."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import LIFE, STREAM, Prepared, before


def check(trace: Prepared) -> DataFrame:
    """Epochs never fall: in the deliveries of a subscription, in each kind of act of a member."""
    highest = F.max("epoch")
    delivered = trace.of("deliver").withColumn("above", highest.over(before(STREAM)))
    acts = trace.of("promise", "open", "ack", "commit", "normal")
    acted = acts.withColumn("above", highest.over(before([*LIFE, "kind"])))
    told = sentence("{} of epoch {} at {} row {}, after {}", "kind", "epoch", "proc", "n", "above")
    fell = "epoch < above"
    return violations(delivered.where(fell), "EPOCH_MONO", told).unionByName(
        violations(acted.where(fell), "EPOCH_MONO", told)
    )
