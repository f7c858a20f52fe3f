"""A client's rows (docs/traces.md): the session tells what it sends, hears and hands on.

    async with open_trace(Path("traces"), run="r1", node="c1", groups=100) as writer:
        async with open_client(servers, trace=writer) as client:
            ...

Clients of one process may share a writer; its names of connections and subscriptions are unique.
`groups` must be the cluster's own number. Rows are flushed ten times a second and at the end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import trio

from client_sdk.errors import NotPublished
from client_sdk.items import Gap, Item, Message, Reset, Resumed
from client_sdk.publishing import UNPLACED, Publishing
from migratory.trace_files import FILE_BYTES, FILES, TraceWriter
from migratory.wire.ids import Position
from migratory.wire.trace import flag, mid_of

FLUSH_EVERY: Final = 0.1


@asynccontextmanager
async def open_trace(
    directory: Path,
    *,
    run: str,
    node: str,
    groups: int,
    sample: int = 1,
    file_bytes: int = FILE_BYTES,
    files: int = FILES,
) -> AsyncIterator[TraceWriter]:
    """A writer whose rows reach the disk soon; `node` must be unique in the run."""
    writer = TraceWriter(
        directory, run, node, groups, sample=sample, file_bytes=file_bytes, files=files
    )

    async def flush() -> None:
        while True:
            await trio.sleep(FLUSH_EVERY)
            writer.flush()

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(flush)
            yield writer
            nursery.cancel_scope.cancel()
    finally:
        writer.close()


class ClientTrace:
    """The rows of one client: its present connection, and its subscriptions by topic."""

    def __init__(self, writer: TraceWriter, client: str = "") -> None:
        self._writer = writer
        self._client = client
        self._conn = ""
        self._member = ""
        self._subs: dict[str, str] = {}

    # ---- connections ---------------------------------------------------------------------------

    def welcomed(self, member: str) -> None:
        """A contact welcomed the client."""
        self._conn, self._member = self._writer.fresh("c"), member
        self._writer.row("link_up", conn=self._conn, extra={"member": member})

    def closed(self, why: str) -> None:
        """The connection ended, if there was a welcome."""
        if self._conn:
            extra = {"member": self._member, "why": why}
            self._writer.row("link_down", conn=self._conn, extra=extra)
            self._conn = ""

    # ---- publishing ----------------------------------------------------------------------------

    def sent(self, pid: str, messages: Iterable[Publishing]) -> None:
        """Messages are given to the connection."""
        for message in messages:
            self._publication("pub_send", pid, message, {"attempt": str(message.attempts)})

    def refused(self, pid: str, message: Publishing, code: str) -> None:
        """A contact refused a message that will be sent again."""
        self._publication("pub_nack", pid, message, {"code": code, "outcome": "retry"})

    def settled(self, pid: str, message: Publishing) -> None:
        """The outcome of a message is known; one without acknowledgement has none."""
        error = message.error
        if error is not None:
            outcome = "not_published" if isinstance(error, NotPublished) else "unknown"
            extra = {"code": error.code, "outcome": outcome}
            self._publication("pub_nack", pid, message, extra)
        elif message.acknowledge:
            extra = {"duplicate": flag(message.duplicate)}
            self._publication("pub_ack", pid, message, extra, message.position or UNPLACED)

    def _publication(
        self,
        kind: str,
        pid: str,
        message: Publishing,
        extra: dict[str, str],
        at: Position | None = None,
    ) -> None:
        topic = message.topic
        if self._writer.keeps(topic):
            self._writer.row(
                kind, topic=topic, mid=mid_of(message.data), extra=extra,
                pid=pid if message.pseq else None, pseq=message.pseq or None,
                conn=self._conn if kind == "pub_send" else None,
                epoch=at.epoch if at else None, seq=at.sequence if at else None,
            )  # fmt: skip

    # ---- subscribing ---------------------------------------------------------------------------

    def subscribed(self, topic: str, position: Position | None) -> None:
        """The user subscribed."""
        self._subs[topic] = self._writer.fresh("s")
        named = {"client": self._client} if self._client else None
        self._subscription("sub_open", topic, position, named)

    def unsubscribed(self, topic: str, position: Position | None) -> None:
        """The user unsubscribed."""
        self._subscription("sub_close", topic, position)
        del self._subs[topic]

    def told(self, item: Item) -> None:
        """The contact said how a subscription begins or goes on."""
        match item:
            case Resumed(missed=missed):
                outcome = {"outcome": "resumed", "missed": str(missed)}
            case Gap(asked=asked, first=first, last=last):
                outcome = {
                    "outcome": "gap", "asked": str(asked), "first": str(first), "last": str(last),
                }  # fmt: skip
            case Reset(reason=reason):
                outcome = {"outcome": "reset", "reason": reason}
            case _:
                outcome = {"outcome": "fresh"}
        self._status(item.topic, item.position, outcome)

    def denied(self, topic: str, position: Position | None, reason: str) -> None:
        """The contact refused the topic, for now or for good."""
        self._status(topic, position, {"outcome": "denied", "reason": reason})

    def delivered(self, topic: str, messages: Iterable[Item]) -> None:
        """Messages are handed to the reader."""
        if not self._writer.keeps(topic):
            return
        sub, conn, row = self._subs[topic], self._conn, self._writer.row
        for message in messages:
            assert isinstance(message, Message)
            position = message.position
            row(
                "deliver", sub=sub, topic=topic, conn=conn, epoch=position.epoch,
                seq=position.sequence, mid=mid_of(message.payload),
                extra={"first": "true"} if message.first else None,
            )  # fmt: skip

    def _status(self, topic: str, position: Position | None, outcome: dict[str, str]) -> None:
        extra = outcome | {"member": self._member}
        self._subscription("sub_status", topic, position, extra, self._conn)

    def _subscription(
        self,
        kind: str,
        topic: str,
        position: Position | None,
        extra: dict[str, str] | None = None,
        conn: str | None = None,
    ) -> None:
        self._writer.row(
            kind, sub=self._subs[topic], topic=topic, conn=conn, extra=extra,
            epoch=position.epoch if position else None,
            seq=position.sequence if position else None,
        )  # fmt: skip
