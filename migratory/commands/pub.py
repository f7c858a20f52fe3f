"""`migratory pub`: publish messages and print where they stand."""

from __future__ import annotations

import sys
from typing import Annotated

import trio
from cyclopts import Parameter

from client_sdk.client import Client, Receipt, open_client
from client_sdk.errors import ClientError
from migratory.commands.where import client_addresses
from migratory.wire.ids import Position


async def pub(
    topic: str,
    payload: Annotated[str, Parameter(allow_leading_hyphen=True)] = "-",
    /,
    *,
    servers: str | None = None,
    timeout: float = 30.0,
) -> int:
    """Publish a message, or each line of standard input; print the acknowledged positions.

    Ends with 1 when a message was not acknowledged.

    Parameters
    ----------
    topic
        A path such as /scores/42.
    payload
        The message; - reads lines from standard input.
    servers
        host:port of servers, with commas; MIGRATORY_SERVERS by default.
    timeout
        Seconds until a message counts as not acknowledged.
    """
    failed = 0
    async with open_client(client_addresses(servers), publish_deadline=timeout) as client:
        if payload != "-":
            failed += await _tell(topic, await client.publish_soon(topic, payload))
            return int(failed > 0)
        send, receive = trio.open_memory_channel[Receipt](10_000)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_read_lines, send, client, topic)
            async for receipt in receive:
                failed += await _tell(topic, receipt)
    return int(failed > 0)


async def _read_lines(send: trio.MemorySendChannel[Receipt], client: Client, topic: str) -> None:
    """Publish the lines of standard input as they come, many under way at a time."""
    async with send:
        while line := await trio.to_thread.run_sync(sys.stdin.readline, abandon_on_cancel=True):
            await send.send(await client.publish_soon(topic, line.rstrip("\n")))


async def _tell(topic: str, receipt: Receipt) -> int:
    try:
        position = await receipt.wait()
    except ClientError as error:
        print(f"migratory: {error}", file=sys.stderr)
        return 1
    known = position != Position(0, 0)
    print(f"{topic} {position}" if known else f"{topic} acknowledged", flush=True)
    return 0
