"""NO_GAP: a subscription misses nothing that it was not told of."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 (Spark's own custom)

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared, extra

REFUSED = "broken delivery"  # why a client left a contact that sent what could not follow


def check(trace: Prepared) -> DataFrame:
    """Consecutive deliveries differ by one, unless GAP, RESET or `first` explains it.

    Clients refuse what does not follow, and leave: then nothing of it was delivered.
    """
    jump = F.col("first") & (F.col("seq") > F.col("expected"))
    wrong = trace.streams.where("kind = 'deliver' and expected >= 0 and seq != expected")
    found = wrong.where(~jump)
    told = sentence("{} expected {}, got {} at {} row {}", "sub", "expected", "seq", "proc", "n")
    return violations(found, "NO_GAP", told).unionByName(_refused(trace))


def _refused(trace: Prepared) -> DataFrame:
    found = trace.few.where("kind = 'link_down'").where(extra("why").startswith(REFUSED))
    told = sentence("{}: {} ({} row {})", "conn", extra("why"), "proc", "n")
    return violations(found, "NO_GAP", told)
