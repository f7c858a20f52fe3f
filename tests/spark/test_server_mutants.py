"""The chaos sees a broken server: real clusters without one rule, and one with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from chaos.network import NamespaceNetwork, open_network
from tests.chaos.judging import judge, judge_by_spark
from tests.chaos.mutant_server import REQUIRED
from tests.chaos.server_mutants import (
    AT_ONCE,
    BOUNDS,
    NONE,
    Case,
    cases_of,
    convicts,
    run_all,
)

CASES = cases_of(list(REQUIRED))
ROUNDS = [CASES[n : n + AT_ONCE] for n in range(0, len(CASES), AT_ONCE)]
JUDGED_BY_SPARK = ("one-copy-sleepwalk", "none-amnesia")
SEED = 1


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the runs of all rounds are kept."""
    network, lacking = open_network()
    network.close()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    return tmp_path_factory.mktemp("servers")


def carry_out(cases: list[Case], directory: Path) -> list[Path]:
    """The traces of these cases, which run now unless they did before."""
    missing = [case for case in cases if not (directory / case.name).exists()]
    for name, code in trio.run(run_all, missing, directory, SEED).items():
        log = (directory / f"{name}.log").read_text()[-2000:]
        assert not name.startswith(NONE) or code == 0, log
    return [directory / case.name / "traces" for case in cases]


@pytest.mark.parametrize("cases", ROUNDS, ids=lambda cases: "+".join(case.name for case in cases))
def test_a_broken_server_is_caught_and_the_server_is_not(
    cases: list[Case], directory: Path
) -> None:
    """A mutant is invalid by the check that states its rule; the server itself is valid."""
    judged = judge(carry_out(cases, directory), BOUNDS)
    for case, said in zip(cases, judged, strict=True):
        assert convicts(said, case), f"{case.name}: {said}"


def test_spark_names_the_same_checks(directory: Path, session: SparkSession) -> None:
    """Of a server that loses messages and of one that does not, in one frame."""
    traces = carry_out([case for case in CASES if case.name in JUDGED_BY_SPARK], directory)
    assert len(traces) == len(JUDGED_BY_SPARK)
    assert judge_by_spark(session, traces, BOUNDS) == judge(traces, BOUNDS)
