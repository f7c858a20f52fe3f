"""Names and places: positions, boots, topics and how topics map to groups and groups to members.

Invariant: everything here is a pure function of its arguments, the same on every member and in
every release, since members and clients compare the results.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

MAX_TOPIC_BYTES = 255
MEMBER_ID = re.compile(r"[a-z0-9-]{1,32}")
PUBLISHER_ID = re.compile(r"[A-Za-z0-9_-]{16,36}")
# Control characters would break logs and terminals; * and # are kept free for topic patterns.
_FORBIDDEN = re.compile(r"[\x00-\x1f\x7f*#]")


class Position(msgspec.Struct, frozen=True, order=True, array_like=True):
    """The place of a message: the epoch it was stamped in and its sequence within the topic."""

    epoch: int
    sequence: int

    def __str__(self) -> str:
        return f"{self.epoch}:{self.sequence}"


class Boot(msgspec.Struct, frozen=True, order=True, array_like=True):
    """One life of a member's process: a counter kept in ZooKeeper, and a random tie-breaker."""

    n: int
    uuid: str

    def __str__(self) -> str:
        return f"{self.n}-{self.uuid[:6]}"


NO_BOOT = Boot(0, "")


def topic_fault(topic: str) -> str | None:
    """Say what is wrong with a topic name, or None when it is a valid one."""
    if not topic.startswith("/") or len(topic) < 2:
        return "a topic is a path that starts with '/', such as /scores/42"
    try:
        size = len(topic.encode())
    except UnicodeEncodeError:
        return "a topic is valid Unicode text without lone surrogates"
    if size > MAX_TOPIC_BYTES:
        return f"a topic has at most {MAX_TOPIC_BYTES} bytes of UTF-8; this one has {size}"
    if _FORBIDDEN.search(topic):
        return "a topic has no control characters and none of the wildcards '*' and '#'"
    if "//" in topic or topic.endswith("/"):
        return "a topic has no empty path segments"
    return None


def group_of(topic: str, groups: int) -> int:
    """The topic group that orders this topic."""
    return zlib.crc32(topic.encode()) % groups


def rank(group: int, members: Iterable[str]) -> list[str]:
    """Members in the order in which they should coordinate a group, the best first."""

    def weight(member: str) -> bytes:
        return blake2b(f"{group}:{member}".encode(), digest_size=8).digest()

    return sorted(members, key=weight, reverse=True)
