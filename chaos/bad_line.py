"""A line that loses answers: what a publisher meets on a train.

Whatever the client sends arrives. After a while nothing comes back any more, and a moment later the
connection ends: the client cannot know what became of its last messages, and sends them again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from random import Random

import trio

DEAF = 0.3  # seconds without answers before the end


@asynccontextmanager
async def open_bad_line(
    servers: list[str], random: Random, lasts: tuple[float, float]
) -> AsyncIterator[str]:
    """An address that leads to one of the servers, over a line that lasts for a drawn time."""

    async def carry(client: trio.SocketStream) -> None:
        host, _, port = random.choice(servers).rpartition(":")
        try:
            async with client, await trio.open_tcp_stream(host, int(port)) as server:
                await _carry(client, server, random.uniform(*lasts))
        except* (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
            pass  # either end may be gone at any time

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, carry, listeners)
        yield f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        nursery.cancel_scope.cancel()


async def _carry(client: trio.SocketStream, server: trio.SocketStream, lasts: float) -> None:
    """Both ways at first, then one way only, then not at all."""
    with trio.move_on_after(lasts + DEAF):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_copy, client, server, nursery.cancel_scope)
            with trio.move_on_after(lasts):
                await _copy(server, client, nursery.cancel_scope)


async def _copy(
    source: trio.SocketStream, target: trio.SocketStream, both: trio.CancelScope
) -> None:
    async for part in source:
        await target.send_all(part)
    both.cancel()
