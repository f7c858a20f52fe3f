"""FALSE_ACK: an acknowledgement names what is committed."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import PUBLICATION, Prepared


def check(trace: Prepared) -> DataFrame:
    """The entry applied at an acknowledged position is the message that was acknowledged.

    What was acknowledged at a forgotten position was committed at some position.
    """
    told = sentence(
        "publication {}/{} ({}) was acked at {} of epoch {}, where it was not committed",
        *("pid", "pseq", "mid", "seq", "epoch"),
    )
    elsewhere = violations(trace.acked.where("commits = 0"), "FALSE_ACK", told)
    identity = [*PUBLICATION, "mid"]
    unplaced = trace.of("pub_ack").where("epoch = 0 and pid is not null")
    nowhere = unplaced.join(trace.commits.hint("shuffle_hash"), identity, "left_anti")
    never = sentence("publication {}/{} ({}) was acked and never committed", "pid", "pseq", "mid")
    return elsewhere.unionByName(violations(nowhere, "FALSE_ACK", never))
