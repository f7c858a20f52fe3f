"""The border to trio-websocket: every way in which a connection fails is LinkLost, in time."""

from __future__ import annotations

import base64
import hashlib
from functools import partial

import pytest
import trio

from client_sdk.link import Link, LinkLost, open_link
from migratory.wire.client import Connect, Publish, Sent
from migratory.wire.codec import MSGPACK
from tests.unit.client_stage import LIMIT, cloud_of


async def lost(url: str, connect_timeout: float = 5.0) -> LinkLost:
    """How a connection to this address fails."""
    with trio.fail_after(LIMIT), pytest.raises(LinkLost) as caught:
        async with open_link(
            url, MSGPACK, ssl_context=None, connect_timeout=connect_timeout, send_timeout=5.0
        ):
            pass  # pragma: no cover
    return caught.value


async def silent(_: trio.SocketStream) -> None:
    """A server that accepts and says nothing."""
    await trio.sleep_forever()


async def test_a_connection_that_takes_too_long_is_given_up() -> None:
    """Neither the network nor a server that never shakes hands holds the client."""
    assert "does not answer" in (await lost("ws://127.0.0.1:1/v1/ws", 0.0)).reason
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, silent, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        assert "does not end" in (await lost(f"ws://127.0.0.1:{port}/v1/ws", 0.1)).reason
        nursery.cancel_scope.cancel()


async def dies(stream: trio.SocketStream) -> None:
    """A server that is gone in the middle of the handshake."""
    await stream.receive_some(10)


async def test_a_server_that_dies_in_the_handshake_costs_no_timeout() -> None:
    """The client goes on at once: the timeout of this test is far shorter than the client's."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, dies, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        failure = await lost(f"ws://127.0.0.1:{port}/v1/ws", connect_timeout=10 * LIMIT)
        assert "breaks off" in failure.reason
        nursery.cancel_scope.cancel()


async def plain(stream: trio.SocketStream) -> None:
    """A server that answers a TLS greeting in plain text."""
    await stream.receive_some(1)
    await stream.send_all(b"HTTP/1.1 400 Bad Request\r\n\r\n")


async def test_a_server_without_tls_is_no_server_for_wss() -> None:
    """A failed TLS handshake is a lost link like any other, and costs no timeout either."""
    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, plain, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        failure = await lost(f"wss://127.0.0.1:{port}/v1/ws", connect_timeout=10 * LIMIT)
        assert failure.code == 1006
        assert "breaks off" in failure.reason
        nursery.cancel_scope.cancel()


async def test_a_closed_link_says_so_on_both_ways() -> None:
    """After the server's death neither sending nor receiving waits."""
    async with (
        cloud_of(1) as (_, servers),
        open_link(
            f"ws://{servers[0].address}/v1/ws",
            MSGPACK,
            ssl_context=None,
            connect_timeout=5.0,
            send_timeout=5.0,
        ) as link,
    ):
        await servers[0].kill()
        with trio.fail_after(LIMIT), pytest.raises(LinkLost):
            await link.receive()
        with trio.fail_after(LIMIT), pytest.raises(LinkLost):
            await link.send(Connect(1))


async def fill(link: Link) -> None:
    """Send until it fails."""
    while True:
        await link.send(Publish(1, "", [Sent("/a", b"x" * 500_000)]))


async def test_a_server_that_does_not_read_is_given_up() -> None:
    """Every send has a deadline."""

    async def ignore(stream: trio.SocketStream) -> None:
        request = b""
        while b"\r\n\r\n" not in request:
            request += await stream.receive_some(4096)
        key = next(
            line.split(b": ")[1] for line in request.split(b"\r\n") if b"WebSocket-Key" in line
        )
        guid = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        accept = base64.b64encode(hashlib.sha1(key + guid).digest())
        await stream.send_all(
            b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
            b"Connection: Upgrade\r\nSec-WebSocket-Protocol: migratory.v1.msgpack\r\n"
            b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n"
        )
        await trio.sleep_forever()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(partial(trio.serve_tcp, ignore, 0, host="127.0.0.1"))
        port = listeners[0].socket.getsockname()[1]
        async with open_link(
            f"ws://127.0.0.1:{port}/v1/ws",
            MSGPACK,
            ssl_context=None,
            connect_timeout=5.0,
            send_timeout=0.1,
        ) as link:
            with trio.fail_after(LIMIT), pytest.raises(LinkLost, match="does not take"):
                await fill(link)
        nursery.cancel_scope.cancel()
