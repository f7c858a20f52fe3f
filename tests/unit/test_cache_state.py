"""The applied state of a group: expiry by group time, forgetting, duplicates, eviction."""

from __future__ import annotations

import pytest

from cache.retention import Retention
from cache.state import GroupState
from migratory.wire.entry import FIRST, MSG, NOOP, TICK, Entry, checksum
from migratory.wire.ids import Position
from migratory.wire.peer import Publisher, TopicState

SHORT = Retention(max_messages=3, max_age_ms=10, dedup_ttl_ms=20, topic_ttl_ms=40)


def message(
    seq: int, gt: int, topic: str = "/t", pid: str = "", flags: int = 0, payload: bytes = b"payload"
) -> Entry:
    """A message of epoch 2."""
    return Entry(2, MSG, 0, gt, topic, seq, flags, pid, seq, payload)


def tick(gt: int) -> Entry:
    """An entry that only carries time."""
    return Entry(2, TICK, 0, gt)


def after(*entries: Entry, retention: Retention = SHORT) -> GroupState:
    """The state after these entries, the first one at index 1."""
    state = GroupState(retention)
    for idx, entry in enumerate(entries, 1):
        state.apply(idx, entry)
    return state


def held(state: GroupState, topic: str = "/t") -> list[int]:
    """The sequences held of a topic."""
    return [entry.seq for entry in state.topics[topic].history.after(0, 1 << 20)]


def test_bounds_that_would_break_a_promise_are_refused() -> None:
    """A topic outlives its publishers, or a repeated message could count as new."""
    with pytest.raises(ValueError, match="as long as its publishers"):
        Retention(dedup_ttl_ms=2, topic_ttl_ms=1)
    with pytest.raises(ValueError, match="at least one message"):
        Retention(max_messages=0)


def test_messages_make_topics_heads_and_histories() -> None:
    """A message moves the head of its topic and of nothing else."""
    state = after(message(1, 1), message(1, 2, "/u"), message(2, 3), Entry(3, NOOP, 0, 4))
    assert (state.applied, state.epoch, state.gt) == (4, 3, 4)
    assert (state.head("/t"), state.head("/u")) == (Position(2, 2), Position(2, 1))
    assert state.head("/v") is None
    assert state.publisher("/v", "p") is None
    assert state.topic_state("/v") is None
    assert (held(state), held(state, "/u")) == ([1, 2], [1])
    assert state.snapshot_names() == ["/t", "/u"]
    assert repr(state) == (
        f"<GroupState 4@3 gt=4 topics=2 bytes={3 * message(1, 1).size} publishers=0 vacant=0>"
    )


def test_entries_are_taken_in_order_only() -> None:
    """A skipped index or sequence is our own bug."""
    state = after(message(1, 1))
    with pytest.raises(AssertionError, match="3 does not follow <GroupState 1@2"):
        state.apply(3, tick(2))
    with pytest.raises(AssertionError, match="does not follow <Topic at 2:1"):
        state.apply(2, message(3, 2))


def test_a_publisher_is_remembered_by_its_last_message() -> None:
    """The memory of a publisher names the place and the content of its last message."""
    state = after(message(1, 1, pid="p"), message(2, 2, pid="q"), message(3, 3, pid="p"))
    assert state.publisher("/t", "p") == Publisher("p", 3, 3, 2, 3, checksum(b"payload"), 3)
    assert state.publisher("/t", "q") == Publisher("q", 2, 2, 2, 2, checksum(b"payload"), 2)
    assert (state.publisher("/t", "r"), state.publishers) == (None, 2)


def test_everything_expires_in_its_own_time() -> None:
    """Messages go first, then publishers, then the head: each later than its time, not at it."""
    state = after(message(1, 1, pid="p"), tick(11))
    seen = []
    for idx, gt in enumerate((11, 12, 21, 22, 41, 42), 3):
        was_due = state.due(gt)
        state.apply(idx, tick(gt))
        known = "/t" in state.topics
        seen.append((was_due, held(state) if known else None, state.publishers, state.vacant))
    assert seen == [
        (False, [1], 1, 0),
        (True, [], 1, 0),
        (False, [], 1, 0),
        (True, [], 0, 0),
        (False, [], 0, 0),
        (True, None, 0, 8),
    ]
    assert (state.bytes, state.due(10**9)) == (0, False)


def test_group_time_never_falls() -> None:
    """An entry with an earlier time counts as if it had the latest time known."""
    state = after(tick(100), message(1, 50, pid="p"))
    assert state.gt == state.topics["/t"].gt == 100
    assert state.due(121)
    state.apply(3, tick(120))
    assert state.publisher("/t", "p") is not None


def test_a_message_puts_off_what_its_topic_would_lose() -> None:
    """A topic that goes on is not due, although it was when it began."""
    state = after(message(1, 1, pid="p"), message(2, 8, pid="p"), tick(12))
    assert held(state) == [2]
    assert not state.due(18)
    assert state.due(19)


def test_a_forgotten_topic_begins_anew() -> None:
    """The next life of a topic knows where it began and when topics were last forgotten."""
    state = after(message(1, 1), tick(50), message(3, 51, flags=FIRST))
    record = state.topics["/t"]
    assert (record.start, record.vacant, record.history.first_seq, state.vacant) == (3, 2, 3, 2)


