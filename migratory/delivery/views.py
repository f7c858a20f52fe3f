"""What delivery needs to see of a topic group. `cache.state.GroupState` is one such view.

Reading is all that happens here: nothing in delivery changes a group.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec

from migratory.wire.entry import Entry


class HistoryView(Protocol):
    """The cached messages of one topic, contiguous; empty when first_seq is last_seq + 1."""

    @property
    def first_seq(self) -> int:
        """The sequence of the first cached message, or of the next one when none is cached."""

    def epoch_of(self, seq: int, /) -> int | None:
        """The epoch of a cached message, None when it is not cached."""

    def after(self, seq: int, max_bytes: int, /) -> list[Entry]:
        """Cached messages after a sequence: as many as fit, and at least one if there is any."""


class TopicView(Protocol):
    """A topic's head (epoch, seq), where this incarnation of it started, and its history."""

    @property
    def epoch(self) -> int:
        """The epoch of the last message."""

    @property
    def seq(self) -> int:
        """The sequence of the last message."""

    @property
    def start(self) -> int:
        """The first sequence of this incarnation of the topic."""

    @property
    def vacant(self) -> int:
        """Positions at or above it lost nothing before `start`."""

    @property
    def history(self) -> HistoryView:
        """What is cached of the topic."""


class StateView(Protocol):
    """The applied state of a group."""

    @property
    def topics(self) -> Mapping[str, TopicView]:
        """The topics that are not forgotten."""

    @property
    def epoch(self) -> int:
        """The epoch of the last applied entry."""

    @property
    def vacant(self) -> int:
        """The last index at which a topic was forgotten, 0 for never."""


class GroupView(msgspec.Struct, frozen=True):
    """A group as it is now at this member. `refusal` names why it is not served, if it is not."""

    g: int
    floor: int
    state: StateView
    refusal: str = ""


Groups = Callable[[str], GroupView]  # from a topic to its group
