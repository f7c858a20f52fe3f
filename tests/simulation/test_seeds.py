"""Whole clusters from fixed seeds, in all configurations: nothing breaks, all come to rest."""

from __future__ import annotations

import os
import subprocess
import sys
from itertools import islice
from pathlib import Path

import pytest

from tests.simulation.campaign import Run, mixed, perform

RUNS = list(islice(mixed(10_000), 160))


@pytest.mark.parametrize("task", RUNS, ids=lambda task: f"{task.seed}-{task.members}-{task.faults}")
def test_nothing_breaks(task: Run) -> None:
    """A run in random weather ends without a violation; a failure names its replay command."""
    outcome = perform(task)
    assert not outcome.violation, f"{outcome.detail}\nreplay: {task.replay}"
    assert outcome.counts["acked"] > 0
    assert outcome.counts["takeovers"] > 0


REPEATED = """
from tests.simulation.campaign import Run, perform
for task in (Run(10_001, 5, 2), Run(10_002, 3, 1)):
    print(sorted(perform(task).counts.items()))
"""


def test_a_seed_repeats_itself() -> None:
    """A run depends on its seed alone: another process, which hashes differently, repeats it."""
    outputs = [
        subprocess.run(
            [sys.executable, "-c", REPEATED],
            env={**os.environ, "PYTHONHASHSEED": hashing},
            cwd=Path(__file__).parents[2],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for hashing in ("1", "2")
    ]
    assert "events" in outputs[0]
    assert outputs[0] == outputs[1]
