"""The chaos sees a broken server: real clusters without one rule, and one with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from chaos.network import NamespaceNetwork, open_network
from tests.chaos.mutant_server import REQUIRED, SERVER_MUTANTS
from tests.chaos.server_mutants import NONE, Case, cases_of, judge, run_all

CASES = cases_of(list(REQUIRED))
SEED = 1


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases, carried out; their directories are here."""
    network, lacking = open_network()
    network.close()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    directory = tmp_path_factory.mktemp("mutants")
    codes = trio.run(run_all, CASES, directory, SEED)
    ended_badly = [case.name for case in CASES if case.mutant == NONE and codes[case.name] != 0]
    assert ended_badly == [], (directory / f"{ended_badly[0]}.log").read_text()
    return directory


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_broken_server_is_caught_and_the_server_is_not(case: Case, runs: Path) -> None:
    """A mutant is invalid by the check that states its rule; the server itself is valid."""
    judged = judge(runs / case.name / "traces")
    assert judged.convicts(case), f"{judged}\n{(runs / f'{case.name}.log').read_text()[-2000:]}"


def test_every_mutant_still_finds_the_rule_that_it_removes() -> None:
    """A rule that has moved is noticed at once, not by a mutant that survives."""
    from tests.simulation.mutation import applied

    for mutant in SERVER_MUTANTS.values():
        with applied(mutant.replaced):
            pass
