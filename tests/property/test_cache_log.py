"""The log of a group against a plain dictionary from indexes to entries."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from cache.log import Log
from migratory.wire.entry import MSG, Entry

ENTRIES = st.builds(
    lambda epoch, seq, size: Entry(epoch, MSG, 0, 0, "/t", seq, payload=bytes(size)),
    st.integers(1, 5),
    st.integers(1, 1 << 40),
    st.integers(0, 200),
)
FRACTIONS = st.floats(0, 1)


class LogMachine(RuleBasedStateMachine):
    """Drives both and compares all that can be read."""

    def __init__(self) -> None:
        super().__init__()
        self.log = Log(3, 1)
        self.twin: dict[int, Entry] = {}
        self.base, self.base_epoch = 3, 1

    @property
    def last(self) -> int:
        """Where the twin ends."""
        return max(self.twin, default=self.base)

    def _within(self, fraction: float) -> int:
        return self.base + round(fraction * (self.last - self.base))

    @rule(entry=ENTRIES)
    def append(self, entry: Entry) -> None:
        """One entry more."""
        self.twin[self.last + 1] = entry
        self.log.append(entry)

    @rule(entries=st.lists(ENTRIES, max_size=20))
    def extend(self, entries: list[Entry]) -> None:
        """Many entries more."""
        for entry in entries:
            self.twin[self.last + 1] = entry
        self.log.extend(entries)

    @rule(fraction=FRACTIONS)
    def truncate(self, fraction: float) -> None:
        """The end moves back."""
        after = self._within(fraction)
        self.twin = {idx: entry for idx, entry in self.twin.items() if idx <= after}
        self.log.truncate(after)

    @rule(fraction=FRACTIONS)
    def trim(self, fraction: float) -> None:
        """The base moves forward."""
        upto = self._within(fraction)
        if upto > self.base:
            self.base, self.base_epoch = upto, self.twin[upto].epoch
        self.twin = {idx: entry for idx, entry in self.twin.items() if idx > upto}
        self.log.trim(upto)

    @precondition(lambda self: len(self.twin) > 30)
    @rule(base=st.integers(0, 100), epoch=st.integers(1, 5))
    def reset(self, base: int, epoch: int) -> None:
        """Everything is replaced by a base."""
        self.base, self.base_epoch, self.twin = base, epoch, {}
        self.log.reset(base, epoch)

    @rule(fraction=FRACTIONS, width=FRACTIONS, max_bytes=st.integers(0, 3000))
    def read(self, fraction: float, width: float, max_bytes: int) -> None:
        """Pages, stretches and sizes are what the twin adds up entry by entry."""
        after = self._within(fraction)
        tail = [self.twin[idx] for idx in range(after + 1, self.last + 1)]
        fits = 0
        while fits < len(tail) and sum(entry.size for entry in tail[: fits + 1]) <= max_bytes:
            fits += 1
        assert self.log.entries(after, max_bytes) == tail[: max(fits, 1)]
        stretch = tail[: round(width * len(tail))]
        assert self.log.between(after, after + len(stretch)) == stretch
        size = sum(entry.size for entry in stretch)
        assert self.log.size_between(after, after + len(stretch)) == size

    @rule(max_bytes=st.integers(0, 3000))
    def newest(self, max_bytes: int) -> None:
        """The newest bytes begin where one entry more would not fit."""
        first = self.last + 1
        while first - 1 in self.twin and self._size_from(first - 1) <= max_bytes:
            first -= 1
        assert self.log.first_within(max_bytes) == first

    def _size_from(self, first: int) -> int:
        return sum(entry.size for idx, entry in self.twin.items() if idx >= first)

    @invariant()
    def equal(self) -> None:
        """Ends, epochs, entries and bytes agree."""
        log = self.log
        assert (log.base, log.base_epoch, log.last) == (self.base, self.base_epoch, self.last)
        assert len(log) == len(self.twin)
        assert log.bytes == self._size_from(0)
        assert log.epoch_at(self.base) == self.base_epoch
        last_epoch = self.twin[self.last].epoch if self.twin else self.base_epoch
        assert log.last_epoch == log.epoch_at(self.last) == last_epoch
        for idx in range(self.base - 2, self.last + 3):
            assert log.has(idx) == (idx in self.twin)
        for idx, entry in self.twin.items():
            assert log.entry(idx) is entry


LogMachine.TestCase.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)
TestLog = LogMachine.TestCase
