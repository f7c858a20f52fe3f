"""The connection plane by itself: whatever a socket takes, the stream stays whole."""

from __future__ import annotations

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from migratory.front.connection import CLOSING, GONE, Connection
from migratory.front.limits import FrontLimits
from migratory.front.plane import Plane

LIMITS = FrontLimits(outbox_bytes=300_000)


class Events:
    """Sessions that only note what they are told."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def received(self, _conn: Connection, data: bytes) -> None:
        """Bytes came in."""
        self.told.append(f"received {len(data)}")

    def faulted(self, _conn: Connection) -> None:
        """A fault."""
        self.told.append("faulted")

    def overflow(self, _conn: Connection) -> None:
        """Too much."""
        self.told.append("overflow")

    def drained(self, _conn: Connection) -> None:
        """Room."""
        self.told.append("drained")

    def left(self, _conn: Connection) -> None:
        """The end."""
        self.told.append("left")

    def due(self, _conn: Connection, _now: float) -> float | None:
        """A time."""
        self.told.append("due")
        return None


@contextmanager
def connected() -> Iterator[tuple[Plane, Events, Connection, socket.socket]]:
    """A plane with one connection whose kernel buffer is small, and the client's socket.

    Not TCP: small windows would make it wait for timers.
    """
    events = Events()
    plane = Plane(LIMITS, events, lambda: 0.0)
    mine, client = socket.socketpair()
    mine.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 8192)
    client.setblocking(False)
    with client:
        try:
            yield plane, events, plane.adopt(mine), client
        finally:
            plane.close()


def take(client: socket.socket, size: int = 65536) -> bytes:
    """What the client can read now."""
    try:
        return client.recv(size)
    except BlockingIOError:
        return b""


@given(st.integers(0, 2**32).map(random.Random))
def test_what_is_queued_arrives_whole_and_in_order(rng: random.Random) -> None:
    """Partial sends, joined sends and scattered sends never lose, double or reorder a byte."""
    with connected() as (plane, events, conn, client):
        sent, got = bytearray(), bytearray()
        for _ in range(rng.randrange(1, 25)):
            for _ in range(rng.randrange(1, 6)):
                if conn.queued < 250_000:
                    frame = rng.randbytes(rng.choice([1, 50, 3000, 9000, 40_000]))
                    sent += frame
                    plane.push(conn, frame)
            plane.flush()
            if rng.random() < 0.5:
                got += take(client, rng.choice([10, 5000, 100_000]))
            plane.read()
        while len(got) < len(sent):
            got += take(client)
            plane.read()
        assert got == sent
        assert (conn.out, conn.queued, conn.blocked) == (None, 0, False)
        assert "overflow" not in events.told
        assert not plane.busy


@given(st.integers(0, 2**32).map(random.Random))
def test_a_discarding_end_keeps_frames_whole(rng: random.Random) -> None:
    """What was begun is finished, what was not begun is left out, and the last frame is last."""
    with connected() as (plane, events, conn, client):
        frames = [bytes([n]) * 20_000 for n in range(1, 15)]
        for frame in frames:
            plane.push(conn, frame)
            if rng.random() < 0.7:
                plane.flush()
        got = bytearray(take(client, 30_000))
        plane.read()
        plane.finish(conn, b"last", discard=True)
        plane.finish(conn, b"never")
        plane.push(conn, b"never")
        while not got.endswith(b"last"):
            plane.flush()
            plane.read()
            got += take(client)
        whole, rest = divmod(len(got) - 4, 20_000)
        assert rest == 0
        assert got[:-4] == b"".join(frames[:whole])
        assert events.told.count("left") == 1
        assert conn.state == CLOSING
        client.close()
        while conn.state != GONE:
            plane.read()
        assert events.told.count("left") == 1


def test_overflow_is_told_when_the_socket_takes_no_more() -> None:
    """Only what the kernel refused counts; a burst that was not tried yet is no slow client."""
    with connected() as (plane, events, conn, _):
        for _ in range(40):
            plane.push(conn, b"x" * 10_000)
        assert events.told == []
        plane.flush()
        assert events.told == ["overflow"]
        plane.fan_out([conn], b"y" * 10)
        plane.push(conn, b"z")
        assert events.told == ["overflow"] * 3


def test_a_broken_connection_is_dropped_by_a_send() -> None:
    """A reset that is met while sending ends the connection once."""
    with connected() as (plane, events, conn, client):
        client.close()
        plane.push(conn, b"x")
        plane.flush()
        assert conn.state == GONE
        plane.push(conn, b"x")
        plane.drop(conn)
        plane.flush()
        assert events.told == ["left"]


def test_a_close_of_a_broken_connection_drops_it() -> None:
    """Half-closing what is reset is no error."""
    with connected() as (plane, events, conn, client):
        conn.sock.close()
        plane.finish(conn)
        assert conn.state == GONE
        assert events.told == ["left"]
        client.close()


def test_a_stopped_connection_is_read_when_it_is_resumed() -> None:
    """Nothing is read in between, the rest comes later, and resuming twice does no harm."""
    with connected() as (plane, events, conn, client):
        plane.resume(conn)
        plane.stop(conn)
        client.send(b"abc")
        plane.read()
        assert events.told == []
        plane.resume(conn)
        plane.resume(conn)
        assert plane.busy
        plane.read()
        plane.read()
        assert events.told == ["received 0", "received 3"]
        plane.stop(conn)
        plane.resume(conn)
        plane.drop(conn)
        plane.read()
        assert events.told == ["received 0", "received 3", "left"]


def test_a_finished_connection_is_read_though_it_was_stopped() -> None:
    """Otherwise its end would never be seen."""
    with connected() as (plane, _, conn, client):
        plane.stop(conn)
        plane.finish(conn, b"bye")
        plane.flush()
        client.setblocking(True)
        assert client.recv(10) == b"bye"
        assert client.recv(10) == b""
        client.close()
        while conn.state != GONE:
            plane.read()


@pytest.mark.parametrize("ready", [True, False])
def test_without_a_listener_serving_means_nothing(ready: bool) -> None:
    """A plane that was given no socket listens nowhere and closes in peace."""
    plane = Plane(LIMITS, Events(), lambda: 0.0)
    plane.listen(ready)
    plane.read()
    plane.close()
