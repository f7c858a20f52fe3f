"""Every check sees its anomalies, good traces are clean, and both checkers say the same."""

from __future__ import annotations

from copy import deepcopy

import pytest
from pyspark.sql import SparkSession

from chaos import checker as quick
from spark.checks import CHECKS, all_violations
from spark.prepared import Prepared
from spark.schemas import TRACE
from tests.spark.good_trace import Row, good_trace, sampled
from tests.spark.mutants import Mutant
from tests.spark.mutants_of_owed import EVERY

GOOD = {"good": (5, 7), "good-short": (2, 6), "good-long": (9, 12)}
SAMPLED = "good-sampled"
Found = dict[str, set[str]]


def traces() -> dict[str, list[Row]]:
    """Good traces and all mutants, each under its own run."""
    found = {run: good_trace(run, *sizes) for run, sizes in GOOD.items()}
    found[SAMPLED] = sampled(good_trace(SAMPLED))
    for mutant in EVERY:
        rows = mutant(deepcopy(found["good"]))
        found[mutant.__name__] = [{**row, "run": mutant.__name__} for row in rows]
    return found


@pytest.fixture(scope="module")
def batch() -> dict[str, list[Row]]:
    """All traces of this suite."""
    return traces()


@pytest.fixture(scope="module")
def by_spark(session: SparkSession, batch: dict[str, list[Row]]) -> Found:
    """Which checks fire on Spark, per run: all runs in one frame, by their `run` column."""
    columns = TRACE.fieldNames()
    rows = [tuple(row.get(c) for c in columns) for trace in batch.values() for row in trace]
    prepared = Prepared(session.createDataFrame(rows, TRACE).repartition(2))
    found: Found = {run: set() for run in batch}
    for row in all_violations(prepared).collect():
        assert row["witness"], row
        found[row["run"]].add(row["check"])
    prepared.release()
    return found


@pytest.fixture(scope="module")
def by_python(batch: dict[str, list[Row]]) -> Found:
    """Which checks of the quick checker fire, per run."""
    found: Found = {run: set() for run in batch}
    for trace in batch.values():
        for violation in quick.check(trace):
            found[violation.run].add(violation.check)
    return found


def test_good_traces_are_clean(by_spark: Found, by_python: Found) -> None:
    """An honest cluster violates nothing, whatever happens to it."""
    clean: Found = {run: set() for run in (*GOOD, SAMPLED)}
    assert {run: by_python[run] for run in clean} == clean
    assert {run: by_spark[run] for run in clean} == clean


@pytest.mark.parametrize("mutant", EVERY, ids=lambda mutant: mutant.__name__)
def test_each_mutant_sets_off_its_checks_only(
    mutant: Mutant, by_spark: Found, by_python: Found
) -> None:
    """A mutation is seen by every check that states what it breaks, and by no other."""
    wanted = set(EVERY[mutant].split())
    assert by_python[mutant.__name__] == wanted
    assert by_spark[mutant.__name__] == wanted


def test_every_check_has_mutants() -> None:
    """No check goes untested, and both checkers have the same ones."""
    seen = {check for checks in EVERY.values() for check in checks.split()}
    assert seen == set(CHECKS) == set(quick.CHECKS)
