"""The log of a group: what its two ends promise."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cache.log import Log
from migratory.wire.entry import MSG, Entry


def entry(n: int, epoch: int = 1, size: int = 10) -> Entry:
    """An entry that can be told from others."""
    return Entry(epoch, MSG, 0, n, "/t", n, payload=bytes(size))


SIZE = entry(1).size


def filled(count: int) -> Log:
    """A log that holds entries 1 to count."""
    log = Log()
    log.extend([entry(n) for n in range(1, count + 1)])
    return log


def test_an_empty_log_stands_at_its_base() -> None:
    """A new log can be matched at its base and has nothing to give."""
    log = Log(7, 3)
    assert (log.base, log.last, log.base_epoch, log.last_epoch) == (7, 7, 3, 3)
    assert log.epoch_at(7) == 3
    assert log.entries(7, 100) == []
    assert (len(log), log.bytes, log.has(7), log.has(8)) == (0, 0, False, False)


def test_appended_entries_are_found_by_index() -> None:
    """Entries keep the index at which they were put."""
    log = Log(7, 3)
    log.append(entry(8, epoch=4))
    log.extend([entry(9, epoch=4), entry(10, epoch=5)])
    log.extend([])
    assert (log.last, log.last_epoch, len(log), log.bytes) == (10, 5, 3, 3 * SIZE)
    assert [log.entry(idx).seq for idx in (8, 9, 10)] == [8, 9, 10]
    assert [log.epoch_at(idx) for idx in (7, 8, 9, 10)] == [3, 4, 4, 5]
    assert [idx for idx in range(6, 13) if log.has(idx)] == [8, 9, 10]


def test_a_read_takes_what_fits_but_at_least_one() -> None:
    """A page is bounded by bytes, and an entry larger than the bound still travels."""
    log = filled(10)
    assert len(log.entries(0, 10 * SIZE)) == 10
    assert [e.seq for e in log.entries(4, 3 * SIZE)] == [5, 6, 7]
    assert [e.seq for e in log.entries(4, 3 * SIZE - 1)] == [5, 6]
    assert [e.seq for e in log.entries(4, 0)] == [5]
    assert log.entries(10, 0) == []


def test_a_stretch_is_taken_whole() -> None:
    """What lies between two indexes is given without a bound."""
    log = filled(10)
    log.trim(2)
    assert [e.seq for e in log.between(4, 7)] == [5, 6, 7]
    assert log.between(2, 2) == log.between(10, 10) == []


def test_where_the_newest_bytes_begin() -> None:
    """The lowest index is found from which on everything fits, the end itself if nothing does."""
    log = filled(10)
    log.trim(2)
    assert [log.first_within(size) for size in (0, SIZE - 1, SIZE, 3 * SIZE)] == [11, 11, 10, 8]
    assert log.first_within(100 * SIZE) == 3


def test_bytes_between_two_indexes() -> None:
    """The size of any stretch is known, whatever was trimmed before it."""
    log = filled(10)
    log.trim(2)
    assert log.size_between(2, 10) == log.bytes == 8 * SIZE
    assert log.size_between(4, 4) == 0
    assert log.size_between(4, 7) == 3 * SIZE


def test_truncation_restores_the_earlier_end() -> None:
    """After a truncation the log is as it was before the dropped entries came."""
    log = filled(3)
    log.append(entry(4, epoch=2))
    log.truncate(3)
    assert (log.last, log.last_epoch, log.bytes) == (3, 1, 3 * SIZE)
    log.append(entry(44, epoch=3))
    assert log.entry(4).seq == 44
    log.truncate(0)
    assert (log.last, log.last_epoch, log.bytes, log.entries(0, 9)) == (0, 0, 0, [])


def test_trimming_moves_the_base_and_its_epoch() -> None:
    """The base remembers the epoch of the last entry that was trimmed."""
    log = filled(5)
    log.append(entry(6, epoch=2))
    log.trim(1)
    log.trim(1)
    assert (log.base, log.base_epoch, log.bytes) == (1, 1, 5 * SIZE)
    log.trim(6)
    assert (log.base, log.base_epoch, log.last, log.last_epoch, log.bytes) == (6, 2, 6, 2, 0)
    log.append(entry(7, epoch=2))
    assert log.entry(7).seq == 7


def test_trimmed_entries_are_released_at_once() -> None:
    """A trimmed entry is not kept alive by the slot it stood in, nor do slots pile up."""
    log = filled(1000)
    for idx in range(1, 5001):
        log.append(entry(1000 + idx))
        log.trim(idx)
        assert len(log._entries) <= 2 * len(log) + 1
    assert sum(bool(e.topic) for e in log._entries) == len(log) == 1000


def test_a_reset_log_goes_on_elsewhere() -> None:
    """A reset forgets everything, also what was counted."""
    log = filled(5)
    log.reset(100, 9)
    log.append(entry(101, epoch=9))
    assert repr(log) == f"<Log 100@9..101@9 {SIZE} bytes>"


MISUSES: dict[str, Callable[[Log], object]] = {
    "trim above the end": lambda log: log.trim(11),
    "truncate below the base": lambda log: log.truncate(1),
    "truncate above the end": lambda log: log.truncate(11),
    "read what was trimmed": lambda log: log.entry(2),
    "match below the base": lambda log: log.epoch_at(1),
    "stream from below the base": lambda log: log.entries(1, 9),
    "take beyond the end": lambda log: log.between(3, 11),
    "measure below the base": lambda log: log.size_between(1, 3),
}


@pytest.mark.parametrize("misuse", MISUSES.values(), ids=MISUSES)
def test_indexes_that_are_not_held_are_our_own_bugs(misuse: Callable[[Log], object]) -> None:
    """Asking beyond the ends fails instead of giving a neighbour."""
    log = filled(10)
    log.trim(2)
    with pytest.raises(AssertionError, match=r"is not in <Log 2@1\.\.10@1"):
        misuse(log)
