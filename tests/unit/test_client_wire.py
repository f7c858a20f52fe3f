"""The client protocol's vocabulary: golden frames, refusals, codes, and what members take."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from migratory.wire.client import (
    Acked,
    Connect,
    Message,
    Messages,
    Nacked,
    Publish,
    Sent,
    payload_bytes,
    publications,
    publisher_fault,
)
from migratory.wire.codec import CODECS, JSON, MSGPACK, Codec
from migratory.wire.codes import Code, Duty, WireError
from migratory.wire.entry import FIRST, TEXT, Entry
from migratory.wire.peer import Publication

ROOT = Path(__file__).resolve().parents[2]
BY_NAME = {"json": JSON, "msgpack": MSGPACK}
PID = "0123456789abcdef"

Vector = dict[str, Any]


def vectors(name: str) -> list[Any]:
    """The vectors of a file, as parameters with readable names."""
    rows = json.loads((ROOT / "tests" / "vectors" / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(row, id=f"{row['encoding']}: {row['name']}") for row in rows]


def frame_of(vector: Vector) -> str | bytes:
    """The bytes or the text of a vector."""
    return vector["text"] if vector["encoding"] == "json" else bytes.fromhex(vector["hex"])


def as_bytes(frame: str | bytes) -> bytes:
    """A frame as the bytes that an encoder returns."""
    return frame.encode() if isinstance(frame, str) else frame


@pytest.mark.parametrize("vector", vectors("requests"))
def test_requests_mean_what_the_vectors_say(vector: Vector) -> None:
    """A client's golden frame is understood, and written again bit by bit."""
    codec, frame = BY_NAME[vector["encoding"]], frame_of(vector)
    message = codec.decode(frame)
    assert json.loads(JSON.encode_request(message)) == vector["meaning"]
    assert codec.decode(codec.encode_request(message)) == message
    if vector.get("canonical", True):
        assert codec.encode_request(message) == as_bytes(frame)


@pytest.mark.parametrize("vector", vectors("answers"))
def test_answers_mean_what_the_vectors_say(vector: Vector) -> None:
    """A server's golden frame is understood, and written again bit by bit."""
    codec, frame = BY_NAME[vector["encoding"]], frame_of(vector)
    message = codec.decode_answer(frame)
    assert json.loads(JSON.encode(message)) == vector["meaning"]
    if vector.get("canonical", True):
        assert codec.encode(message) == as_bytes(frame)


@pytest.mark.parametrize("vector", vectors("malformed_requests"))
def test_malformed_requests_are_refused_by_name(vector: Vector) -> None:
    """Each broken frame is refused with the code that its vector names, and with a reason."""
    with pytest.raises(WireError) as caught:
        BY_NAME[vector["encoding"]].decode(frame_of(vector))
    assert caught.value.code is Code[vector["code"]]
    assert caught.value.detail


@pytest.mark.parametrize("codec", [JSON, MSGPACK], ids=["json", "msgpack"])
def test_a_frame_of_entries_equals_the_frame_of_messages(codec: Codec) -> None:
    """What the front encodes from entries is exactly the MESSAGES frame of the vocabulary."""
    entries = [
        Entry(3, 0, 1700, 1, "/a", 7, TEXT, payload="ä".encode()),
        Entry(4, 0, 1701, 2, "/a", 9, FIRST, payload=b"\xff"),
    ]
    expected = Messages("/a", [Message(3, 7, 1700, "ä"), Message(4, 9, 1701, b"\xff", first=True)])
    assert codec.messages("/a", entries) == codec.encode(expected)
    assert codec.decode_answer(codec.messages("/a", entries)) == expected


def test_codecs_are_found_by_subprotocol() -> None:
    """The names that a handshake carries lead to the codecs, and say which frames are text."""
    assert CODECS == {"migratory.v1.json": JSON, "migratory.v1.msgpack": MSGPACK}
    assert JSON.text
    assert not MSGPACK.text


def test_text_frames_are_refused_where_binary_ones_are_due() -> None:
    """MessagePack never comes as text."""
    for decode in (MSGPACK.decode, MSGPACK.decode_answer):
        with pytest.raises(WireError, match="BAD_FRAME"):
            decode("{}")


def test_a_server_is_not_believed_either() -> None:
    """Broken answers are refused as well, so that a client can leave such a server."""
    for codec, frame in (
        (JSON, b'{"type":"messages","topic":"/a","messages":[{"epoch":1,"sequence":1,"ts":1}]}'),
        (JSON, b'{"type":"gap"}'),
        (MSGPACK, b"\x93\x02\xa2/a\x91\x94\x01\x01\x01\x05"),
        (MSGPACK, b"\x05"),
    ):
        with pytest.raises(WireError):
            codec.decode_answer(frame)


