"""FALSE_ACK: an acknowledgement names what is committed."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import POSITION, Prepared


def check(trace: Prepared) -> DataFrame:
    """The entry applied at an acknowledged position is the message that was acknowledged."""
    identity = [*POSITION, "pid", "pseq", "mid"]
    found = trace.acked.join(trace.commits.select(*identity).distinct(), identity, "left_anti")
    told = sentence(
        "publication {}/{} ({}) was acked at {} of epoch {}, where it was not committed",
        *("pid", "pseq", "mid", "seq", "epoch"),
    )
    return violations(found, "FALSE_ACK", told)