def test_an_unflagged_message_may_begin_a_topic_too() -> None:
    """A topic forgotten while its next message was on its way begins with that message."""
    state = after(message(1, 1, pid="p"), message(2, 50, pid="p"))
    record = state.topics["/t"]
    assert (record.start, record.vacant, held(state), state.publishers) == (2, 2, [2], 1)


def test_a_flagged_message_empties_the_history() -> None:
    """What came before a message flagged first is not its topic's past."""
    state = after(message(1, 1), message(2, 2), message(9, 3, flags=FIRST))
    assert (held(state), state.topics["/t"].start, state.bytes) == ([9], 9, message(9, 3).size)


def test_the_group_evicts_its_oldest_messages() -> None:
    """Over the bound of the group the oldest messages go, whatever their topics."""
    size = message(1, 1).size
    bounds = Retention(group_bytes=3 * size)
    state = after(
        message(1, 1), message(2, 2), message(1, 3, "/u"), message(3, 4), retention=bounds
    )
    assert (held(state), held(state, "/u"), state.bytes) == ([2, 3], [1], 3 * size)
    state.apply(5, message(2, 5, "/u"))
    state.apply(6, message(3, 6, "/u"))
    state.apply(7, message(1, 7, "/v"))
    assert (held(state), held(state, "/u"), held(state, "/v")) == ([], [2, 3], [1])
    state.apply(8, message(1, 8, "/w", payload=bytes(4 * size)))
    assert [held(state, topic) for topic in ("/t", "/u", "/v", "/w")] == [[], [], [], []]
    assert (state.bytes, state.head("/w")) == (0, Position(2, 1))


def test_forgotten_topics_are_no_victims() -> None:
    """Eviction passes over topics that were forgotten since they were listed."""
    size = message(1, 1).size
    bounds = Retention(
        group_bytes=2 * size, dedup_ttl_ms=40, topic_ttl_ms=40, max_age_ms=90, last_value=True
    )
    state = after(
        message(1, 1), message(1, 20, "/u"), message(1, 21, "/v"), message(1, 60, "/w"),
        message(1, 62, "/x"), message(1, 63, "/y"), retention=bounds,
    )  # fmt: skip
    assert [held(state, topic) for topic in ("/w", "/x", "/y")] == [[], [1], [1]]


def test_the_agenda_stays_small_and_right() -> None:
    """A topic that wakes and sleeps again and again neither fills the agenda nor leaves it."""
    state = after(message(1, 0, "/idle"), message(1, 1), retention=Retention(max_age_ms=10))
    for n in range(1, 300):
        state.apply(2 * n + 1, tick(20 * n))
        assert held(state) == []
        state.apply(2 * n + 2, message(n + 1, 20 * n + 1))
        assert len(state._agenda) <= 2 * 2 + 64


def test_the_agenda_drops_what_it_no_longer_needs() -> None:
    """An item that an earlier one replaced goes when its time comes, and is not renewed."""
    state = after(message(1, 0))
    for n in range(1, 50):
        state.apply(2 * n, tick(20 * n))
        state.apply(2 * n + 1, message(n + 1, 20 * n + 1))
        assert len(state._agenda) <= 4


def test_a_topic_travels_as_it_is() -> None:
    """What one member sends of a topic, the other then knows, and would send the same."""
    source = after(message(1, 1, pid="p"), message(2, 2, pid="q"), message(1, 3, "/u"))
    target = GroupState(SHORT)
    target.begin(3, 2, 3)
    for name in source.snapshot_names():
        state = source.topic_state(name)
        assert state is not None
        target.install(state)
        target.install(state)
        assert target.topic_state(name) == state
    assert repr(target) == repr(source)
    assert target.due(12)
    assert not target.due(11)


def test_replay_skips_what_a_topic_already_contains() -> None:
    """Entries up to a topic's own index are part of what was installed."""
    entries = [message(1, 1), message(2, 2), message(3, 3)]
    state = GroupState(SHORT)
    state.install(TopicState("/t", 2, 2, 2, 2, 1, 0, entries[:2], []))
    for idx, entry in enumerate(entries, 1):
        state.apply(idx, entry)
    assert (held(state), state.head("/t"), state.applied) == ([1, 2, 3], Position(2, 3), 3)


def test_a_replay_does_not_lower_the_vacancy() -> None:
    """A topic forgotten in the replay does not hide that the sender forgot another one later."""
    state = GroupState(SHORT)
    state.begin(0, 2, 0)
    state.vacant = 9
    for idx, entry in enumerate([message(1, 1), tick(50), message(1, 51, "/u")], 1):
        state.apply(idx, entry)
    assert (state.vacant, state.topics["/u"].vacant) == (9, 9)


def test_an_installed_topic_may_be_the_oldest() -> None:
    """What came with a transfer is evicted by its own age, not by when it came."""
    bounds = Retention(group_bytes=2 * message(1, 1).size)
    state = after(message(1, 11), message(1, 12, "/u"), message(1, 13, "/v"), retention=bounds)
    assert [held(state, topic) for topic in ("/t", "/u", "/v")] == [[], [1], [1]]
    state.install(TopicState("/w", 1, 2, 1, 5, 1, 0, [message(1, 5, "/w")], []))
    state.apply(4, message(2, 14, "/v"))
    assert [held(state, topic) for topic in ("/u", "/v", "/w")] == [[], [1, 2], []]