def test_the_base_of_codecs_is_a_shape_only() -> None:
    """A codec that lacks a method says so instead of doing nothing."""
    bare = Codec()
    for call in (
        lambda: bare.decode(b""),
        lambda: bare.encode(Nacked(1, 0, "RETRY")),  # type: ignore[arg-type]
        lambda: bare.messages("/a", []),
        lambda: bare.encode_request(Connect(1)),
        lambda: bare.decode_answer(b""),
    ):
        with pytest.raises(NotImplementedError):
            call()


def test_a_token_never_shows() -> None:
    """The repr of CONNECT, which ends up in logs, leaves the token out."""
    assert "secret" not in repr(Connect(1, "secret", "me"))


def test_publications_are_what_the_engine_takes() -> None:
    """Each message becomes a Publication whose number tells its place in the frame."""
    frame = Publish(9, PID, [Sent("/a", "ä", 1, 2), Sent("/b", b"\x01", 5)])
    accepted, refused = publications(frame, 100, 64)
    assert accepted == [
        Publication("/a", "ä".encode(), TEXT, PID, 1, 100, 2),
        Publication("/b", b"\x01", 0, PID, 5, 101, 0),
    ]
    assert refused == []


def test_publications_that_cannot_be_are_refused_one_by_one() -> None:
    """A bad topic or a large payload is refused by its index; the others go on."""
    sent = [Sent("a", "x", 1, 3), Sent("/a", "xxxxx", 1, 4), Sent("/a", "xxxx", 2)]
    accepted, refused = publications(Publish(9, PID, sent), 100, 4)
    assert [publication.ref for publication in accepted] == [102]
    assert [(r.id, r.index, r.code, r.rewind) for r in refused] == [
        (9, 0, "BAD_TOPIC", 3),
        (9, 1, "TOO_LARGE", 4),
    ]
    assert "at most 4 bytes" in refused[1].message


def test_payloads_are_bytes_at_last() -> None:
    """Text is UTF-8; bytes stay what they are."""
    assert payload_bytes("ä") == b"\xc3\xa4"
    assert payload_bytes(b"\xff") == b"\xff"


def test_publisher_ids_are_long_enough() -> None:
    """A pid of 16 to 36 harmless characters is good, another one is told why."""
    assert publisher_fault(PID) is None
    assert "16 to 36" in str(publisher_fault("short"))


def test_the_hundred_of_a_number_is_the_duty() -> None:
    """A client knows its duty also for codes of later releases."""
    assert Duty.of(4099) is Duty.RETRY
    assert Duty.of(4199) is Duty.ELSEWHERE
    assert Duty.of(4299) is Duty.STOP
    assert Duty.of(1006) is None
    assert Code.BEHIND.duty is Duty.ELSEWHERE


def test_codes_are_found_by_name_and_number() -> None:
    """Each code has one number and one name; unknown ones are None."""
    assert len({code.number for code in Code}) == len(Code)
    for code in Code:
        assert Code.named(code.name) is code
        assert Code.numbered(code.number) is code
        assert code.sentence.endswith(".")
    assert Code.named("NEVER_HEARD") is None
    assert Code.numbered(4298) is None


def test_the_document_lists_every_code() -> None:
    """docs/protocol.md has the table of codes as it is in the source."""
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (4\d\d\d) \| ([A-Z_]+) \| (.+) \|$", text, re.MULTILINE)
    assert rows == [(str(code.number), code.name, code.sentence) for code in Code]


def test_clauses_that_code_cites_exist() -> None:
    """Every `PROTOCOL n.m` in the source is a clause of docs/protocol.md."""
    text = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    clauses = set(re.findall(r"^\*\*(\d+\.\d+)\*\*", text, re.MULTILINE))
    for folder in ("migratory", "client_sdk"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            for cited in re.findall(r"PROTOCOL ((?:\d+\.\d+(?:, )?)+)", path.read_text("utf-8")):
                for clause in cited.rstrip(", ").split(", "):
                    assert clause in clauses, f"{path.name} cites {clause}"


def test_acks_may_leave_their_default_out() -> None:
    """An acknowledgement without the last element is no duplicate."""
    answer = JSON.decode_answer('{"type":"ack","results":[[1,0,2,3]]}')
    assert answer.results == [Acked(1, 0, 2, 3)]  # type: ignore[union-attr]
