"""How bad it gets in one run of whole members: drawn from the seed."""

from __future__ import annotations

from random import Random

import msgspec

from cache.retention import Retention

NEVER = 1e9

# What the SDK is told of the time for which publishers are remembered follows from these.
SHORT = Retention(
    max_messages=8, max_age_ms=3_000, dedup_ttl_ms=11_000, topic_ttl_ms=12_000, log_entries=24,
    log_bytes=1 << 16,
)  # fmt: skip
LONG = Retention(log_entries=24, dedup_ttl_ms=60_000)


class Weather(msgspec.Struct, frozen=True):
    """Delays in seconds, sizes in bytes, and mean seconds between faults of a kind."""

    groups: int
    retention: Retention
    delay: float  # at most, on the way between two members
    client_delay: float  # the same between a client and its contact
    busy: float  # seconds, at most, for which a loop does other things before its next turn
    window: int  # unprocessed bytes that a link takes
    chunk: int  # of transfers, fetches, catching up
    page: int  # of history for a subscriber
    outbox: int  # of a client at its contact
    crash_every: float
    silent_crashes: bool  # the machine is gone: no connection is closed
    pause_every: float
    twin_every: float
    break_every: float  # a link is reset
    cut_every: float
    isolate_every: float
    slow_every: float
    expire_every: float
    depose_every: float
    drain_every: float
    keeper_loss: float
    stale_reads: float
    client_break_every: float
    client_stall_every: float
    outage_every: float  # ZooKeeper is away
    loss: str  # more than f members forget: "" nobody, "some" (an operator decides) or "all"

    @classmethod
    def calm(cls) -> Weather:
        """No faults: for a test that brings its own."""
        return cls(
            groups=3, retention=LONG, delay=0.002, client_delay=0.002, busy=0.0, window=4 << 20,
            chunk=256 << 10, page=64 << 10, outbox=1 << 20, crash_every=NEVER,
            silent_crashes=False, pause_every=NEVER, twin_every=NEVER, break_every=NEVER,
            cut_every=NEVER, isolate_every=NEVER, slow_every=NEVER, expire_every=NEVER,
            depose_every=NEVER, drain_every=NEVER, keeper_loss=0.0, stale_reads=0.0,
            client_break_every=NEVER, client_stall_every=NEVER, outage_every=NEVER, loss="",
        )  # fmt: skip

    @classmethod
    def draw(cls, r: Random) -> Weather:
        """A random kind of weather."""
        small = r.random() < 0.5
        return cls(
            groups=r.choice([1, 3, 3, 8]),
            retention=r.choice([SHORT, LONG]),
            delay=r.choice([0.002, 0.02, 0.1]),
            client_delay=r.choice([0.002, 0.05]),
            busy=r.choice([0.0, 0.0, 0.02, 0.1]),
            window=r.choice([2_000, 4 << 20]),
            chunk=r.choice([200, 256 << 10]),
            page=200 if small else 64 << 10,
            # One that does not hold some pages would send everybody away for being slow.
            outbox=r.choice([12_000, 1 << 20]) if small else 1 << 20,
            crash_every=r.choice([2.0, 6.0, NEVER]),
            silent_crashes=r.random() < 0.3,
            pause_every=r.choice([3.0, NEVER]),
            twin_every=r.choice([8.0, NEVER, NEVER]),
            break_every=r.choice([1.0, 4.0, NEVER]),
            cut_every=r.choice([1.5, 5.0, NEVER]),
            isolate_every=r.choice([6.0, NEVER]),
            slow_every=r.choice([3.0, NEVER]),
            expire_every=r.choice([2.0, NEVER]),
            depose_every=r.choice([1.0, 5.0, NEVER]),
            drain_every=r.choice([6.0, NEVER]),
            keeper_loss=r.choice([0.0, 0.02, 0.2]),
            stale_reads=r.choice([0.0, 0.5]),
            client_break_every=r.choice([0.5, 3.0, NEVER]),
            client_stall_every=r.choice([2.0, NEVER]),
            outage_every=r.choice([10.0, NEVER, NEVER]),
            loss=r.choices(["", "some", "all"], [8, 1, 1])[0],
        )
