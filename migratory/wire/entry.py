"""The entry of a group's log: what is ordered, replicated, kept in histories and delivered.

An entry does not hold its own index: its place in a log, an APP or a page tells it.
`ts` is wall-clock time in milliseconds, shown and never compared; `gt` is group time, the only
clock that expiry looks at.
"""

from __future__ import annotations

import zlib

import msgspec

MSG, NOOP, TICK = 0, 1, 2
TEXT, FIRST = 1, 2  # flag bits: payload is UTF-8 text; sequence does not continue an earlier one


class Entry(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One place of a log. NOOP opens an epoch or serves as a barrier, TICK only carries time."""

    epoch: int
    kind: int
    ts: int
    gt: int
    topic: str = ""
    seq: int = 0
    flags: int = 0
    pid: str = ""
    pseq: int = 0
    payload: bytes = b""

    @property
    def first(self) -> bool:
        """Whether the topic starts here, its earlier messages (if any) being forgotten."""
        return bool(self.flags & FIRST)

    @property
    def text(self) -> bool:
        """Whether the payload is text."""
        return bool(self.flags & TEXT)

    @property
    def size(self) -> int:
        """What the entry costs in bounds of bytes: its payload and a share for the rest."""
        return len(self.payload) + len(self.topic) + ENTRY_OVERHEAD


ENTRY_OVERHEAD = 64


def checksum(payload: bytes) -> int:
    """What tells a repeated publication from a reused publisher sequence."""
    return zlib.crc32(payload)
