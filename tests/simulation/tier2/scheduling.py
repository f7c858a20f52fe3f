"""A trio run whose tasks are scheduled from a seed, and the agenda on which the world acts.

trio knows deterministic scheduling only by private names: they are checked here, so that another
trio fails loudly instead of running at random.
"""

from __future__ import annotations

import heapq
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

import trio
from trio.testing import MockClock

from tests.simulation.checker import Violation

SPIN = 100_000  # steps of tasks at one virtual moment: nobody needs so many
_CORE: Any = trio._core._run
_SWITCH, _SOURCE = "_ALLOW_DETERMINISTIC_SCHEDULING", "_r"


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Let trio shuffle its tasks from a seed, and put everything back afterwards."""
    assert isinstance(getattr(_CORE, _SWITCH, None), bool), "this trio schedules in another way"
    source = getattr(_CORE, _SOURCE, None)
    assert isinstance(source, Random), "this trio takes its chance from elsewhere"
    before, state = getattr(_CORE, _SWITCH), source.getstate()
    setattr(_CORE, _SWITCH, True)
    source.seed(seed)
    try:
        yield
    finally:
        setattr(_CORE, _SWITCH, before)
        source.setstate(state)


class _Watch(trio.abc.Instrument):
    """Notices a task that turns in circles while no time passes, and ends the run."""

    def __init__(self, clock: MockClock) -> None:
        self._clock = clock
        self._at = 0.0
        self._steps = 0
        self.scope = trio.CancelScope()
        self.spinning = ""

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        """Count the steps of one moment."""
        now = self._clock.current_time()
        self._steps = self._steps + 1 if now == self._at else 0
        self._at = now
        if self._steps == SPIN:
            frames = task.iter_await_frames()
            place = [f"{f.f_code.co_qualname}:{line}" for f, line in frames]
            self.spinning = f"at {now:.6f}: {' > '.join(place)}"
            self.scope.cancel()


def run_seeded(seed: int, main: Callable[[], Awaitable[None]]) -> None:
    """Run a program of trio's in virtual time; the same seed runs it in the same way."""
    clock = MockClock(autojump_threshold=0)
    watch = _Watch(clock)

    async def watched() -> None:
        with watch.scope:
            await main()

    with _seeded(seed):
        trio.run(watched, clock=clock, instruments=[watch])
    if watch.spinning:
        raise Violation(f"SPIN {watch.spinning}")


class Agenda:
    """What is to be done at which time, in one task."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Callable[[], object]]] = []
        self._order = 0
        self._news = trio.Event()

    def later(self, delay: float, action: Callable[[], object]) -> None:
        """Do something after a while; what is for the same moment keeps its order."""
        self._order += 1
        heapq.heappush(self._heap, (trio.current_time() + delay, self._order, action))
        if self._heap[0][1] == self._order:
            self._news.set()

    async def run(self) -> None:
        """Act when it is time, until cancelled."""
        while True:
            self._news = trio.Event()
            with trio.move_on_at(self._heap[0][0] if self._heap else float("inf")):
                await self._news.wait()
            while self._heap and self._heap[0][0] <= trio.current_time():
                heapq.heappop(self._heap)[2]()
