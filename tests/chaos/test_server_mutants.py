"""What the broken servers lack is still in the server: tests/spark runs them."""

from __future__ import annotations

from tests.chaos.mutant_server import SERVER_MUTANTS
from tests.simulation.mutation import applied


def test_every_mutant_still_finds_the_rule_that_it_removes() -> None:
    """A rule that has moved is noticed at once, not by a mutant that survives."""
    for mutant in SERVER_MUTANTS.values():
        with applied(mutant.replaced):
            pass
