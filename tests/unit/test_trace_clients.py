"""The rows of clients: sessions without I/O first, then the trio client and its files."""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest
import trio

from client_sdk import Message, open_client, open_trace
from client_sdk.session import Session, SessionConfig
from client_sdk.trace import ClientTrace
from migratory.trace_files import TraceWriter
from migratory.wire import client as wire
from migratory.wire.ids import Position, group_of
from migratory.wire.trace import Row, decode_rows, mid_of
from tests.unit.client_stage import LIMIT, cloud_of, until

PID = "p" * 16


class Stage:
    """A traced session, and the rows that it wrote."""

    def __init__(self, directory: Path, sample: int = 1) -> None:
        self.writer = TraceWriter(directory, "r", "c1", 10, sample=sample)
        self.session = Session(SessionConfig(), lambda: PID, Random(1))
        self.session.trace_to(ClientTrace(self.writer, "reader"))
        self.now = 0.0

    def connect(self) -> list[Any]:
        """Open a connection and hear the welcome; what was said with the greeting."""
        self.session.opened(self.now)
        said = self.session.collect(self.now)
        self.hear(wire.Welcome(1, "m1", 10_000, wire.Limits(), [], 900_000))
        return said[1:]

    def hear(self, message: wire.ServerMessage) -> None:
        """The contact says something."""
        self.session.received(message, self.now)

    def send(self) -> list[Any]:
        """What goes out a moment later."""
        self.now += 0.5
        return self.session.collect(self.now)

    def rows(self) -> list[Row]:
        """Everything written so far."""
        self.writer.flush()
        path = self.writer.files.path(0)
        return decode_rows(path.read_bytes()) if path.exists() else []

    def kinds(self) -> list[str]:
        """What was written, in order."""
        return [row.kind for row in self.rows()]

    def topics(self, kind: str) -> set[str | None]:
        """The topics of all rows of a kind."""
        return {row.topic for row in self.rows() if row.kind == kind}


@pytest.fixture
def stage(tmp_path: Path) -> Stage:
    """A session that was just welcomed."""
    made = Stage(tmp_path)
    made.connect()
    return made


def test_a_publication_is_sent_refused_sent_again_and_acknowledged(stage: Stage) -> None:
    """Each attempt and each answer is a row; all of them name the same message."""
    stage.session.publish("/a", "hello", stage.now)
    (first,) = stage.send()
    stage.hear(wire.Nack([wire.Nacked(first.id, 0, "RETRY", rewind=first.messages[0].rewind)]))
    again = next(frame for frame in stage.send() if isinstance(frame, wire.Publish))
    stage.hear(wire.Ack([wire.Acked(again.id, 0, 4, 7, True)]))
    up, *rows = stage.rows()
    assert (up.kind, up.extra) == ("link_up", {"member": "m1"})
    same = {(r.topic, r.group, r.pid, r.pseq, r.mid) for r in rows}
    assert same == {("/a", group_of("/a", 10), PID, 1, mid_of(b"hello"))}
    assert [(r.kind, r.conn, r.epoch, r.seq, r.extra) for r in rows] == [
        ("pub_send", up.conn, None, None, {"attempt": "1"}),
        ("pub_nack", None, None, None, {"code": "RETRY", "outcome": "retry"}),
        ("pub_send", up.conn, None, None, {"attempt": "2"}),
        ("pub_ack", None, 4, 7, {"duplicate": "true"}),
    ]


def test_the_outcome_of_what_was_given_up_is_told(stage: Stage) -> None:
    """What was never sent is certainly not published; what was sent is unknown."""
    stage.session.publish("/a", "sent", stage.now)
    stage.send()
    stage.session.publish("/a", "queued", stage.now)
    stage.session.fail_pending("CLIENT_CLOSED", "over")
    sent, queued = stage.rows()[-2:]
    assert (sent.mid, sent.pseq, sent.extra) == (
        mid_of("sent"), 1, {"code": "CLIENT_CLOSED", "outcome": "unknown"},
    )  # fmt: skip
    assert (queued.mid, queued.pid, queued.pseq) == (mid_of("queued"), None, None)
    assert queued.extra == {"code": "CLIENT_CLOSED", "outcome": "not_published"}


def test_a_final_refusal_is_one_row(stage: Stage) -> None:
    """A message that is refused for good leaves one refusal, which says so."""
    stage.session.publish("/a", "no", stage.now)
    (frame,) = stage.send()
    stage.hear(wire.Nack([wire.Nacked(frame.id, 0, "TOO_LARGE")]))
    (refused,) = [row for row in stage.rows() if row.kind == "pub_nack"]
    assert refused.extra == {"code": "TOO_LARGE", "outcome": "not_published"}


def test_an_unacknowledged_publication_is_sent_and_nothing_more(stage: Stage) -> None:
    """It has no publisher, no number and no outcome."""
    stage.session.publish("/a", b"x", stage.now, acknowledge=False)
    stage.send()
    sent = stage.rows()[-1]
    assert (sent.kind, sent.pid, sent.pseq, sent.mid) == ("pub_send", None, None, mid_of(b"x"))


