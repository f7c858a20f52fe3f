"""The chaos sees a broken server: real clusters without one rule, and one with all of them."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio

from chaos.network import NamespaceNetwork, open_network
from tests.chaos.mutant_server import REQUIRED, SERVER_MUTANTS
from tests.chaos.server_mutants import AT_ONCE, NONE, Case, cases_of, judge, run_all
from tests.simulation.mutation import applied

CASES = cases_of(list(REQUIRED))
ROUNDS = [CASES[n : n + AT_ONCE] for n in range(0, len(CASES), AT_ONCE)]
SEED = 1


@pytest.mark.parametrize("cases", ROUNDS, ids=lambda cases: "+".join(case.name for case in cases))
def test_a_broken_server_is_caught_and_the_server_is_not(cases: list[Case], tmp_path: Path) -> None:
    """A mutant is invalid by the check that states its rule; the server itself is valid."""
    network, lacking = open_network()
    network.close()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    codes = trio.run(run_all, cases, tmp_path, SEED)
    for case in cases:
        log = (tmp_path / f"{case.name}.log").read_text()[-2000:]
        assert case.mutant != NONE or codes[case.name] == 0, log
        judged = judge(tmp_path / case.name / "traces")
        assert judged.convicts(case), f"{case.name}: {judged}\n{log}"


def test_every_mutant_still_finds_the_rule_that_it_removes() -> None:
    """A rule that has moved is noticed at once, not by a mutant that survives."""
    for mutant in SERVER_MUTANTS.values():
        with applied(mutant.replaced):
            pass
