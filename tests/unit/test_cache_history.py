"""The history of a topic: pages, bounds and the record that holds it."""

from __future__ import annotations

import pytest

from cache.history import History
from cache.retention import Retention
from cache.topic import TopicRecord
from migratory.wire.entry import MSG, Entry
from migratory.wire.peer import Publisher, TopicState


def message(seq: int, gt: int = 0, size: int = 10) -> Entry:
    """A message of one topic, its epoch ten times less than its sequence."""
    return Entry(seq // 10, MSG, 0, gt or seq, "/t", seq, payload=bytes(size))


SIZE = message(1).size


def history(first: int, last: int) -> History:
    """A history of the messages first to last."""
    return History.of([message(seq) for seq in range(first, last + 1)], last + 1)


def record(retention: Retention, *messages: Entry) -> TopicRecord:
    """A record that has taken these messages in."""
    known = TopicRecord(0, 0, 0, 0, 1, 0)
    for each in messages:
        known.seq, known.gt = each.seq, each.gt
        known.hold(each, retention)
    return known


def test_an_empty_history_awaits_the_next_sequence() -> None:
    """Nothing held: the first sequence is the one after the head."""
    empty = History.of([], 8)
    assert (empty.first_seq, empty.last_seq, len(empty), empty.bytes) == (8, 7, 0, 0)
    assert empty.after(0, 100) == []
    assert empty.epoch_of(7) is None


def test_pages_follow_the_position_and_the_bound() -> None:
    """A page begins after the position, or at the oldest message if that is later."""
    held = history(15, 25)
    assert (held.first_seq, held.last_seq, len(held)) == (15, 25, 11)
    assert [e.seq for e in held.after(23, 1 << 20)] == [24, 25]
    assert [e.seq for e in held.after(3, 2 * SIZE)] == [15, 16]
    assert [e.seq for e in held.after(20, 2 * SIZE - 1)] == [21]
    assert [e.seq for e in held.after(20, 0)] == [21]
    assert [e.seq for e in held.after(22, 3 * SIZE)] == [23, 24, 25]
    assert held.after(25, 0) == held.after(99, 1 << 20) == []


def test_epochs_are_known_for_what_is_held() -> None:
    """The epoch of a sequence is known exactly while the message is held."""
    held = history(15, 25)
    assert [held.epoch_of(seq) for seq in (14, 15, 19, 20, 25, 26)] == [None, 1, 1, 2, 2, None]


def test_count_and_bytes_bound_a_history() -> None:
    """The oldest messages go when there are too many, or too many bytes; the newest stays."""
    held = history(1, 5)
    assert held.append(message(6), 3, 1 << 20) == -2 * SIZE
    assert (held.first_seq, len(held), held.bytes) == (4, 3, 3 * SIZE)
    assert held.append(message(7, size=SIZE), 9, 3 * SIZE) == message(7, size=SIZE).size - 2 * SIZE
    assert (held.first_seq, len(held)) == (6, 2)
    held.append(message(8, size=1000), 9, 3 * SIZE)
    assert (held.first_seq, len(held), held.bytes) == (8, 1, message(8, size=1000).size)


def test_dropped_messages_are_released_at_once() -> None:
    """A full history keeps neither dropped messages nor a growing list of empty slots."""
    held = history(1, 100)
    for seq in range(101, 1001):
        held.append(message(seq), 100, 1 << 20)
        assert len(held.slots) <= 201
    assert sum(bool(e.topic) for e in held.slots) == len(held) == 100
    assert repr(held) == f"<History 901..1000 {100 * SIZE} bytes>"


def test_a_container_appears_with_the_second_message_and_goes_with_it() -> None:
    """One message stands in the record itself, before others came and after they left."""
    bounds = Retention()
    known = record(bounds, message(1))
    assert isinstance(known.held, Entry)
    assert known.history.after(0, 0) == [message(1)]
    known.hold(message(2), bounds)
    assert isinstance(known.held, History)
    assert known.oldest == message(1)
    assert [known.drop(), known.held, known.drop(), known.held] == [SIZE, message(2), SIZE, None]
    assert known.history.first_seq == known.seq + 1
    with pytest.raises(AssertionError, match="nothing to drop"):
        known.drop()


def test_one_message_per_topic_needs_no_container() -> None:
    """With room for one message only, the newest replaces the one before."""
    known = record(Retention(max_messages=1), message(1), message(2))
    assert known.held == message(2)


def test_messages_expire_one_by_one() -> None:
    """Each message goes when its own age is over, and the container with the last but one."""
    bounds = Retention(max_age_ms=10)
    known = record(bounds, message(1, gt=5), message(2, gt=6), message(3, gt=7), message(4, gt=8))
    assert [known.expire_messages(gt, bounds) for gt in (15, 16)] == [0, SIZE]
    assert (known.history.first_seq, known.history.bytes) == (2, 3 * SIZE)
    assert known.expire_messages(18, bounds) == 2 * SIZE
    assert known.held == message(4, gt=8)
    assert known.expire_messages(19, bounds) == SIZE
    assert known.held is None


def test_the_last_value_outlives_its_age_until_it_is_the_last_no_more() -> None:
    """With last_value the last message stays, and goes when a later one finds it too old."""
    bounds = Retention(max_age_ms=10, last_value=True)
    known = record(bounds, message(1, gt=5), message(2, gt=6))
    assert known.expire_messages(100, bounds) == SIZE
    assert known.held == message(2, gt=6)
    known.gt = 100
    assert known.hold(message(3, gt=100, size=11), bounds) == 1
    assert known.held == message(3, gt=100, size=11)


def test_publishers_are_remembered_one_by_one() -> None:
    """The first publisher stands in the record, more of them in the order of their silence."""
    known = TopicRecord(9, 1, 9, 50, 1, 0)
    one, two, three = (
        Publisher(pid, 1, 1, 1, 1, 0, gt) for pid, gt in (("a", 1), ("b", 2), ("a", 3))
    )
    assert known.publishers() == []
    assert known.publisher("a") is None
    assert [known.remember(one), known.remember(one)] == [True, False]
    assert (known.dedup, known.publisher("a"), known.publisher("b")) == (one, one, None)
    assert [known.remember(two), known.remember(three)] == [True, False]
    assert known.publishers() == [two, three]
    assert [known.publisher(pid) for pid in "abc"] == [three, two, None]
    four = Publisher("c", 1, 1, 1, 1, 0, 4)
    assert known.remember(four)
    bounds = Retention(dedup_ttl_ms=10)
    assert [known.expire_publishers(gt, bounds) for gt in (12, 13)] == [0, 1]
    assert known.publishers() == [three, four]
    assert known.expire_publishers(14, bounds) == 1
    assert known.dedup == four
    assert known.expire_publishers(99, bounds) == 1
    assert known.dedup is None


def test_a_topic_that_travels_obeys_the_bounds_of_its_new_home() -> None:
    """A member with tighter bounds keeps the newest messages of what it is sent."""
    sent = TopicState("/t", 9, 1, 9, 50, 1, 0, [message(8), message(9)], [])
    assert TopicRecord.of(sent, Retention()).state("/t") == sent
    assert TopicRecord.of(sent, Retention(max_messages=1)).held == message(9)
    bare = TopicRecord.of(TopicState("/t", 9, 1, 9, 50, 1, 0, [], []), Retention())
    assert repr(bare) == (
        "<Topic at 1:9 idx=9 gt=50 start=1 vacant=0 <History 10..9 0 bytes> publishers=0>"
    )
