"""NO_BELOW_PROMISE: a promise binds whoever gave it."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import LIFE, Prepared, before, extra


def check(trace: Prepared) -> DataFrame:
    """A life of a member opens, makes and acknowledges nothing below an earlier promise."""
    promised = F.when(F.col("kind") == "promise", F.col("epoch"))
    bound = F.col("kind").isin("open", "ack") | (extra("role") == "coordinator")
    found = (
        trace.of("promise", "open", "append", "ack")
        .withColumn("promised", F.max(promised).over(before(LIFE)))
        .where(bound & (F.col("epoch") < F.col("promised")))
    )
    told = sentence(
        "{} of epoch {} at {} row {}, promised {}", "kind", "epoch", "proc", "n", "promised"
    )
    return violations(found, "NO_BELOW_PROMISE", told)
