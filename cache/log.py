"""The log of one group: entries at consecutive indexes after a base that is no longer held.

Invariants: entry `base + 1` is the first one held and `last` the last one; `base_epoch` is the
epoch of the entry that was at `base`, so that whoever appends can be matched there. Indexes never
change their meaning; only the two ends move.

Reading the tail is the hot path (every App is one slice), hence running totals of bytes beside
the entries: whether a tail fits is one subtraction, where to cut it is a bisection. Trimming
only forgets the entries; the emptied slots are given back when they are half of the list, so
trimming one entry at a time costs the same as trimming many at once.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate

from migratory.wire.entry import ENTRY_OVERHEAD, NOOP, Entry

_GONE = Entry(0, NOOP, 0, 0)  # stands in an emptied slot


class Log:
    """Entries (base, last] of a group."""

    __slots__ = (
        "_entries",
        "_origin",
        "_totals",
        "base",
        "base_epoch",
        "bytes",
        "last",
        "last_epoch",
    )

    def __init__(self, base: int = 0, base_epoch: int = 0) -> None:
        self.reset(base, base_epoch)

    def reset(self, base: int, base_epoch: int) -> None:
        """Hold nothing, and go on after `base`."""
        self.base = self.last = base
        self.base_epoch = self.last_epoch = base_epoch
        self.bytes = 0  # sum of the sizes of all entries held
        self._origin = base  # entry idx is in slot idx - origin - 1
        self._entries: list[Entry] = []
        self._totals = array("q", (0,))  # [k]: bytes of the first k slots, whenever they were

    def __len__(self) -> int:
        return self.last - self.base

    def has(self, idx: int) -> bool:
        """Whether the entry at this index is held."""
        return self.base < idx <= self.last

    def entry(self, idx: int) -> Entry:
        """The entry at an index that is held."""
        assert self.base < idx <= self.last, f"{idx} is not in {self}"
        return self._entries[idx - self._origin - 1]

    def epoch_at(self, idx: int) -> int:
        """The epoch of the entry at an index that is held, or at the base."""
        return self.base_epoch if idx == self.base else self.entry(idx).epoch

    def entries(self, after: int, max_bytes: int) -> list[Entry]:
        """Entries after an index, as many as fit, but at least one if there is any."""
        assert self.base <= after <= self.last, f"{after} is not in {self}"
        totals = self._totals
        slot = after - self._origin
        limit = totals[slot] + max_bytes
        if totals[-1] <= limit:
            return self._entries[slot:]
        return self._entries[slot : max(bisect_right(totals, limit, slot) - 1, slot + 1)]

    def between(self, after: int, upto: int) -> list[Entry]:
        """The entries (after, upto]."""
        assert self.base <= after <= upto <= self.last, f"{after}..{upto} is not in {self}"
        return self._entries[after - self._origin : upto - self._origin]

    def first_within(self, max_bytes: int) -> int:
        """The lowest index from which on everything fits into so many bytes."""
        totals = self._totals
        slot = bisect_left(totals, totals[-1] - max_bytes, self.base - self._origin)
        return slot + self._origin + 1

    def size_between(self, after: int, upto: int) -> int:
        """Bytes of the entries (after, upto]."""
        assert self.base <= after <= upto <= self.last, f"{after}..{upto} is not in {self}"
        return self._totals[upto - self._origin] - self._totals[after - self._origin]

    def append(self, entry: Entry) -> None:
        """Put an entry at index last + 1."""
        size = len(entry.payload) + len(entry.topic) + ENTRY_OVERHEAD  # Entry.size, without a call
        self._entries.append(entry)
        self._totals.append(self._totals[-1] + size)
        self.bytes += size
        self.last += 1
        self.last_epoch = entry.epoch

    def extend(self, entries: Sequence[Entry]) -> None:
        """Put entries at the indexes from last + 1 on."""
        if not entries:
            return
        before = self._totals.pop()
        sizes = [len(entry.payload) + len(entry.topic) + ENTRY_OVERHEAD for entry in entries]
        self._entries.extend(entries)
        self._totals.extend(accumulate(sizes, initial=before))
        self.bytes += self._totals[-1] - before
        self.last += len(entries)
        self.last_epoch = entries[-1].epoch

    def truncate(self, after: int) -> None:
        """Drop the entries after an index."""
        assert self.base <= after <= self.last, f"{after} is not in {self}"
        self.last_epoch = self.epoch_at(after)
        self.bytes -= self.size_between(after, self.last)
        self.last = after
        slot = after - self._origin
        del self._entries[slot:]
        del self._totals[slot + 1 :]

    def trim(self, upto: int) -> None:
        """Forget the entries up to an index, which becomes the base."""
        if upto <= self.base:
            return
        assert upto <= self.last, f"{upto} is not in {self}"
        self.base_epoch = self.epoch_at(upto)
        self.bytes -= self.size_between(self.base, upto)
        emptied = upto - self._origin
        if emptied * 2 > len(self._entries):
            del self._entries[:emptied]
            del self._totals[:emptied]
            self._origin = upto
        else:
            self._entries[self.base - self._origin : emptied] = [_GONE] * (upto - self.base)
        self.base = upto

    def __repr__(self) -> str:
        return (
            f"<Log {self.base}@{self.base_epoch}..{self.last}@{self.last_epoch} {self.bytes} bytes>"
        )
