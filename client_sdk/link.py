"""One WebSocket to one server: the only module of the client that knows trio-websocket.

Foreign errors end here: whatever goes wrong with the connection is LinkLost. Every send has a
deadline, since a frozen server would otherwise hold the sender forever.
"""

from __future__ import annotations

import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Final
from urllib.parse import urlsplit

import trio
import trio_websocket as ws
from wsproto.utilities import ProtocolError

from migratory.wire.client import ClientMessage, ServerMessage
from migratory.wire.codec import Codec
from migratory.wire.codes import Code, WireError

ABNORMAL: Final = 1006  # RFC 6455: the connection ended without a close frame
MAX_FRAME: Final = 64 * 1024 * 1024
GOODBYE: Final = 0.5  # seconds for the closing handshake

_FOREIGN: Final = (
    OSError,
    ssl.SSLError,
    trio.BrokenResourceError,
    trio.ClosedResourceError,
    ws.HandshakeError,
    ws.ConnectionClosed,
    ProtocolError,
)


class LinkLost(Exception):  # noqa: N818 (it is an event that the client expects)
    """The connection could not be made, or is gone."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(code, reason)
        self.code = code
        self.reason = reason


class Link:
    """A connection that speaks the client protocol."""

    def __init__(self, connection: Any, codec: Codec, send_timeout: float) -> None:
        self._connection = connection
        self._codec = codec
        self._send_timeout = send_timeout

    async def send(self, message: ClientMessage) -> None:
        """Send a message; LinkLost when it cannot be handed to the network in time."""
        frame = self._codec.encode_request(message)
        try:
            with trio.fail_after(self._send_timeout):
                await self._connection.send_message(frame.decode() if self._codec.text else frame)
        except trio.TooSlowError:
            raise LinkLost(ABNORMAL, "the server does not take what is sent") from None
        except _FOREIGN as error:
            raise _lost(error) from error

    async def receive(self) -> ServerMessage:
        """Wait for the next message."""
        try:
            frame = await self._connection.get_message()
        except _FOREIGN as error:
            raise _lost(error) from error
        try:
            return self._codec.decode_answer(frame)
        except WireError as error:
            raise LinkLost(ABNORMAL, str(error)) from error


@asynccontextmanager
async def open_link(
    url: str,
    codec: Codec,
    *,
    ssl_context: ssl.SSLContext | None,
    connect_timeout: float,
    send_timeout: float,
) -> AsyncIterator[Link]:
    """Connect to a server; leaving the block closes the connection, politely if that is quick.

    The stream is opened here and not by trio-websocket, which leaks it when the handshake fails.
    """
    left = False
    stream = _Stream(await _dial(url, ssl_context, connect_timeout))
    try:
        async with trio.open_nursery() as nursery:
            connection = await _shake_hands(nursery, stream, url, codec, connect_timeout)
            yield Link(connection, codec, send_timeout)
            left = True
            with trio.move_on_after(GOODBYE):
                await connection.aclose()
            nursery.cancel_scope.cancel()
    except BaseExceptionGroup as group:
        error = _leaf(group)
        if not isinstance(error, _FOREIGN):
            raise error from None
        if not left:  # a clumsy goodbye of the server is no news
            raise _lost(error) from error
    finally:
        await trio.aclose_forcefully(stream)


class _Stream(trio.abc.Stream):
    """A stream that tells when it has ended.

    trio-websocket waits for the end of a handshake also when the server is gone in the middle of
    it: a member that is killed then would cost each client the whole timeout.
    """

    def __init__(self, inner: trio.abc.Stream) -> None:
        self._inner = inner
        self.ended = trio.Event()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        try:
            await self._inner.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise

    async def wait_send_all_might_not_block(self) -> None:
        await self._inner.wait_send_all_might_not_block()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        try:
            data = await self._inner.receive_some(max_bytes)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            self.ended.set()
            raise
        if not data:
            self.ended.set()
        return data

    async def aclose(self) -> None:
        await self._inner.aclose()


async def _dial(url: str, ssl_context: ssl.SSLContext | None, timeout: float) -> trio.abc.Stream:
    """The stream under a WebSocket."""
    parts = urlsplit(url)
    host = parts.hostname or ""
    try:
        with trio.fail_after(timeout):
            if parts.scheme != "wss":
                return await trio.open_tcp_stream(host, parts.port or 80)
            context = ssl_context or ssl.create_default_context()
            return await trio.open_ssl_over_tcp_stream(
                host, parts.port or 443, ssl_context=context, https_compatible=True
            )
    except trio.TooSlowError:
        raise LinkLost(ABNORMAL, f"{url} does not answer") from None
    except OSError as error:
        raise _lost(error) from error


async def _shake_hands(
    nursery: trio.Nursery, stream: _Stream, url: str, codec: Codec, timeout: float
) -> ws.WebSocketConnection:
    """Make a stream a WebSocket that speaks the protocol."""
    parts = urlsplit(url)
    connection: ws.WebSocketConnection | None = None
    with trio.move_on_after(timeout) as scope:
        nursery.start_soon(_cancel_at_end, stream, scope)
        connection = await ws.wrap_client_stream(
            nursery,
            stream,  # type: ignore[arg-type]  # it takes any stream, whatever its types say
            parts.netloc,
            parts.path or "/",
            subprotocols=[codec.subprotocol],
            max_message_size=MAX_FRAME,
            receive_buffer_size=64 * 1024,
        )
    if connection is None:
        why = "breaks off" if stream.ended.is_set() else "does not end"
        raise LinkLost(ABNORMAL, f"the handshake with {url} {why}")
    if connection.subprotocol != codec.subprotocol:
        raise LinkLost(ABNORMAL, f"the server at {url} does not speak {codec.subprotocol}")
    return connection


async def _cancel_at_end(stream: _Stream, scope: trio.CancelScope) -> None:
    await stream.ended.wait()
    scope.cancel()


def _leaf(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """What went wrong first, as one error; a cancellation only if there is nothing else."""
    leaves = [_leaf(e) if isinstance(e, BaseExceptionGroup) else e for e in group.exceptions]
    return next((leaf for leaf in leaves if not isinstance(leaf, trio.Cancelled)), leaves[0])


def _lost(error: BaseException) -> LinkLost:
    """Say in our words what happened to a connection."""
    if isinstance(error, ws.ConnectionClosed) and error.reason is not None:
        return LinkLost(error.reason.code, error.reason.reason or "")
    if isinstance(error, ws.ConnectionRejected):
        if error.status_code in (401, 403):
            return LinkLost(Code.UNAUTHORIZED.number, "the server refuses this client")
        return LinkLost(ABNORMAL, f"the server answered with HTTP status {error.status_code}")
    cause = error.__cause__ or error
    return LinkLost(ABNORMAL, str(cause) or type(cause).__name__)
