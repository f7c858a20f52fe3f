"""RECOVER_SILENT: who has forgotten does not count."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """Before it is normal in a group, a life gives no counted promise and no acknowledgement.

    It stores and applies nothing before that either, except what it installs.
    """
    told = sentence("{} of epoch {} at {} row {}, not yet normal", "kind", "epoch", "proc", "n")
    return violations(trace.acts.where("unready"), "RECOVER_SILENT", told)
