"""WebSocket frames (RFC 6455): a strict parser for what clients send, headers for what is sent.

Prior art: `websockets.protocol.Protocol`, which costs six times as much per small frame (a
generator per frame, an object for each). A publisher's single-message frames are the hot path of
a member, and many of them come in one read; so this is one loop over the bytes of a read, with
everything uncommon moved out of it. Masking is done by the C code of `websockets`.

Refused: extensions (no bit may be reserved for one), unmasked frames, lengths that are not in
their shortest form, fragmented control frames, text that is not UTF-8.
"""

from __future__ import annotations

from struct import Struct
from typing import Protocol

from websockets.speedups import apply_mask

from migratory.front.connection import Connection
from migratory.wire.codes import Code, WireError

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0x0, 0x1, 0x2, 0x8, 0x9, 0xA
FIN = 0x80
_MASKED = 0x80
_SHORT, _LONG = Struct("!BBH").pack, Struct("!BBQ").pack
_CONTROLS = (FIN | CLOSE, FIN | PING, FIN | PONG)


class Frames(Protocol):
    """Where parsed frames go. Setting `stopped` on the connection suspends the parser."""

    def message(self, conn: Connection, payload: bytes, /) -> None:
        """A whole message, of the kind that the connection's encoding has."""

    def control(self, conn: Connection, opcode: int, payload: bytes, /) -> None:
        """A CLOSE, PING or PONG."""


def frame(opcode: int, payload: bytes) -> bytes:
    """An unmasked frame, as servers send them."""
    size = len(payload)
    if size < 126:
        return bytes((FIN | opcode, size)) + payload
    if size < 65536:
        return _SHORT(FIN | opcode, 126, size) + payload
    return _LONG(FIN | opcode, 127, size) + payload


def close_frame(number: int, reason: str) -> bytes:
    """A CLOSE with a number and a short reason."""
    return frame(CLOSE, number.to_bytes(2, "big") + reason.encode()[:123])


def parse(conn: Connection, data: bytes, to: Frames, fragments: int) -> None:
    """Hand on every complete frame of `data`; the rest becomes the connection's tail.

    Raises WireError at the first byte that breaks the rules; nothing after it is looked at.
    """
    pos, end, need = 0, len(data), 0
    whole, message = conn.whole, to.message
    while end - pos > 1:
        size = data[pos + 1] - _MASKED
        body = pos + 6
        if size > 125:
            if size == 126:
                size = data[pos + 2] << 8 | data[pos + 3] if end - pos > 3 else -1
                body, least = pos + 8, 126
            else:
                size = int.from_bytes(data[pos + 2 : pos + 10], "big") if end - pos > 9 else -1
                body, least = pos + 14, 65536
            if size < least:
                if size < 0:
                    break  # the length is not there yet
                raise WireError(Code.BAD_FRAME, "a WebSocket length is sent in its shortest form")
            if size > conn.limit:  # read here, since CONNECT may have come just before
                raise _too_large(conn, size)
        elif size < 0:
            raise WireError(Code.BAD_FRAME, "a client masks its WebSocket frames")
        first = data[pos]
        common = first == whole and conn.fragments is None
        if not common:
            _check(conn, first, size)
        stop = body + size
        if stop > end:
            need = stop - pos
            break
        payload = apply_mask(data[body:stop], data[body - 4 : body])
        pos = stop
        if common:
            message(conn, payload)
        else:
            _uncommon(conn, first, payload, to, fragments)
        if conn.stopped:
            break
    if pos < end:
        conn.tail, conn.need = bytearray(data[pos:]), need


def _check(conn: Connection, first: int, size: int) -> None:
    """Refuse a header that cannot be right, before its payload is waited for."""
    if first & 0x70:
        raise WireError(Code.BAD_FRAME, "no WebSocket extension was agreed on")
    opcode = first & 0x0F
    if opcode >= CLOSE:
        if first not in _CONTROLS or size > 125:
            raise WireError(Code.BAD_FRAME, "no such WebSocket control frame")
    elif opcode == CONTINUATION:
        if conn.fragments is None:
            raise WireError(Code.BAD_FRAME, "a WebSocket continuation continues nothing")
    elif opcode > BINARY:
        raise WireError(Code.BAD_FRAME, "no such WebSocket opcode")
    elif conn.fragments is not None:
        raise WireError(Code.BAD_FRAME, "a fragmented WebSocket message was not finished")
    elif opcode != conn.whole & 0x0F:  # PROTOCOL 2.1
        kind = "text" if conn.codec.text else "binary"
        raise WireError(Code.BAD_FRAME, f"send {kind} frames with this subprotocol")


def _uncommon(conn: Connection, first: int, payload: bytes, to: Frames, fragments: int) -> None:
    """A control frame or a fragment, its header being checked."""
    opcode = first & 0x0F
    if opcode >= CLOSE:
        to.control(conn, opcode, payload)
        return
    parts = conn.fragments
    if parts is None:
        parts = conn.fragments = []
    parts.append(payload)
    if len(parts) > fragments:
        raise WireError(Code.BAD_FRAME, f"a message has at most {fragments} WebSocket fragments")
    # Counted anew each time: there are few parts, and nothing else would use the sum.
    size = sum(map(len, parts))
    if size > conn.limit:
        raise _too_large(conn, size)
    if first & FIN:
        conn.fragments = None
        to.message(conn, b"".join(parts))


def _too_large(conn: Connection, size: int) -> WireError:
    return WireError(Code.FRAME_TOO_LARGE, f"{size} bytes where {conn.limit} are accepted")


def close_number(payload: bytes) -> int:
    """The number of a client's CLOSE, 1005 when it has none; WireError when it may not be sent."""
    if not payload:
        return 1005
    number = int.from_bytes(payload[:2], "big")
    private = 3000 <= number <= 4999
    if len(payload) < 2 or not (private or number in _CLOSE_NUMBERS):
        raise WireError(Code.BAD_FRAME, "no such WebSocket close code")
    checked_text(payload[2:])
    return number


_CLOSE_NUMBERS = {1000, 1001, 1002, 1003, 1007, 1008, 1009, 1010, 1011, 1012, 1013, 1014}


def checked_text(payload: bytes) -> None:
    """Refuse a text message that is not UTF-8."""
    try:
        payload.decode()
    except UnicodeDecodeError:
        raise WireError(Code.BAD_FRAME, "a WebSocket text is UTF-8") from None
