"""NO_GAP: a subscription misses nothing that it was not told of."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Consecutive deliveries differ by one, unless GAP, RESET or `first` explains it."""
    jump = F.col("first") & (F.col("seq") > F.col("expected"))
    wrong = trace.streams.where("kind = 'deliver' and expected >= 0 and seq != expected")
    found = wrong.where(~jump)
    told = sentence("{} expected {}, got {} at {} row {}", "sub", "expected", "seq", "proc", "n")
    return violations(found, "NO_GAP", told)
