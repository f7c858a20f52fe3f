"""How much clients do in a run, as data: how publishers publish, how subscribers behave.

Deliveries are what is wanted many of, and rows what they cost: a message has about twelve rows and
one more for each of its deliveries, so the large load has more subscribers and joins more messages
to bursts, rather than publishing much more.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from migratory.errors import MigratoryError

Topics = Literal["hot", "cold", "all"]


class Pace(msgspec.Struct, frozen=True):
    """How some publishers publish, in seconds and bytes."""

    name: str
    count: int
    topics: Topics
    every: float  # between two bursts
    burst: int = 1  # messages given to one topic at once
    acked: bool = True  # otherwise sent at most once, without a number
    bytes: int = 0  # payloads are at least so long
    line: tuple[float, float] = (0.0, 0.0)  # its line breaks after a time from this range


class Habit(msgspec.Struct, frozen=True):
    """How some subscribers behave, in seconds; ranges to draw from."""

    name: str
    count: int
    topics: Topics = "all"
    stay: tuple[float, float] = (1e9, 1e9)  # between two absences
    away: tuple[float, float] = (0.0, 0.0)
    per_item: float = 0.0  # spent on each item
    pause: tuple[float, float] = (0.0, 0.0)  # without reading, at the end of each stay
    buffer: int = 1000
    strays: bool = False  # comes back with a position that nobody gave it

    @property
    def slow(self) -> bool:
        """Whether it gets its messages late on purpose."""
        return self.per_item > 0 or self.pause[1] > 0


class Load(msgspec.Struct, frozen=True):
    """All clients of a run."""

    paces: tuple[Pace, ...]
    habits: tuple[Habit, ...]

    @property
    def slow_clients(self) -> list[str]:
        """The names of subscribers that are late on purpose."""
        return [name for habit in self.habits if habit.slow for name in names(habit)]


def names(some: Pace | Habit) -> list[str]:
    """What the clients of one kind are called."""
    return [f"{some.name}{n}" for n in range(some.count)]


def _flapping(count: int) -> Habit:
    return Habit("flapping", count, stay=(0.5, 4), away=(0.05, 2))


def _truant(count: int) -> Habit:
    return Habit("truant", count, "hot", stay=(2, 3), away=(10, 14))


def _pausing(count: int) -> Habit:
    return Habit("pausing", count, stay=(1, 4), pause=(1, 5), buffer=50)


def _stray(count: int) -> Habit:
    return Habit("stray", count, "hot", stay=(3, 6), away=(0.5, 1), strays=True)


def _traveller(count: int) -> Pace:
    return Pace("traveller", count, "all", 0.5, burst=5, line=(1, 4))


SMALL, LARGE = "small", "large"
LOADS = {
    SMALL: Load(
        (
            Pace("hot", 2, "hot", 0.04),
            Pace("cold", 1, "cold", 0.06),
            Pace("burst", 1, "all", 1.0, burst=10),
            Pace("large", 1, "cold", 5.0, bytes=8_000),
            Pace("careless", 1, "all", 1.0, acked=False),
            _traveller(1),
        ),
        (
            Habit("steady", 2),
            _flapping(2),
            _truant(1),
            Habit("slow", 1, "hot", per_item=0.05, buffer=20),
            _pausing(1),
            _stray(1),
            Habit("herd", 6, "hot"),
        ),
    ),
    LARGE: Load(
        (
            Pace("hot", 2, "hot", 0.1),
            Pace("cold", 1, "cold", 0.1),
            Pace("burst", 2, "all", 0.35, burst=10),
            Pace("hotburst", 1, "hot", 0.5, burst=10),
            Pace("large", 1, "cold", 5.0, bytes=8_000),
            Pace("careless", 1, "all", 0.5, acked=False),
            _traveller(2),
        ),
        (
            Habit("steady", 14),
            _flapping(5),
            _truant(2),
            Habit("slow", 2, "hot", per_item=0.04, buffer=20),
            _pausing(2),
            _stray(1),
            Habit("herd", 12, "hot"),
        ),
    ),
}


def find_load(name: str) -> Load:
    """The load of this name."""
    if name not in LOADS:
        wrong = f"there is no load {name}"
        raise MigratoryError("UNKNOWN_LOAD", wrong, f"choose one of {', '.join(LOADS)}")
    return LOADS[name]
