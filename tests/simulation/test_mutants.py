"""Every rule is needed: without it something is noticed, by a trace or by random weather."""

from __future__ import annotations

import pytest

from tests.simulation.directed import TRACES, Trace
from tests.simulation.hunt import hunt
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Mutant


@pytest.mark.parametrize("trace", TRACES.values(), ids=TRACES)
def test_a_directed_trace_ends_quietly(trace: Trace) -> None:
    """With all rules in place nothing is broken in the windows in which they matter."""
    trace()


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_a_mutant_is_caught(mutant: Mutant) -> None:
    """A protocol without this rule breaks a promise, and the checker says which."""
    found = hunt(mutant)
    assert found.violation, f"nobody noticed that this was left out: {mutant.rule}"


def test_every_rule_has_one_mutant() -> None:
    """At least 25 rules are removed, each under a name of its own, and every trace is used."""
    names = [mutant.name for mutant in MUTANTS]
    assert len(names) == len(set(names)) >= 25
    assert {mutant.trace for mutant in MUTANTS} - {""} == set(TRACES)
