"""Frames between members: whatever is cut, joined or corrupted on the way."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migratory.wire.entry import Entry
from migratory.wire.ids import Boot
from migratory.wire.peer import Ack, App, Commit, Credit, Goodbye, Hello, PeerMessage
from migratory.wire.peer_codec import (
    FRAME_TOO_LARGE,
    FrameBuffer,
    FrameError,
    encode_frames,
)

SAMPLES: list[PeerMessage] = [
    Hello(1, "c", "hash", "a", Boot(3, "u"), "data", 7),
    Goodbye("LEAVING", ""),
    App(1, 0, 5, 9, 4, 8, [Entry(5, 0, 1, 2, "/t", 3, 0, "p", 1, b"x" * 300)]),
    Ack(1, 0, 5, 10),
    Commit(1, 0, 5, 10),
    Credit(12345),
]
frames = st.lists(st.lists(st.sampled_from(SAMPLES), max_size=4), max_size=6)


@given(frames, st.lists(st.integers(1, 200), min_size=1))
def test_frames_survive_any_cutting(groups: list[list[PeerMessage]], cuts: list[int]) -> None:
    """However the stream is cut into reads, the same messages come out in the same order."""
    stream = b"".join(encode_frames(group) for group in groups)
    buffer, got, at, turn = FrameBuffer(), [], 0, 0
    while at < len(stream):
        size = cuts[turn % len(cuts)]
        got += buffer.feed(stream[at : at + size])
        at, turn = at + size, turn + 1
    assert got == [message for group in groups for message in group]
    assert buffer.consumed == len(stream)


@given(st.binary(max_size=200))
def test_any_bytes_give_messages_or_a_named_error(noise: bytes) -> None:
    """Bytes from a stranger never raise anything but a FrameError with a code."""
    with contextlib.suppress(FrameError):
        FrameBuffer(limit=4096).feed(noise)
    with contextlib.suppress(FrameError):
        FrameBuffer(limit=4096).feed(len(noise).to_bytes(4, "big") + noise)


def test_a_frame_over_the_limit_is_refused_by_its_announcement() -> None:
    """A length above the limit is refused before any of it is stored."""
    with pytest.raises(FrameError, match=FRAME_TOO_LARGE):
        FrameBuffer(limit=100).feed((101).to_bytes(4, "big"))


def test_messages_that_do_not_fit_one_frame_are_split() -> None:
    """Many messages in one turn become several frames, none above the limit."""
    many: list[PeerMessage] = [SAMPLES[2]] * 20
    stream = encode_frames(many, limit=1000)
    buffer = FrameBuffer(limit=1000)
    assert buffer.feed(stream) == many


def test_one_message_that_fits_no_frame_is_our_own_bug() -> None:
    """A single message above the limit is named instead of sent."""
    with pytest.raises(FrameError, match="one App"):
        encode_frames([SAMPLES[2]], limit=100)
