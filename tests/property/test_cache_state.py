"""The applied state of a group against a twin that looks through everything at every entry."""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from hypothesis import event, given, settings
from hypothesis import strategies as st

from cache.retention import Retention
from cache.state import GroupState
from migratory.wire.entry import FIRST, MSG, TICK, Entry, checksum
from migratory.wire.peer import Publisher, TopicState

TOPICS = ["/a", "/b", "/c/longer", "/d"]
QUICK = settings(max_examples=250, deadline=None)


class Head(NamedTuple):
    """What must be equal on all members about a topic."""

    idx: int
    epoch: int
    seq: int
    gt: int
    start: int


class Twin:
    """Plain lists and dictionaries, looked through from end to end whenever something is asked."""

    def __init__(self, retention: Retention) -> None:
        self.retention = retention
        self.idx = self.gt = self.vacant = 0
        self.heads: dict[str, Head] = {}
        self.vacants: dict[str, int] = {}
        self.publishers: dict[tuple[str, str], Publisher] = {}
        self.messages: list[Entry] = []  # of all topics, in the order of the log

    def history(self, topic: str) -> list[Entry]:
        """What is held of a topic."""
        return [entry for entry in self.messages if entry.topic == topic]

    def expired(self, gt: int) -> tuple[set[str], set[tuple[str, str]], list[Entry]]:
        """The topics, publishers and messages whose time is over at a group time."""
        bounds = self.retention
        topics = {t for t, head in self.heads.items() if gt - head.gt > bounds.topic_ttl_ms}
        publishers = {
            pair
            for pair, publisher in self.publishers.items()
            if gt - publisher.gt > bounds.dedup_ttl_ms or pair[0] in topics
        }
        messages = [
            entry
            for entry in self.messages
            if entry.topic in topics
            or (
                gt - entry.gt > bounds.max_age_ms
                and not (bounds.last_value and entry is self.history(entry.topic)[-1])
            )
        ]
        return topics, publishers, messages

    def _expire(self) -> None:
        topics, publishers, messages = self.expired(self.gt)
        if topics:
            self.vacant = self.idx
        self.heads = {t: head for t, head in self.heads.items() if t not in topics}
        self.publishers = {p: v for p, v in self.publishers.items() if p not in publishers}
        self.messages = [entry for entry in self.messages if entry not in messages]

    def apply(self, entry: Entry) -> None:
        """Take in the next entry."""
        self.idx += 1
        self.gt = max(self.gt, entry.gt)
        self._expire()
        if entry.kind != MSG:
            return
        topic = entry.topic
        known = self.heads.get(topic)
        start = entry.seq if known is None or entry.first else known.start
        if known is None or entry.first:
            self.vacants[topic] = self.vacant
            self.messages = [each for each in self.messages if each.topic != topic]
        self.heads[topic] = Head(self.idx, entry.epoch, entry.seq, self.gt, start)
        if entry.pid:
            self.publishers[topic, entry.pid] = Publisher(
                entry.pid, entry.pseq, self.idx, entry.epoch, entry.seq,
                checksum(entry.payload), self.gt,
            )  # fmt: skip
        self.messages.append(entry)
        self._bound(topic)

    def _bound(self, topic: str) -> None:
        bounds = self.retention
        while len(self.history(topic)) > bounds.max_messages or (
            sum(entry.size for entry in self.history(topic)) > bounds.topic_bytes
            and len(self.history(topic)) > 1
        ):
            self.messages.remove(self.history(topic)[0])
        self._expire()  # an old last value is no longer the last one
        while sum(entry.size for entry in self.messages) > bounds.group_bytes:
            del self.messages[0]


@st.composite
def logs(draw: st.DrawFn, steps: st.SearchStrategy[int]) -> list[Entry]:
    """A log as a coordinator might have stamped it, with the given steps of group time.

    The coordinator's view lags behind its own entries, so it may go on with a topic that is
    forgotten by the time its message is applied.
    """
    ttl = Retention(dedup_ttl_ms=40, topic_ttl_ms=40)
    entries: list[Entry] = []
    view, overlay = Twin(ttl), dict[str, int]()
    gt = draw(st.integers(0, 100))
    for idx in range(1, draw(st.integers(1, 60)) + 1):
        gt = max(gt + draw(steps), 0)
        lag = draw(st.integers(0, 3))
        while view.idx < len(entries) - lag:
            view.apply(entries[view.idx])
            done = entries[view.idx - 1]
            if overlay.get(done.topic) == done.seq:
                del overlay[done.topic]
        topic = draw(st.sampled_from([*TOPICS, ""]))
        epoch = 1 + idx // 10
        if not topic:
            entries.append(Entry(epoch, TICK, 0, gt))
            continue
        head = view.heads.get(topic)
        known = overlay.get(topic, head.seq if head is not None else 0)
        anew = not known or draw(st.integers(0, 15)) == 0
        seq = known + 1 if not anew else idx if view.vacant or known else 1
        overlay[topic] = seq
        entries.append(
            Entry(
                epoch, MSG, 0, gt, topic, seq, FIRST if anew else 0,
                draw(st.sampled_from(["", "p", "q", "r"])), idx,
                bytes(draw(st.sampled_from([0, 1, 10, 100]))),
            )
        )  # fmt: skip
    return entries


