"""The history of one topic: its last messages, at consecutive sequences.

Bounded by count and bytes when a message is added, by age when the group's time passes; the newest
message survives these bounds, and goes only when who holds the history drops it. As sequences are
consecutive, a message is found by subtraction. Emptied slots at the front are given back when they
are half of the list: a full history takes a message in constant time, and a page is one slice.

Most topics of a large system hold one message or none: their record stores the bare entry, see
`cache.topic`; a History as a container is for those with two messages or more.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from migratory.wire.entry import ENTRY_OVERHEAD, NOOP, Entry

_GONE = Entry(0, NOOP, 0, 0)  # stands in an emptied slot


def size_of(entry: Entry) -> int:
    """The same as `Entry.size`, at a third of its cost."""
    return len(entry.payload) + len(entry.topic) + ENTRY_OVERHEAD


class History(msgspec.Struct, gc=False, eq=False, repr_omit_defaults=True):
    """Messages of a topic, oldest first. `vacancy` is the sequence awaited while it is empty."""

    slots: list[Entry]
    vacancy: int
    skip: int = 0  # emptied slots at the front
    bytes: int = 0

    @classmethod
    def of(cls, entries: Sequence[Entry], vacancy: int) -> History:
        """A history of these entries, unbounded for now."""
        return cls(list(entries), vacancy, 0, sum(map(size_of, entries)))

    def __len__(self) -> int:
        return len(self.slots) - self.skip

    @property
    def first_seq(self) -> int:
        """Sequence of the oldest message, or of the next one to come if there is none."""
        return self.slots[self.skip].seq if len(self.slots) > self.skip else self.vacancy

    @property
    def last_seq(self) -> int:
        """Sequence of the newest message, or the one before the next if there is none."""
        return self.slots[-1].seq if len(self.slots) > self.skip else self.vacancy - 1

    @property
    def oldest(self) -> Entry:
        """The oldest message; there must be one."""
        return self.slots[self.skip]

    def append(self, entry: Entry, max_messages: int, max_bytes: int) -> int:
        """Add a message, drop the oldest ones that no longer fit; return the bytes gained."""
        before = self.bytes
        self.slots.append(entry)
        self.bytes = before + len(entry.payload) + len(entry.topic) + ENTRY_OVERHEAD
        if len(self.slots) - self.skip > max_messages or self.bytes > max_bytes:
            self.bound(max_messages, max_bytes)
        return self.bytes - before

    def bound(self, max_messages: int, max_bytes: int) -> None:
        """Drop the oldest messages that do not fit, never the newest one."""
        while len(self) > max_messages or (self.bytes > max_bytes and len(self) > 1):
            self.drop()

    def drop(self) -> int:
        """Drop the oldest message; return its bytes."""
        size = size_of(self.slots[self.skip])
        self.bytes -= size
        self.slots[self.skip] = _GONE
        self._skip_to(self.skip + 1)
        return size

    def expire(self, before: int) -> int:
        """Drop messages older than a group time, all but the newest one; return their bytes."""
        slots, skip = self.slots, self.skip
        newest, freed = len(slots) - 1, 0
        while skip < newest and (entry := slots[skip]).gt < before:
            freed += size_of(entry)
            slots[skip] = _GONE
            skip += 1
        self.bytes -= freed
        self._skip_to(skip)
        return freed

    def _skip_to(self, skip: int) -> None:
        if skip * 2 > len(self.slots):
            del self.slots[:skip]
            skip = 0
        self.skip = skip

    def after(self, seq: int, max_bytes: int) -> list[Entry]:
        """Messages after a sequence, as many as fit, but at least one if there is any."""
        start = self.skip + max(seq + 1 - self.first_seq, 0)
        found = self.slots[start:]
        if self.bytes <= max_bytes:
            return found
        room = max_bytes
        for place, entry in enumerate(found):
            room -= size_of(entry)
            if room < 0:
                return found[: max(place, 1)]
        return found

    def epoch_of(self, seq: int) -> int | None:
        """The epoch of the message at a sequence, or None when it is not held."""
        place = seq - self.first_seq
        return self.slots[self.skip + place].epoch if 0 <= place < len(self) else None

    def __repr__(self) -> str:
        return f"<History {self.first_seq}..{self.last_seq} {self.bytes} bytes>"
