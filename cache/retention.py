"""How much a group remembers, and for how long.

Times are milliseconds of group time: they count the group's own life, not a wall clock's. What
expires by `dedup_ttl_ms` and `topic_ttl_ms` decides how later messages are stamped, so those two
must be equal on all members; the others only decide how far back a member can answer.
"""

from __future__ import annotations

import msgspec


class Retention(msgspec.Struct, frozen=True):
    """The bounds of histories, publishers, heads and logs."""

    max_messages: int = 1000  # history of one topic
    max_age_ms: int = 180_000
    topic_bytes: int = 1 << 20  # history of one topic; its newest message is kept in any case
    group_bytes: int = 16 << 20  # all histories of one group; the oldest messages go first
    last_value: bool = False  # whether the last message of a topic may outlive max_age_ms
    dedup_ttl_ms: int = 900_000  # a publisher on a topic, after its last message there
    topic_ttl_ms: int = 86_400_000  # the head of a topic, after its last message
    log_entries: int = 10_000  # committed entries kept for members that are behind
    log_bytes: int = 8 << 20
    publishers_per_group: int = 100_000  # (publisher, topic) pairs; new ones are refused beyond

    def __post_init__(self) -> None:
        if self.topic_ttl_ms < self.dedup_ttl_ms:
            raise ValueError("a topic must be remembered at least as long as its publishers")
        if self.max_messages < 1:
            raise ValueError("a history holds at least one message")
