"""Names and places as clients and members write them: topics, positions, groups, ranks, entries."""

from __future__ import annotations

import pytest

from migratory.wire.entry import FIRST, MSG, TEXT, Entry, checksum
from migratory.wire.ids import Boot, Position, group_of, rank, topic_fault


@pytest.mark.parametrize(
    "topic", ["/a", "/scores/football/42", "/tore/münchen", "/a b", "/" + "x" * 254]
)
def test_good_topics(topic: str) -> None:
    """Paths of up to 255 bytes are topics."""
    assert topic_fault(topic) is None


@pytest.mark.parametrize(
    ("topic", "told"),
    [
        ("", "starts with '/'"),
        ("/", "starts with '/'"),
        ("scores", "starts with '/'"),
        ("/" + "x" * 255, "at most 255 bytes"),
        ("/" + "ä" * 128, "at most 255 bytes"),
        ("/a\n", "control characters"),
        ("/a/*", "wildcards"),
        ("/a//b", "empty path segments"),
        ("/a/", "empty path segments"),
        ("/\ud800", "surrogates"),
    ],
)
def test_bad_topics_are_told_why(topic: str, told: str) -> None:
    """Everything else is refused with a reason that a person understands."""
    assert told in str(topic_fault(topic))


def test_positions_order_by_epoch_then_sequence() -> None:
    """A later epoch is later, whatever the sequence."""
    assert Position(2, 1) > Position(1, 9) > Position(1, 8)
    assert str(Position(3, 41)) == "3:41"


def test_boots_show_their_count() -> None:
    """A boot is written as its number and a piece of its uuid."""
    assert str(Boot(3, "abcdef0123")) == "3-abcdef"


def test_groups_and_ranks_are_the_same_everywhere() -> None:
    """The mapping of topics to groups and of groups to members never changes between releases."""
    # The published check value of CRC-32 is that of "123456789": 0xCBF43926.
    assert group_of("123456789", 2**32) == 0xCBF43926
    assert group_of("123456789", 100) == 62
    assert rank(7, ["m-1", "m-2", "m-3"]) == rank(7, ["m-3", "m-1", "m-2"])
    assert sorted(rank(7, ["m-1", "m-2", "m-3"])) == ["m-1", "m-2", "m-3"]


def test_entries_tell_their_flags_and_size() -> None:
    """Flags are readable by name, and the size counts what the entry holds."""
    entry = Entry(1, MSG, 0, 0, "/a", 1, TEXT | FIRST, payload=b"abc")
    assert entry.text
    assert entry.first
    assert entry.size == 64 + 2 + 3
    assert checksum(b"abc") == 0x352441C2
