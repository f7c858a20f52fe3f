"""EPOCH_MONO: epochs never fall."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Epochs never fall: in the deliveries of a subscription, in each kind of act of a member."""
    delivered = trace.streams.where("kind = 'deliver' and epoch < above")
    told = sentence("{} of epoch {} at {} row {}, after {}", "kind", "epoch", "proc", "n", "above")
    return violations(delivered, "EPOCH_MONO", told).unionByName(
        violations(trace.acts.where("fell"), "EPOCH_MONO", told)
    )
