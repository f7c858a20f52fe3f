"""Any bytes, from anywhere: decoding returns a message or raises WireError, and nothing else."""

from __future__ import annotations

import contextlib

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from migratory.wire.client import MAX_NUMBER, Message, Messages, Publish, Sent
from migratory.wire.codec import JSON, MSGPACK, Codec
from migratory.wire.codes import WireError

NUMBERS = st.integers(0, MAX_NUMBER)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
PAYLOADS = TEXTS | st.binary()
LEAVES = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | TEXTS
TREES = st.recursive(
    LEAVES | st.binary(), lambda t: st.lists(t) | st.dictionaries(TEXTS, t), max_leaves=12
)
KEYS = st.sampled_from(
    ["type", "id", "topics", "topic", "position", "messages", "pid", "data", "n"]
)
TYPES = st.sampled_from(["connect", "subscribe", "unsubscribe", "publish", "ping", "ack", "gap"])


def survives(codec: Codec, frame: bytes) -> None:
    """Both directions take the bytes or refuse them by name."""
    for decode in (codec.decode, codec.decode_answer):
        with contextlib.suppress(WireError):
            decode(frame)


@given(st.binary())
def test_noise_is_refused(noise: bytes) -> None:
    """Random bytes never cause another error."""
    survives(JSON, noise)
    survives(MSGPACK, noise)


@given(st.dictionaries(KEYS, TREES | TYPES) | st.lists(TREES | st.integers(0, 3), max_size=5))
def test_well_formed_nonsense_is_refused(tree: object) -> None:
    """Well-formed frames with wrong contents never cause another error."""
    survives(MSGPACK, msgspec.msgpack.encode(tree))
    survives(JSON, msgspec.json.encode(tree))


@given(st.lists(st.builds(Sent, TEXTS, PAYLOADS, st.integers(1, MAX_NUMBER), NUMBERS), min_size=1))
def test_publications_survive_both_encodings(sent: list[Sent]) -> None:
    """Whatever is published is read again exactly, text as text and bytes as bytes."""
    frame = Publish(1, "0123456789abcdef", sent)
    for codec in (JSON, MSGPACK):
        assert codec.decode(codec.encode_request(frame)) == frame


@given(TEXTS, st.lists(st.builds(Message, NUMBERS, NUMBERS, NUMBERS, PAYLOADS, st.booleans())))
def test_messages_survive_both_encodings(topic: str, messages: list[Message]) -> None:
    """Whatever is delivered is read again exactly."""
    frame = Messages(topic, messages)
    for codec in (JSON, MSGPACK):
        assert codec.decode_answer(codec.encode(frame)) == frame
