"""What clients do in a run: loads as data, and lines that break."""

from __future__ import annotations

import contextlib
from random import Random

import pytest
import trio

from chaos.bad_line import open_bad_line
from chaos.load import LOADS, find_load, names
from migratory.errors import MigratoryError

PATIENCE = 10.0


async def dialled(address: str) -> trio.SocketStream:
    """A connection to `host:port`."""
    host, _, port = address.rpartition(":")
    return await trio.open_tcp_stream(host, int(port))


@pytest.mark.parametrize("name", LOADS)
def test_clients_have_names_of_their_own(name: str) -> None:
    """No two clients of a load share a name, and those that are late on purpose are named."""
    load = find_load(name)
    called = [each for some in load.paces for each in names(some)]
    called += [each for some in load.habits for each in names(some)]
    assert len(called) == len(set(called))
    assert {"slow0", "pausing0"} <= set(load.slow_clients) < set(called)


def test_an_unknown_load_is_named() -> None:
    """A load that does not exist is refused with those that do."""
    with pytest.raises(MigratoryError, match=r"UNKNOWN_LOAD.*\n.*small, large"):
        find_load("huge")


async def test_a_bad_line_loses_answers_before_it_ends() -> None:
    """All that is sent arrives; answers stop coming; then the connection is over."""
    arrived, answered = bytearray(), bytearray()

    async def echo(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError):
            async for part in stream:
                arrived.extend(part)
                await stream.send_all(part)

    async def ask(stream: trio.SocketStream) -> None:
        with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while True:
                await stream.send_all(b"x")
                await trio.sleep(0.02)

    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(0, host="127.0.0.1")
        nursery.start_soon(trio.serve_listeners, echo, listeners)
        server = f"127.0.0.1:{listeners[0].socket.getsockname()[1]}"
        async with (
            open_bad_line([server], Random(1), (0.5, 0.5)) as address,
            await dialled(address) as client,
        ):
            nursery.start_soon(ask, client)
            with trio.fail_after(PATIENCE), contextlib.suppress(trio.BrokenResourceError):
                async for part in client:
                    answered.extend(part)
        nursery.cancel_scope.cancel()
    assert 5 < len(answered) < len(arrived)


async def test_a_line_to_nobody_ends_at_once() -> None:
    """A server that is not there ends the connection, and not the process."""
    async with (
        open_bad_line(["127.0.0.1:1"], Random(1), (5, 5)) as address,
        await dialled(address) as client,
    ):
        with trio.fail_after(PATIENCE):
            assert await client.receive_some() == b""
