"""Hunting mutants: each one must be caught by its directed trace or by a few random runs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor

import msgspec

from tests.simulation.campaign import Run, perform
from tests.simulation.checker import Violation
from tests.simulation.directed import TRACES
from tests.simulation.mutants import MUTANTS
from tests.simulation.mutation import Mutant, applied

BUDGET = 100  # random runs for one mutant


class Catch(msgspec.Struct, frozen=True):
    """How a mutant was caught, or that it was not."""

    mutant: str
    violation: str = ""
    by: str = ""
    runs: int = 0
    seconds: float = 0.0
    detail: str = ""


def hunt(mutant: Mutant, budget: int = BUDGET) -> Catch:
    """Break one rule and see what notices it."""
    began = time.monotonic()
    with applied(mutant):
        for runs, (by, violation, detail) in enumerate(_attempts(mutant, budget), 1):
            if violation:
                seconds = time.monotonic() - began
                return Catch(mutant.name, violation, by, runs, seconds, detail)
    return Catch(mutant.name, runs=budget, seconds=time.monotonic() - began)


def _attempts(mutant: Mutant, budget: int) -> Iterator[tuple[str, str, str]]:
    if mutant.trace:
        yield _follow(mutant.trace)
        return
    for seed in range(budget):
        run = Run(seed, mutant.members, mutant.faults, dict(mutant.weather))
        outcome = perform(run)
        yield f"seed {seed} {run.members}/{run.faults}", outcome.violation, outcome.detail


def _follow(name: str) -> tuple[str, str, str]:
    by = f"trace {name}"
    try:
        TRACES[name]()
    except Violation as violation:
        return by, violation.name, str(violation)
    return by, "", ""


def _hunt_number(number: int) -> Catch:
    return hunt(MUTANTS[number])


def hunt_all() -> int:
    """Hunt all mutants on all cores and print how each one was caught; 1 if any survives."""
    began = time.monotonic()
    survivors = 0
    print(f"{'mutant':<52} {'caught by':<20} {'with':<48} runs    time")
    with ProcessPoolExecutor(os.cpu_count() or 1) as pool:
        for found in pool.map(_hunt_number, range(len(MUTANTS))):
            survivors += not found.violation
            print(
                f"{found.mutant:<52} {found.violation or 'SURVIVES':<20} {found.by:<48}"
                f" {found.runs:>4} {found.seconds:6.1f}s",
                flush=True,
            )
    took = time.monotonic() - began
    print(f"\n{len(MUTANTS)} mutants, {survivors} survive, {took:.0f} s")
    return 1 if survivors else 0
