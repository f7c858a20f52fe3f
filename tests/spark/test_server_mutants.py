"""The chaos sees a broken server: real clusters without one rule, and one with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from chaos.network import NamespaceNetwork, open_network
from tests.chaos.judging import judge, judge_by_spark
from tests.chaos.mutant_server import REQUIRED
from tests.chaos.server_mutants import BOUNDS, NONE, cases_of, convicts, run_all

SEED = 1


def test_broken_servers_are_caught_and_the_server_is_not(
    tmp_path: Path, session: SparkSession
) -> None:
    """A mutant is invalid by the check that states its rule, the server is valid; both agree."""
    network, lacking = open_network()
    network.close()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    cases = cases_of(list(REQUIRED))
    codes = trio.run(run_all, cases, tmp_path, SEED)
    traces = [tmp_path / case.name / "traces" for case in cases]
    judged = judge(traces, BOUNDS)
    for case, said in zip(cases, judged, strict=True):
        log = (tmp_path / f"{case.name}.log").read_text()[-2000:]
        assert case.mutant != NONE or codes[case.name] == 0, log
        assert convicts(said, case), f"{case.name}: {said}\n{log}"
    assert judge_by_spark(session, traces, BOUNDS) == judged
