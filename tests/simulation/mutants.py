"""The mutants: each rule of replication removed. All of them must be caught."""

from __future__ import annotations

from tests.simulation.mutants_of_replication import CATCH_UP, COMMITS, COPIES, PROMISES, TRANSFERS
from tests.simulation.mutants_of_service import FLOORS, PUBLISHERS, SUBSCRIBERS, VOTES

MUTANTS = (
    *PROMISES, *COPIES, *COMMITS, *TRANSFERS, *CATCH_UP, *FLOORS, *PUBLISHERS, *VOTES,
    *SUBSCRIBERS,
)  # fmt: skip
