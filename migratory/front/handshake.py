"""The HTTP side of a connection: the WebSocket upgrade, and a plain error for anything else.

Parsing is done by llhttp (httptools). An `Upgrade` exists only until its request is complete.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from collections.abc import Callable
from http import HTTPStatus
from typing import NamedTuple

import httptools

from migratory.wire.client import PATH
from migratory.wire.codec import CODECS, Codec

_GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
_MAX_HEADERS = 64
_SWITCH = (
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    b"Sec-WebSocket-Accept: %b\r\nSec-WebSocket-Protocol: %b\r\n\r\n"
)

OriginCheck = Callable[[str | None], bool]


class Accepted(NamedTuple):
    """The upgrade was granted: what to answer, what it speaks, and what came after the request."""

    response: bytes
    codec: Codec
    rest: bytes


class Refused(NamedTuple):
    """A plain HTTP answer, after which the connection ends."""

    response: bytes


def refuse(status: HTTPStatus, message: str, *headers: str) -> Refused:
    """An HTTP error with one sentence for people."""
    body = f"{message}\n".encode()
    lines = (
        f"HTTP/1.1 {status.value} {status.phrase}",
        "Content-Type: text/plain; charset=utf-8",
        f"Content-Length: {len(body)}",
        "Connection: close",
        *headers,
    )
    return Refused("\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body)


class Upgrade:
    """Collects one request, as it comes."""

    __slots__ = ("_complete", "_headers", "_parser", "_size", "_url")

    def __init__(self) -> None:
        self._headers: dict[bytes, list[bytes]] = {}
        self._url = b""
        self._size = 0
        self._complete = False
        self._parser = httptools.HttpRequestParser(self)

    # Called by the parser.

    def on_message_begin(self) -> None:
        """A second request behind the first is not looked at."""
        if self._complete:
            raise ValueError("one request only")

    def on_url(self, url: bytes) -> None:
        """A piece of the target."""
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """One header."""
        if sum(map(len, self._headers.values())) < _MAX_HEADERS:
            self._headers.setdefault(name.lower(), []).append(value)

    def on_message_complete(self) -> None:
        """The request is complete, and is no upgrade unless the parser says so next."""
        self._complete = True

    # Called by the front.

    def feed(self, data: bytes, limit: int, origin: OriginCheck) -> Accepted | Refused | None:
        """Take bytes; None while the request is incomplete. Not to be called after an answer."""
        answer = self._feed(data, limit, origin)
        if answer is not None:
            del self._parser  # it refers to this object, and a cycle would outlive the handshake
        return answer

    def _feed(self, data: bytes, limit: int, origin: OriginCheck) -> Accepted | Refused | None:
        self._size += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            return self._answer(data[upgrade.args[0] :], origin)
        except httptools.HttpParserError:
            if self._complete:
                return self._plain()  # what came after it does not matter
            return refuse(HTTPStatus.BAD_REQUEST, "This is not HTTP.")
        if self._complete:
            return self._plain()
        if self._size > limit:
            status = HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
            return refuse(status, f"A request has at most {limit} bytes here.")
        return None

    def _path(self) -> bytes:
        return self._url.partition(b"?")[0]

    def _one(self, name: bytes) -> bytes:
        """The value of a header that may stand there once."""
        values = self._headers.get(name, [])
        return values[0].strip() if len(values) == 1 else b""

    def _many(self, name: bytes) -> list[str]:
        """The values of a comma-separated header, which may be repeated."""
        joined = b",".join(self._headers.get(name, [])).decode("latin-1")
        return [value.strip() for value in joined.split(",")]

    def _plain(self) -> Refused:
        if self._path() != PATH.encode():
            return refuse(HTTPStatus.NOT_FOUND, f"Nothing is here; the WebSocket is at {PATH}.")
        if self._parser.get_method() != b"GET":
            return refuse(HTTPStatus.METHOD_NOT_ALLOWED, "Use GET.", "Allow: GET")
        message = "Upgrade to a WebSocket."
        return refuse(HTTPStatus.UPGRADE_REQUIRED, message, "Upgrade: websocket")

    def _answer(self, rest: bytes, origin: OriginCheck) -> Accepted | Refused:
        if self._path() != PATH.encode() or self._parser.get_method() != b"GET":
            return self._plain()
        if "websocket" not in map(str.lower, self._many(b"upgrade")):
            return self._plain()
        if self._parser.get_http_version() != "1.1":
            return refuse(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "Use HTTP/1.1.")
        if self._one(b"sec-websocket-version") != b"13":
            message, header = "Use version 13.", "Sec-WebSocket-Version: 13"
            return refuse(HTTPStatus.UPGRADE_REQUIRED, message, header)
        key = self._one(b"sec-websocket-key")
        if not _is_key(key):
            return refuse(HTTPStatus.BAD_REQUEST, "Sec-WebSocket-Key is not valid.")
        origins = self._headers.get(b"origin", [])
        named = origins[0].decode("latin-1") if origins else None
        if len(origins) > 1 or not origin(named):
            return refuse(HTTPStatus.FORBIDDEN, "This origin is not allowed.")
        for offered in self._many(b"sec-websocket-protocol"):  # PROTOCOL 1.1
            if (codec := CODECS.get(offered)) is not None:
                token = base64.b64encode(hashlib.sha1(key + _GUID, usedforsecurity=False).digest())
                return Accepted(_SWITCH % (token, offered.encode()), codec, rest)
        return refuse(HTTPStatus.BAD_REQUEST, f"Offer a subprotocol: {' or '.join(CODECS)}.")


def _is_key(key: bytes) -> bool:
    try:
        return len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        return False
