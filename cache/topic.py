"""What a member knows of one topic: its head, its history and its recent publishers.

Two million of these live in one member, so they are flat: a single message and a single publisher
stand in the record themselves, a container appears with the second and goes when it is no longer
needed.

An incarnation is the life of a topic between two forgettings. `start` is its first sequence and
`vacant` the group's `vacant` (see `cache.state`) when it began: a position in [vacant, start) was
handed out when the topic did not exist and lost nothing since.
"""

from __future__ import annotations

import msgspec

from cache.history import History, size_of
from cache.retention import Retention
from migratory.wire.entry import Entry
from migratory.wire.peer import Publisher, TopicState

NEVER = 1 << 62  # later than any group time


class TopicRecord(msgspec.Struct, gc=False, eq=False):
    """One topic. `idx`, `epoch`, `seq` and `gt` are those of its last message."""

    idx: int
    epoch: int
    seq: int
    gt: int
    start: int
    vacant: int
    held: Entry | History | None = None  # to be read as `history`
    dedup: Publisher | dict[str, Publisher] | None = None  # a dict is in the order of its gt
    wake: int = NEVER  # nothing of this topic expires before the group's time is later than that

    # ---- history -------------------------------------------------------------------------------

    @property
    def history(self) -> History:
        """The messages held; a view made for the moment unless there are two or more."""
        held = self.held
        if isinstance(held, History):
            return held
        return History.of([] if held is None else [held], self.seq + 1)

    def hold(self, entry: Entry, retention: Retention) -> int:
        """Add a message to the history; return the bytes gained."""
        held = self.held
        if held is None:
            self.held = entry
            return size_of(entry)
        if not isinstance(held, History):
            if held.gt < self.gt - retention.max_age_ms:
                # It outlived its age as the last value, and is the last one no more.
                self.held = entry
                return size_of(entry) - size_of(held)
            self.held = held = History.of([held], entry.seq)
        gained = held.append(entry, retention.max_messages, retention.topic_bytes)
        if len(held.slots) - held.skip == 1:
            self.held = entry
        return gained

    def drop(self) -> int:
        """Drop the oldest message held; return its bytes."""
        held = self.held
        assert held is not None, f"nothing to drop from {self}"
        if not isinstance(held, History):
            self.held = None
            return size_of(held)
        freed = held.drop()
        if len(held.slots) - held.skip == 1:
            self.held = held.slots[held.skip]
        return freed

    def empty(self) -> int:
        """Drop all messages; return their bytes."""
        freed = self.history.bytes
        self.held = None
        return freed

    @property
    def oldest(self) -> Entry | None:
        """The oldest message held."""
        held = self.held
        return held.slots[held.skip] if isinstance(held, History) else held

    def expire_messages(self, gt: int, retention: Retention) -> int:
        """Drop the messages that are too old at a group time; return their bytes."""
        before = gt - retention.max_age_ms
        held, freed = self.held, 0
        if isinstance(held, History):
            freed = held.expire(before)
            if len(held.slots) - held.skip > 1:
                return freed
            self.held = held = held.slots[-1]
        if held is not None and held.gt < before and not retention.last_value:
            self.held = None
            freed += size_of(held)
        return freed

    def _messages_last_until(self, retention: Retention) -> int:
        held = self.held
        if isinstance(held, History):
            return held.slots[held.skip].gt + retention.max_age_ms
        return NEVER if held is None or retention.last_value else held.gt + retention.max_age_ms

    # ---- publishers ----------------------------------------------------------------------------

    def publisher(self, pid: str) -> Publisher | None:
        """The last message of a publisher here, as long as it is remembered."""
        dedup = self.dedup
        if isinstance(dedup, dict):
            return dedup.get(pid)
        return dedup if dedup is not None and dedup.pid == pid else None

    def publishers(self) -> list[Publisher]:
        """All publishers remembered, the one silent for longest first."""
        dedup = self.dedup
        if isinstance(dedup, dict):
            return list(dedup.values())
        return [] if dedup is None else [dedup]

    def remember(self, publisher: Publisher) -> bool:
        """Note the latest message of a publisher; return whether the publisher is a new one."""
        dedup = self.dedup
        if isinstance(dedup, dict):
            known = dedup.pop(publisher.pid, None)
            dedup[publisher.pid] = publisher
            return known is None
        if dedup is None or dedup.pid == publisher.pid:
            self.dedup = publisher
            return dedup is None
        self.dedup = {dedup.pid: dedup, publisher.pid: publisher}
        return True

    def expire_publishers(self, gt: int, retention: Retention) -> int:
        """Forget the publishers silent for too long at a group time; return how many."""
        expired = 0
        while self._publishers_last_until(retention) < gt:
            dedup = self.dedup
            if isinstance(dedup, dict):
                del dedup[next(iter(dedup))]
                if len(dedup) == 1:
                    self.dedup = next(iter(dedup.values()))
            else:
                self.dedup = None
            expired += 1
        return expired

    def recall(self, publishers: list[Publisher]) -> None:
        """Remember exactly these publishers, given in the order of their group times."""
        if len(publishers) > 1:
            self.dedup = {publisher.pid: publisher for publisher in publishers}
        else:
            self.dedup = publishers[0] if publishers else None

    def _publishers_last_until(self, retention: Retention) -> int:
        dedup = self.dedup
        if dedup is None:
            return NEVER
        oldest = next(iter(dedup.values())) if isinstance(dedup, dict) else dedup
        return oldest.gt + retention.dedup_ttl_ms

    # ---- the whole -----------------------------------------------------------------------------

    def lasts_until(self, retention: Retention) -> int:
        """The last group time at which nothing of this topic has expired."""
        until = self.gt + retention.topic_ttl_ms
        messages = self._messages_last_until(retention)
        publishers = self._publishers_last_until(retention)
        return min(until, messages, publishers)

    def state(self, topic: str) -> TopicState:
        """The record in the form in which it travels between members."""
        return TopicState(
            topic=topic,
            idx=self.idx,
            epoch=self.epoch,
            seq=self.seq,
            gt=self.gt,
            start=self.start,
            vacant=self.vacant,
            entries=self.history.after(0, NEVER),
            publishers=self.publishers(),
        )

    @classmethod
    def of(cls, state: TopicState, retention: Retention) -> TopicRecord:
        """The record that travelled; its history is cut to this member's bounds."""
        record = cls(state.idx, state.epoch, state.seq, state.gt, state.start, state.vacant)
        record.recall(state.publishers)
        history = History.of(state.entries, state.seq + 1)
        history.bound(retention.max_messages, retention.topic_bytes)
        record.held = history if len(history) > 1 else history.oldest if len(history) else None
        return record

    def __repr__(self) -> str:
        return (
            f"<Topic at {self.epoch}:{self.seq} idx={self.idx} gt={self.gt} start={self.start}"
            f" vacant={self.vacant} {self.history!r} publishers={len(self.publishers())}>"
        )
