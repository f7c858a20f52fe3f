"""Where a subscription goes on: the outcome of a SUBSCRIBE, a pure function of state and position.

The rules stand in the order in which they are tried, and the order matters: a position of a lost
history must not be compared with the present one, and a cached sequence proves more than a range.
"""

from __future__ import annotations

from typing import NamedTuple

from migratory.delivery.views import GroupView, HistoryView, TopicView
from migratory.wire.ids import Position
from migratory.wire.shard import (
    DIVERGED,
    HISTORY_LOST,
    UNKNOWN_POSITION,
    Fresh,
    Gap,
    Outcome,
    Reset,
    Resumed,
)


class Start(NamedTuple):
    """What is told to the subscriber, and the position from which it is then served."""

    outcome: Outcome
    position: Position


def head(view: GroupView, topic: str) -> Position:
    """The position of somebody who has seen everything of a topic, also of an unknown one."""
    record = view.state.topics.get(topic)
    if record is None:
        # Before the first entry is applied, the floor is the least epoch that is not a lost one.
        return Position(max(view.state.epoch, view.floor), view.state.vacant)
    return Position(record.epoch, record.seq)


def fresh(view: GroupView, topic: str, depth: int) -> Start:
    """A first subscription: at the head, or up to `depth` cached messages before it."""
    record = view.state.topics.get(topic)
    if record is None or depth <= 0:
        return Start(Fresh(), head(view, topic))
    history = record.history
    seq = max(record.seq - depth, history.first_seq - 1)
    return Start(Fresh(), _before(record, history, seq))


def resume(view: GroupView, topic: str, asked: Position, *, confirmed: bool) -> Start | None:
    """Apply the rules of resumption; None: first find out whether this member is behind.

    `confirmed`: a barrier was applied here after the subscriber asked, so this member knows
    everything that anybody could have been told before.
    """
    here = head(view, topic)
    if asked.epoch < view.floor:  # 1
        return Start(Reset(HISTORY_LOST), here)
    record = view.state.topics.get(topic)
    # Whoever has seen a later epoch may have it from a history that replaced this one.
    later = asked.epoch > here.epoch
    if record is None:
        if asked.sequence == here.sequence and not later:
            return Start(Resumed(0), asked)  # nothing was there, and nothing has come since
    elif asked.sequence <= record.seq and (confirmed or not later):
        return _known(record, asked)
    if confirmed:  # 5
        return Start(Reset(UNKNOWN_POSITION), here)
    return None


def _known(record: TopicView, asked: Position) -> Start:
    """Rules 2 to 4, for a position that is not ahead of the head."""
    seq, history = asked.sequence, record.history
    first = history.first_seq
    if asked.epoch > record.epoch:  # no position of this history, whether it is cached or not
        return Start(Reset(DIVERGED), Position(record.epoch, record.seq))
    if seq >= first or seq == record.seq:  # 2
        lowest = record.epoch if seq == record.seq else history.epoch_of(seq) or 0
        highest = lowest if seq == record.seq else history.epoch_of(seq + 1) or record.epoch
        # The epoch of the next message will do too: see `_before`.
        if lowest <= asked.epoch <= highest:
            return Start(Resumed(record.seq - seq), asked)
        return Start(Reset(DIVERGED), Position(record.epoch, record.seq))
    if record.vacant <= seq < record.start:
        seq = record.start - 1  # no message existed between that position and the start
    if seq + 1 >= first:  # 3
        return Start(Resumed(record.seq - seq), Position(asked.epoch, seq))
    gap = Gap(asked.sequence + 1, first, record.seq)
    return Start(gap, _before(record, history, first - 1))  # 4


def _before(record: TopicView, history: HistoryView, seq: int) -> Position:
    """The position at `seq`, which is cached, the head, or the one before the first cached.

    Of the last one nobody here knows the epoch any more; that of its successor stands in, and a
    member that knows better takes it for what it is.
    """
    return Position(history.epoch_of(max(seq, history.first_seq)) or record.epoch, seq)
