"""Reads every topic at every member after healing, as one process on the clients' host.

Two connections per member: the first learns where topics end, the second reads all history up to
there. It speaks the protocol itself, as the SDK chooses its member.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from cyclopts import App

from chaos.topics import topics_of
from chaos.trace import notes
from client_sdk.link import Link, LinkLost, open_link
from client_sdk.servers import url_of
from migratory.errors import MigratoryError
from migratory.trace_files import TraceWriter
from migratory.wire import client as wire
from migratory.wire.codec import MSGPACK
from migratory.wire.ids import Position
from migratory.wire.trace import mid_of

PATIENCE = 20.0  # seconds for one reading of one member
EVERYTHING = 1_000_000


async def read_member(address: str, topics: list[str], trace: TraceWriter) -> None:
    """Write all messages and all heads of one member."""
    try:
        with trio.fail_after(PATIENCE):
            heads, _, member = await _subscribe(address, topics, 0, {})
            starts, messages, _ = await _subscribe(address, topics, EVERYTHING, heads)
    except (LinkLost, trio.TooSlowError) as error:
        wrong = f"{address} could not be read: {error!r}"
        raise MigratoryError("FINAL_READ_FAILED", wrong) from error
    for topic in topics:
        for m in messages.get(topic, []):
            trace.row(
                "final_read", topic=topic, epoch=m.epoch, seq=m.sequence, mid=mid_of(m.data),
                extra={"member": member},
            )  # fmt: skip
        first = starts[topic].sequence + 1
        if held := messages.get(topic):
            first = held[0].sequence
        head = heads[topic]
        extra = {"member": member, "first": str(first)}
        trace.row("final_head", topic=topic, epoch=head.epoch, seq=head.sequence, extra=extra)


async def _subscribe(
    address: str, topics: list[str], depth: int, until: dict[str, Position]
) -> tuple[dict[str, Position], dict[str, list[wire.Message]], str]:
    """Where topics begin, what comes of them up to `until`, and which member said so."""
    starts: dict[str, Position] = {}
    messages: dict[str, list[wire.Message]] = {}
    member = ""
    url = url_of(address, "")
    async with open_link(
        url, MSGPACK, ssl_context=None, connect_timeout=PATIENCE, send_timeout=PATIENCE
    ) as link:
        await link.send(wire.Connect(wire.PROTOCOL, client="final-reader"))
        await link.send(wire.Subscribe(1, [wire.TopicRequest(t, None, depth) for t in topics]))
        while len(starts) < len(topics) or _missing(starts, messages, until):
            match await link.receive():
                case wire.Welcome() as welcome:
                    member = welcome.member
                case wire.Subscribed(topics=outcomes):
                    starts.update(_starts(address, outcomes))
                case wire.Messages(topic, part):
                    messages.setdefault(topic, []).extend(part)
                case wire.Ping(n):
                    await _answer(link, n)
                case _:
                    pass
    return starts, messages, member


async def _answer(link: Link, n: int) -> None:
    await link.send(wire.Pong(n))


def _starts(address: str, outcomes: list[wire.Outcome]) -> dict[str, Position]:
    found = {each.topic: each.position for each in outcomes if each.position is not None}
    refused = [each for each in outcomes if each.position is None]
    if refused:
        wrong = f"{address} refuses {refused[0].topic}: {refused[0].code}"
        raise MigratoryError("FINAL_READ_FAILED", wrong)
    return found


def _missing(
    starts: dict[str, Position], messages: dict[str, list[wire.Message]],
    until: dict[str, Position],
) -> bool:  # fmt: skip
    """Whether something up to the heads has not come yet."""
    for topic, head in until.items():
        got = messages.get(topic)
        if (got[-1].sequence if got else starts[topic].sequence) < head.sequence:
            return True
    return False


app = App(name="chaos.final_reader", backend="trio", result_action="return_value")


@app.default
async def final_reader(*, servers: str, groups: int, prefix: str, traces: Path, run: str) -> None:
    """Read all members, one after another."""
    topics = [topic for each in topics_of(groups, prefix).values() for topic in each]
    with notes(traces, run, "reader", groups) as trace:
        for address in servers.split(","):
            await read_member(address, topics, trace)


if __name__ == "__main__":
    try:
        app()
    except MigratoryError as error:
        sys.exit(str(error))
