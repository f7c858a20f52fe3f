"""How bad it gets in one run: drawn from the seed, so that runs differ in kind too."""

from __future__ import annotations

from random import Random

import msgspec

NEVER = 1e9


class Weather(msgspec.Struct, frozen=True):
    """Probabilities per message, and mean seconds between faults of a kind."""

    drop: float
    double: float
    delay: float
    room: int  # bytes that a link takes at a time, at most
    chunk: int  # bytes of a chunk or page
    crash_every: float
    twin_every: float  # a paused process gets a replacement, then wakes beside it
    pause_every: float
    cut_every: float
    expire_every: float
    depose_every: float
    drain_every: float
    keeper_loss: float
    stale_reads: float
    fifo_delay: float  # between engine and front
    batch_delay: float  # events wait so long for a turn that takes them all
    careless: float  # publishers that use a publisher sequence twice
    all_crash: bool
    disaster: bool  # more than f members forget, not all: an operator decides

    @classmethod
    def draw(cls, r: Random) -> Weather:
        """A random kind of weather."""
        return cls(
            drop=r.choice([0.0, 0.01, 0.1]),
            double=r.choice([0.0, 0.02, 0.2]),
            delay=r.choice([0.002, 0.02, 0.2]),
            room=r.choice([1, 400, 1 << 20]),
            chunk=r.choice([200, 256 << 10]),
            crash_every=r.choice([1.0, 4.0, NEVER]),
            twin_every=r.choice([4.0, NEVER]),
            pause_every=r.choice([2.0, NEVER]),
            cut_every=r.choice([1.5, 5.0, NEVER]),
            expire_every=r.choice([1.0, 4.0, NEVER]),
            depose_every=r.choice([0.7, 3.0, NEVER]),
            drain_every=r.choice([5.0, NEVER]),
            keeper_loss=r.choice([0.0, 0.02, 0.2]),
            stale_reads=r.choice([0.0, 0.5]),
            fifo_delay=r.choice([0.0, 0.02]),
            batch_delay=r.choice([0.0, 0.0, 0.02]),
            careless=r.choice([0.0, 0.0, 0.05]),
            all_crash=r.random() < 0.1,
            disaster=r.random() < 0.1,
        )


class Clock:
    """A process's own monotonic clock, and a wall clock that nobody may rely on."""

    def __init__(self, r: Random) -> None:
        self.offset = r.uniform(0, 100_000)
        self.rate = r.uniform(0.99, 1.01)
        self.skew = r.choice([0, 0, -3_600_000, 3_600_000])

    def local(self, now: float) -> float:
        """What the process reads at a moment of the simulation."""
        return self.offset + now * self.rate

    def world(self, local: float) -> float:
        """The moment of the simulation at which the process reads this."""
        return (local - self.offset) / self.rate

    def wall(self, now: float) -> int:
        """Wall-clock milliseconds: shown, never compared."""
        return 1_700_000_000_000 + self.skew + int(now * 1000)
