"""`migratory sub`: print the messages of topics as they come, and what happens between them."""

from __future__ import annotations

import base64
import sys
from typing import Annotated

import msgspec
from cyclopts import Parameter

from client_sdk.client import open_client
from client_sdk.items import Gap, Item, Message, Reset, Resumed, Subscribed
from migratory.commands.where import client_addresses
from migratory.errors import MigratoryError
from migratory.wire.ids import Position


async def sub(
    topics: tuple[str, ...],
    /,
    *,
    after: Annotated[str | None, Parameter(name=["--from"])] = None,
    depth: int = 0,
    count: int | None = None,
    json: Annotated[bool, Parameter(negative=())] = False,
    servers: str | None = None,
) -> None:
    """Print messages until interrupted: topic, position and payload.

    Parameters
    ----------
    topics
        Paths such as /scores/42.
    after
        EPOCH:SEQUENCE of the last message seen: what followed it comes first.
    depth
        How many messages of history to begin with, where there is no --from.
    count
        End after so many messages.
    json
        One JSON object per line, also for gaps and resets.
    servers
        host:port of servers, with commas; MIGRATORY_SERVERS by default.
    """
    if not topics:
        raise MigratoryError("NO_TOPIC", "there is nothing to subscribe to", "name a topic")
    positions = {topic: _position(after) for topic in topics} if after else None
    seen = 0
    async with (
        open_client(client_addresses(servers)) as client,
        client.subscribe(*topics, positions=positions, depth=depth) as items,
    ):
        async for item in items:
            _show_json(item) if json else _show(item)
            seen += isinstance(item, Message)
            if count is not None and seen >= count:
                return


def _position(text: str) -> Position:
    epoch, _, sequence = text.partition(":")
    if not (epoch.isdecimal() and sequence.isdecimal()):
        raise MigratoryError(
            "BAD_POSITION", f"{text!r} is no position", "write EPOCH:SEQUENCE, such as 3:1204"
        )
    return Position(int(epoch), int(sequence))


def _show(item: Item) -> None:
    """For people: messages on standard output, everything else beside it."""
    match item:
        case Message(topic=topic, payload=payload, position=position):
            text = payload if isinstance(payload, str) else payload.hex()
            print(f"{topic} {position} {text}", flush=True)
        case Subscribed(topic=topic, position=position):
            print(f"{topic} subscribed after {position}", file=sys.stderr)
        case Resumed(topic=topic, position=position, missed=missed):
            print(f"{topic} resumed after {position}, {missed} missed follow", file=sys.stderr)
        case Gap(topic=topic, asked=asked, first=first):
            print(f"{topic} GAP: {asked} to {first - 1} are gone", file=sys.stderr)
        case Reset(topic=topic, position=position, reason=reason):
            print(f"{topic} RESET ({reason}): goes on after {position}", file=sys.stderr)


def _show_json(item: Item) -> None:
    fields = msgspec.to_builtins(item)
    if isinstance(item, Message) and isinstance(item.payload, bytes):
        fields["data64"] = base64.b64encode(item.payload).decode()
        del fields["payload"]
    line = {"kind": type(item).__name__.lower(), **fields}
    print(msgspec.json.encode(line).decode(), flush=True)