RETENTIONS = st.builds(
    Retention,
    max_messages=st.sampled_from([1, 2, 3, 1000]),
    max_age_ms=st.integers(0, 60),
    topic_bytes=st.sampled_from([1, 200, 400, 1 << 20]),
    group_bytes=st.sampled_from([300, 600, 1 << 20]),
    last_value=st.booleans(),
    dedup_ttl_ms=st.integers(0, 40),
    topic_ttl_ms=st.just(40),
)
FORWARD = st.sampled_from([1, 2, 3, 5, 20, 50])
ANY_STEP = st.sampled_from([-30, -1, 0, 0, 1, 2, 10, 50])


def heads(state: GroupState) -> dict[str, Head]:
    """The heads of all topics."""
    return {t: Head(r.idx, r.epoch, r.seq, r.gt, r.start) for t, r in state.topics.items()}


def publishers(state: GroupState) -> dict[tuple[str, str], Publisher]:
    """The publishers of all topics."""
    return {(t, p.pid): p for t, r in state.topics.items() for p in r.publishers()}


def assert_sound(state: GroupState) -> None:
    """Counts and bytes are the sums of what is held, and every topic is in the agenda."""
    held = {t: record.history.after(0, 1 << 40) for t, record in state.topics.items()}
    assert state.bytes == sum(entry.size for entries in held.values() for entry in entries)
    assert state.publishers == len(publishers(state))
    for topic, record in state.topics.items():
        seqs = [entry.seq for entry in held[topic]]
        assert seqs == list(range(record.history.first_seq, record.seq + 1))[: len(seqs)]
        assert record.wake <= record.gt + state.retention.topic_ttl_ms
        for publisher in record.publishers():
            assert record.wake <= publisher.gt + state.retention.dedup_ttl_ms
        assert (record.wake, topic) in state._agenda


@QUICK
@given(logs(FORWARD), RETENTIONS, st.integers(0, 100))
def test_a_state_is_what_its_entries_amount_to(
    log: list[Entry], retention: Retention, ahead: int
) -> None:
    """After every entry topics, publishers, histories and what is due are those of the twin."""
    state, twin = GroupState(retention), Twin(retention)
    for idx, entry in enumerate(log, 1):
        state.apply(idx, entry)
        twin.apply(entry)
        assert (state.applied, state.epoch, state.gt) == (idx, entry.epoch, twin.gt)
        assert state.vacant == twin.vacant
        assert heads(state) == twin.heads
        assert publishers(state) == twin.publishers
        for topic, record in state.topics.items():
            assert record.history.after(0, 1 << 40) == twin.history(topic)
            assert record.vacant == twin.vacants[topic]
        assert state.due(twin.gt + ahead) == any(twin.expired(twin.gt + ahead))
        assert_sound(state)
    event(f"forgot topics: {state.vacant > 0}")


@QUICK
@given(logs(ANY_STEP), RETENTIONS)
def test_heads_and_publishers_stand_even_a_time_that_falls(
    log: list[Entry], retention: Retention
) -> None:
    """Whatever the entries' times are, members agree on heads, publishers and forgettings."""
    state, twin = GroupState(retention), Twin(retention)
    for idx, entry in enumerate(log, 1):
        state.apply(idx, entry)
        twin.apply(entry)
        assert_sound(state)
    assert (state.gt, state.vacant) == (twin.gt, twin.vacant)
    assert heads(state) == twin.heads
    assert publishers(state) == twin.publishers


@QUICK
@given(logs(ANY_STEP), RETENTIONS, RETENTIONS, st.data())
def test_a_transfer_ends_in_the_same_state(
    log: list[Entry], retention: Retention, others: Retention, data: st.DataObject
) -> None:
    """Topics read at different moments, and the entries since the first one, make the whole.

    The receiver may hold histories within other bounds: they do not decide anything.
    """
    base = data.draw(st.integers(0, len(log)), label="base")
    source, target = (
        GroupState(retention),
        GroupState(msgspec.structs.replace(others, dedup_ttl_ms=retention.dedup_ttl_ms)),
    )
    for idx, entry in enumerate(log[:base], 1):
        source.apply(idx, entry)
    target.begin(source.applied, source.epoch, source.gt)
    for name in source.snapshot_names():
        for _ in range(data.draw(st.integers(0, 10), label="pause")):
            if source.applied < len(log):
                source.apply(source.applied + 1, log[source.applied])
        if (sent := source.topic_state(name)) is not None:
            target.install(msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=TopicState))
    target.vacant = source.vacant
    for state in (source, target):
        while state.applied < len(log):
            state.apply(state.applied + 1, log[state.applied])
    assert (target.epoch, target.gt, target.vacant) == (source.epoch, source.gt, source.vacant)
    assert heads(target) == heads(source)
    assert publishers(target) == publishers(source)
    for topic, record in target.topics.items():
        assert record.vacant >= source.topics[topic].vacant
        assert {e.seq for e in record.history.after(0, 1 << 40)} <= {
            entry.seq for entry in log if entry.topic == topic
        }
    assert_sound(target)
