"""The row of a trace: what members, clients and whoever breaks the cluster write of what happened.

docs/traces.md says what each kind means. A row without a value has no such key. Invariant: which
topics a sampled trace keeps, and how a message is called in it, is a pure function of the topic
and of the payload: all processes keep all rows of a topic, or none.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from hashlib import blake2b

import msgspec


class Row(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False):
    """One thing that happened in one process. Times are microseconds."""

    run: str
    node: str
    boot: int
    proc: str
    t_mono: int
    t_wall: int
    n: int
    kind: str
    group: int | None = None
    topic: str | None = None
    epoch: int | None = None
    seq: int | None = None
    idx: int | None = None
    pid: str | None = None
    pseq: int | None = None
    mid: str | None = None
    sub: str | None = None
    conn: str | None = None
    extra: dict[str, str] | None = None


_encoder = msgspec.json.Encoder()
_decoder = msgspec.json.Decoder(Row)


def encode_rows(rows: Sequence[Row]) -> bytes:
    """The lines of some rows."""
    return _encoder.encode_lines(rows)


def decode_rows(lines: bytes) -> list[Row]:
    """The rows of some lines. The last line may be cut off, where a process was killed."""
    whole = lines[: lines.rfind(b"\n") + 1]
    return _decoder.decode_lines(whole)


def mid_of(payload: str | bytes) -> str:
    """What a message is called in a trace; text is the bytes that it travels as."""
    raw = payload.encode() if isinstance(payload, str) else payload
    return blake2b(raw, digest_size=8).hexdigest()


def flag(value: bool) -> str:
    """How yes and no are written in `extra`."""
    return "true" if value else "false"


def keeps(topic: str, sample: int) -> bool:
    """Whether a trace that samples one topic in `sample` has the rows of this one.

    The topic's group is its whole checksum modulo their number; taking the high half of it here
    keeps the two apart, so that a sample has topics of every group.
    """
    return (zlib.crc32(topic.encode()) >> 16) % sample == 0
