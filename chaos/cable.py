"""A cable that delays and loses frames, in this process: what netem does where a kernel has it.

Two tap devices stand in for one cable. What the switch sends into one is read here, kept for a
while or forgotten, and written to the other; the same the other way round. Taps take no offloads,
so every frame that comes through has its checksum and a size that fits.

Frames keep their order: jitter makes some wait longer, and those behind them too. At most `ROOM`
frames wait per direction, then the cable loses what comes, as a full queue does.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
from collections import deque
from collections.abc import Iterator
from random import Random

import msgspec
import trio

TUN = "/dev/net/tun"
ROOM = 2000  # frames
_FRAME = 1 << 16
_TUNSETIFF = 0x400454CA
_IFF_TAP, _IFF_NO_PI = 0x0002, 0x1000


class Trouble(msgspec.Struct, frozen=True):
    """What a cable does to each frame, in each direction."""

    loss: float = 0.0  # share of the frames
    delay: float = 0.0  # seconds
    jitter: float = 0.0  # seconds, added evenly between none and all


@contextlib.contextmanager
def open_tap(name: str) -> Iterator[int]:
    """A tap device of the namespace we are in, for as long as the block."""
    fd = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(fd, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI))
        yield fd
    finally:
        os.close(fd)


async def carry(one: int, other: int, trouble: Trouble, random: Random) -> None:
    """Be the cable between two taps, until cancelled."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_Direction(one, other, trouble, random).carry)
        nursery.start_soon(_Direction(other, one, trouble, random).carry)


class _Direction:
    """Frames on their way, each with the time at which it leaves the cable."""

    def __init__(self, source: int, target: int, trouble: Trouble, random: Random) -> None:
        self._source, self._target = source, target
        self._trouble, self._random = trouble, random
        self._waiting: deque[tuple[float, bytes]] = deque()
        self._came = trio.Event()

    async def carry(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._take)
            nursery.start_soon(self._give)

    async def _take(self) -> None:
        while True:
            await trio.lowlevel.wait_readable(self._source)
            with contextlib.suppress(BlockingIOError):
                self._keep(os.read(self._source, _FRAME))

    def _keep(self, frame: bytes) -> None:
        trouble = self._trouble
        if self._random.random() < trouble.loss or len(self._waiting) >= ROOM:
            return
        due = trio.current_time() + trouble.delay + self._random.uniform(0, trouble.jitter)
        if self._waiting:
            due = max(due, self._waiting[-1][0])
        self._waiting.append((due, frame))
        self._came.set()

    async def _give(self) -> None:
        while True:
            while self._waiting:
                await trio.sleep_until(self._waiting[0][0])
                with contextlib.suppress(OSError):  # a tap that is down or full loses the frame
                    os.write(self._target, self._waiting.popleft()[1])
            self._came = trio.Event()
            await self._came.wait()
