"""NO_BELOW_PROMISE: a promise binds whoever gave it."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """A life of a member opens, makes and acknowledges nothing below an earlier promise."""
    told = sentence(
        "{} of epoch {} at {} row {}, promised {}", "kind", "epoch", "proc", "n", "above_promise"
    )
    return violations(trace.acts.where("below"), "NO_BELOW_PROMISE", told)
