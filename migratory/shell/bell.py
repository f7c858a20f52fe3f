"""What wakes the engine: everything that comes in rings the same bell.

Invariants: a ring is never lost (one that comes before the wait ends that wait at once); any
number of rings before the wait are one; only the engine waits.
"""

from __future__ import annotations

import math

import trio


class Bell:
    """Rung by links, keeper, front and signals; the engine waits for it between two turns."""

    def __init__(self) -> None:
        self._event = trio.Event()

    def ring(self) -> None:
        """Something has come in. Call it in trio's thread."""
        self._event.set()

    async def wait(self, until: float = math.inf) -> None:
        """Return after a ring, or at this time of trio's clock; always lets other tasks run."""
        with trio.move_on_at(until):
            await self._event.wait()
        if self._event.is_set():
            self._event = trio.Event()
