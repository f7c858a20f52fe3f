"""Frames between members: four bytes of length (big-endian), then a MessagePack array of messages.

Invariants: a frame is never larger than its limit, in both directions; whatever bytes come in, the
result is messages or a FrameError with a code that the other side can be told.
"""

from __future__ import annotations

import msgspec

from migratory.wire.peer import PeerMessage

PREFIX = 4
MAX_FRAME = 16 << 20

CORRUPT_FRAME = "CORRUPT_FRAME"
FRAME_TOO_LARGE = "FRAME_TOO_LARGE"

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[list[PeerMessage]] = msgspec.msgpack.Decoder(list[PeerMessage])


class FrameError(Exception):
    """What came in is not a frame of this protocol; `code` names the reason for the Goodbye."""

    def __init__(self, code: str, detail: str) -> None:
        super().__init__(f"{code}: {detail}")
        self.code = code
        self.detail = detail


def encode_frames(messages: list[PeerMessage], limit: int = MAX_FRAME) -> bytes:
    """All messages in order, in one frame, or in several where one would be too large."""
    body = _encoder.encode(messages)
    if len(body) <= limit:
        return len(body).to_bytes(PREFIX, "big") + body
    if len(messages) == 1:
        kind = type(messages[0]).__name__
        raise FrameError(FRAME_TOO_LARGE, f"one {kind} has {len(body)} bytes, at most {limit}")
    half = len(messages) // 2
    return encode_frames(messages[:half], limit) + encode_frames(messages[half:], limit)


class FrameBuffer:
    """Turns the bytes of one connection into messages."""

    __slots__ = ("_need", "_rest", "consumed", "limit")

    def __init__(self, limit: int = MAX_FRAME) -> None:
        self.limit = limit
        self.consumed = 0  # bytes of complete frames so far
        self._rest = bytearray()
        self._need = PREFIX  # how much of the rest is needed before anything can be done

    def feed(self, chunk: bytes) -> list[PeerMessage]:
        """Take what was read and return the messages of all frames that are complete now."""
        data: bytes | bytearray = chunk
        if self._rest:
            self._rest += chunk
            if len(self._rest) < self._need:
                return []
            data = self._rest
        messages: list[PeerMessage] = []
        used = self._decode(data, messages)
        self.consumed += used
        if used < len(data):
            self._rest = bytearray(data[used:])
        elif self._rest:
            self._rest = bytearray()
        return messages

    def _decode(self, data: bytes | bytearray, messages: list[PeerMessage]) -> int:
        """Add the messages of all complete frames; return how many bytes those were."""
        view = memoryview(data)
        size = len(data)
        begin = 0
        while True:
            body = begin + PREFIX
            if size < body:
                self._need = PREFIX
                return begin
            length = int.from_bytes(view[begin:body], "big")
            if length > self.limit:
                raise FrameError(FRAME_TOO_LARGE, f"{length} bytes announced, at most {self.limit}")
            end = body + length
            if size < end:
                self._need = PREFIX + length
                return begin
            try:
                messages.extend(_decoder.decode(view[body:end]))
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
                raise FrameError(CORRUPT_FRAME, str(error)) from error
            begin = end
