"""A real cluster of broken servers: Spark convicts it, and so does the quick checker."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
from pyspark.sql import SparkSession

from chaos.network import NamespaceNetwork, open_network
from tests.chaos.server_mutants import cases_of, judge, judge_by_spark, run_all

SEED = 2


def test_spark_and_the_quick_checker_convict_a_broken_server(
    tmp_path: Path, session: SparkSession
) -> None:
    """Members that acknowledge with one copy are caught losing messages, by both alike."""
    network, lacking = open_network()
    network.close()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    case = cases_of(["one-copy"])[0]
    trio.run(run_all, [case], tmp_path, SEED)
    traces = tmp_path / case.name / "traces"
    quick, spark = judge(traces), judge_by_spark(session, traces)
    assert quick.convicts(case), quick
    assert spark == quick
