"""RECOVER_SILENT: who has forgotten does not count."""

from __future__ import annotations

from pyspark.sql import DataFrame

from spark.checks.witness import sentence, violations
from spark.prepared import Prepared


def check(trace: Prepared) -> DataFrame:
    """While it is not normal in a group, a life gives no counted promise and acknowledges nothing.

    It stores and applies nothing then either, except what it installs. A floor that makes it forget
    ends what it was.
    """
    told = sentence("{} of epoch {} at {} row {}, not yet normal", "kind", "epoch", "proc", "n")
    return violations(trace.acts.where("unready"), "RECOVER_SILENT", told)
