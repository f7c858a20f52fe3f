"""NO_PHANTOM: nothing is invented."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import POSITION, TOPIC, Prepared


def check(trace: Prepared) -> DataFrame:
    """What was delivered or read at the end was given to a connection, and was applied there."""
    seen = trace.positions.where("delivered > 0 or read is not null").select(*POSITION, "mid")
    sent = trace.of("pub_send").select(*TOPIC, "mid").hint("shuffle_hash")
    applied = trace.commits.select(*POSITION, "mid").hint("shuffle_hash")
    place = ("seq", "epoch", "mid")
    unpublished = violations(
        seen.join(sent, [*TOPIC, "mid"], "left_anti"),
        "NO_PHANTOM",
        sentence("{} of epoch {} ({}) was seen and never published", *place),
    )
    uncommitted = violations(
        seen.join(applied, [*POSITION, "mid"], "left_anti"),
        "NO_PHANTOM",
        sentence("{} of epoch {} ({}) was seen and never committed", *place),
    )
    return unpublished.unionByName(uncommitted)
