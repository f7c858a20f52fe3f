"""FALSE_ACK: an acknowledgement names what is committed."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """The entry applied at an acknowledged position is the message that was acknowledged."""
    told = sentence(
        "publication {}/{} ({}) was acked at {} of epoch {}, where it was not committed",
        *("pid", "pseq", "mid", "seq", "epoch"),
    )
    return violations(trace.acked.where("commits = 0"), "FALSE_ACK", told)