def test_a_subscription_keeps_its_name_over_connections(stage: Stage) -> None:
    """From sub_open to sub_close all rows name one subscription, each its own connection."""
    session = stage.session
    session.subscribe([wire.TopicRequest("/a", None, 0)])
    (ask,) = stage.send()
    stage.hear(wire.Subscribed(ask.id, [wire.Outcome("/a", "fresh", Position(1, 0))]))
    stage.hear(wire.Messages("/a", [wire.Message(1, 1, 0, "one", True)]))
    session.closed(1006, "broken", stage.now)
    (ask,) = stage.connect()
    resumed = wire.Outcome("/a", "resumed", Position(1, 1), missed=1)
    stage.hear(wire.Subscribed(ask.id, [resumed]))
    stage.hear(wire.Messages("/a", [wire.Message(1, 2, 0, "two")]))
    stage.hear(wire.Gap("/a", Position(1, 8), 3, 9, 12))
    stage.hear(wire.Reset("/a", Position(5, 1), "HISTORY_LOST"))
    session.unsubscribe(["/a"])
    rows = [row for row in stage.rows() if row.sub]
    assert {(row.sub, row.topic) for row in rows} == {("c1.s2", "/a")}
    told = [(r.kind, r.conn, r.epoch, r.seq, r.extra) for r in rows]
    m1 = {"member": "m1"}
    assert told == [
        ("sub_open", None, None, None, {"client": "reader"}),
        ("sub_status", "c1.c1", 1, 0, {"outcome": "fresh"} | m1),
        ("deliver", "c1.c1", 1, 1, {"first": "true"}),
        ("sub_status", "c1.c3", 1, 1, {"outcome": "resumed", "missed": "1"} | m1),
        ("deliver", "c1.c3", 1, 2, None),
        ("sub_status", "c1.c3", 1, 8,
         {"outcome": "gap", "asked": "3", "first": "9", "last": "12"} | m1),
        ("sub_status", "c1.c3", 5, 1, {"outcome": "reset", "reason": "HISTORY_LOST"} | m1),
        ("sub_close", None, 5, 1, None),
    ]  # fmt: skip
    down = next(row for row in stage.rows() if row.kind == "link_down")
    assert (down.conn, down.extra) == ("c1.c1", {"member": "m1", "why": "broken"})


def test_a_resume_after_a_pause_of_our_own_is_a_row_and_no_item(stage: Stage) -> None:
    """The reader is not bothered with it, the trace has what the contact said."""
    session = stage.session
    session.subscribe([wire.TopicRequest("/a", Position(1, 3), 0)])
    for _ in range(2):
        ask = next(frame for frame in stage.send() if isinstance(frame, wire.Subscribe))
        outcome = wire.Outcome("/a", "resumed", Position(1, 3))
        stage.hear(wire.Subscribed(ask.id, [outcome]))
        session.pause(["/a"])
        session.resume(["/a"])
    assert len(session.take_items()) == 1
    assert stage.kinds() == ["link_up", "sub_open", "sub_status", "sub_status"]


def test_a_denied_topic_is_told_and_closed(stage: Stage) -> None:
    """A refusal for good ends the subscription; the user closes it all the same."""
    stage.session.subscribe([wire.TopicRequest("/a", None, 0)])
    (ask,) = stage.send()
    stage.hear(wire.Subscribed(ask.id, [wire.Outcome("/a", "denied", code="FORBIDDEN")]))
    stage.session.unsubscribe(["/a"])
    status, closed = stage.rows()[-2:]
    assert status.extra == {"outcome": "denied", "reason": "FORBIDDEN", "member": "m1"}
    assert (closed.kind, closed.epoch, closed.seq) == ("sub_close", None, None)


def test_topics_outside_of_the_sample_leave_no_row(tmp_path: Path) -> None:
    """Of a sampled topic everything is written, of another one nothing."""
    stage = Stage(tmp_path, sample=3)
    stage.connect()
    topics = [f"/t/{n}" for n in range(30)]
    stage.session.subscribe(wire.TopicRequest(t, Position(1, 0), 0) for t in topics)
    for topic in topics:
        stage.session.publish(topic, "x", stage.now)
    frames = stage.send()
    ask = next(frame for frame in frames if isinstance(frame, wire.Subscribe))
    outcomes = [wire.Outcome(t, "resumed", Position(1, 0)) for t in topics]
    stage.hear(wire.Subscribed(ask.id, outcomes))
    for topic in topics:
        stage.hear(wire.Messages(topic, [wire.Message(1, 1, 0, "x")]))
    kept = stage.topics("sub_open")
    assert 0 < len(kept) < 30
    assert kept == stage.topics("pub_send") == stage.topics("sub_status") == stage.topics("deliver")


def test_a_connection_without_a_welcome_leaves_no_row(tmp_path: Path) -> None:
    """Only a contact that welcomed the client makes a connection of the trace."""
    stage = Stage(tmp_path)
    stage.session.opened(0)
    stage.session.closed(1006, "refused", 0)
    assert stage.rows() == []


async def test_a_traced_client_over_sockets(tmp_path: Path) -> None:
    """What is delivered was sent before, in one file; an idle client's rows are there soon."""
    with trio.fail_after(LIMIT):
        async with (
            cloud_of(1) as (_, servers),
            open_trace(tmp_path, run="r", node="c1", groups=10) as writer,
        ):
            path = writer.files.path(0)
            async with open_client([s.address for s in servers], trace=writer) as client:
                async with client.subscribe("/a") as messages:
                    await client.wait_connected()
                    await client.publish("/a", "hello")
                    async for item in messages:
                        if isinstance(item, Message):
                            break
                await until(lambda: path.exists() and b"sub_close" in path.read_bytes())
    rows = decode_rows(path.read_bytes())
    assert [row.n for row in rows] == list(range(len(rows)))
    kinds = [row.kind for row in rows]
    assert kinds[0] == "sub_open"
    assert kinds[-1] == "link_down"
    assert kinds.index("pub_send") < kinds.index("deliver")
    assert {r.mid for r in rows if r.mid} == {mid_of("hello")}
