"""NO_PHANTOM: nothing is invented."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import POSITION, TOPIC, Prepared


def check(trace: Prepared) -> DataFrame:
    """What was delivered or read at the end was given to a connection, and was applied there."""
    seen = trace.of("deliver", "final_read")
    sent = trace.of("pub_send").select(*TOPIC, "mid").distinct()
    applied = trace.commits.select(*POSITION, "mid").distinct()
    place = ("seq", "epoch", "mid", "proc", "n")
    unpublished = violations(
        seen.join(sent, [*TOPIC, "mid"], "left_anti"),
        "NO_PHANTOM",
        sentence("{} of epoch {} ({}) at {} row {} was never published", *place),
    )
    uncommitted = violations(
        seen.join(applied, [*POSITION, "mid"], "left_anti"),
        "NO_PHANTOM",
        sentence("{} of epoch {} ({}) at {} row {} was never committed", *place),
    )
    return unpublished.unionByName(uncommitted)
