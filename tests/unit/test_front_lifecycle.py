"""Clocks, farewells and faults of the front: no connection is forgotten, none ends the front."""

from __future__ import annotations

import errno
import socket
from collections import deque

import pytest
import trio
from websockets.frames import Opcode

from migratory.front.front import Front
from migratory.front.limits import FrontLimits
from migratory.wire import client as c
from migratory.wire.ids import Position
from migratory.wire.shard import Closing, Serving
from tests.unit.front_stage import PID, stage


async def test_welcome_tells_what_a_client_needs() -> None:
    """Member, keepalive, limits and the list of servers."""
    async with stage() as at, at.opened() as client:
        welcome = await client.connect()
        assert (welcome.protocol, welcome.member, welcome.keepalive_ms) == (1, "a", 30_000)
        assert welcome.servers == [c.Server("127.0.0.1:8800")]
        assert welcome.limits == c.Limits()
        assert welcome.dedup_ttl_ms == 900_000


async def test_connect_must_come_in_time() -> None:
    """Who opens a WebSocket and says nothing is closed."""
    async with stage() as at, at.opened() as client:
        at.wait(10)
        assert await client.ended() == ("CONNECT_TIMEOUT", 4012)


async def test_silence_is_broken_by_ping_and_ended_by_timeout() -> None:
    """After a keepalive of silence the front pings; after two without a byte it closes."""
    async with stage() as at, at.client() as client:
        at.wait(30)
        assert await client.recv(c.Ping) == c.Ping()
        at.wait(30)
        assert await client.ended() == ("KEEPALIVE_TIMEOUT", 4011)


async def test_signs_of_life_keep_a_connection() -> None:
    """A client that sends anything within twice the keepalive stays."""
    async with stage() as at, at.client() as client:
        for n in range(4):
            at.wait(30)
            await client.recv(c.Ping)
            await client.send(c.Pong(), c.Ping(n))
            await client.recv(c.Pong)
        at.wait(29)
        await client.send(c.Ping(9))
        assert await client.recv(c.Pong) == c.Pong(9)


async def test_who_is_not_read_from_is_not_called_silent() -> None:
    """A publisher with too many unanswered publications is kept, however long that takes."""
    async with stage(FrontLimits(client=c.Limits(unanswered=1))) as at, at.client() as client:
        at.engine.hold = True
        await client.send(c.Publish(1, PID, [c.Sent("/t", "x", 1)]))
        await at.until(lambda: bool(at.engine.held))
        for _ in range(4):
            at.wait(30)
            await client.recv(c.Ping)
        at.engine.release()
        await client.recv(c.Ack)


async def test_a_websocket_ping_is_answered() -> None:
    """With its own payload, as the standard says."""
    async with stage() as at, at.client() as client:
        client.protocol.send_ping(b"abc")
        client.protocol.send_pong(b"unasked")
        await client.flush()
        pong = await client.frame()
        assert (pong.opcode, pong.data) == (Opcode.PONG, b"abc")


async def test_goaway_comes_before_a_planned_close() -> None:
    """GOAWAY at once, service until the time is over, then the close; no new connections."""
    async with stage() as at, at.client() as client, at.opened() as stranger:
        await client.subscribe("/t")
        at.front.handle(Closing("DRAINING", ["127.0.0.1:8801"], 300))
        at.front.flush()
        goaway = await client.recv(c.Goaway)
        assert (goaway.code, goaway.servers) == ("DRAINING", ["127.0.0.1:8801"])
        assert goaway.after_ms == 300
        at.engine.publish("/t", b"x")
        assert await client.sequences(1) == [1]
        with pytest.raises(OSError, match="all attempts"):
            await trio.open_tcp_stream("127.0.0.1", at.port)
        assert at.front.closed == {}
        at.wait(0.3)
        assert await client.ended() == ("DRAINING", 4102)
        assert await stranger.ended() == ("DRAINING", 4102)
        await at.until(lambda: at.front.clients() == 0)
        at.front.handle(Serving(ready=True))
        async with at.client():
            pass


async def test_closes_are_paced() -> None:
    """Only some connections are closed per tick, in the order in which they came."""
    paced = FrontLimits(goodbyes_per_tick=1)
    async with stage(paced) as at, at.client() as one, at.client() as two, at.raw() as raw:
        at.front.handle(Closing("ISOLATED", [], 0))
        at.front.flush()
        assert sum(at.front.closed.values()) == 1
        at.wait(0)
        assert sum(at.front.closed.values()) == 2
        for client in (one, two):
            await client.recv(c.Goaway)
            assert await client.ended() == ("GO_ELSEWHERE", 4100)
        at.wait(0)
        assert await raw.rest() == b""


async def test_a_fault_of_our_own_ends_one_connection(caplog: pytest.LogCaptureFixture) -> None:
    """An exception while handling a client is logged, and that client is sent elsewhere."""
    async with stage() as at, at.client() as client, at.client() as neighbour:

        def broken(*_: object) -> None:
            raise KeyError("a bug")

        at.front._requests[c.Subscribe] = broken
        await client.send(c.Subscribe(1, [c.TopicRequest("/t")]))
        assert await client.ended() == ("INTERNAL_ERROR", 4104)
        await neighbour.send(c.Ping(3))
        assert await neighbour.recv(c.Pong) == c.Pong(3)
        assert "a bug" in caplog.text


async def test_running_out_of_descriptors_pauses_accepting() -> None:
    """EMFILE neither spins nor ends the front; accepting goes on when there is room again."""
    async with stage() as at:
        plane = at.front._plane
        real = plane._listener
        assert real is not None
        plane._listener = _Exhausted(real)  # type: ignore[assignment]
        async with at.raw() as raw:
            await at.until(lambda: plane._paused)
            assert at.front.clients() == 0
            plane._listener = real
            at.wait(0.5)
            await at.until(lambda: at.front.clients() == 1)
            await raw.send(b"GET / HTTP/1.1\r\n\r\n")
            assert b" 404 " in await raw.rest()


async def test_serving_may_end_while_accepting_pauses() -> None:
    """Both orders leave a listener that can be started again."""
    async with stage() as at:
        plane = at.front._plane
        real = plane._listener
        assert real is not None
        plane._listener = _Exhausted(real)  # type: ignore[assignment]
        async with at.raw():
            await at.until(lambda: plane._paused)
            plane._listener = real
            at.front.handle(Serving(ready=False))
            at.front.handle(Serving(ready=True))
            async with at.client():
                pass


async def test_a_connection_that_breaks_is_forgotten() -> None:
    """A reset in any state leaves no connection and no interest behind."""
    async with stage() as at:
        for states in range(3):
            async with at.opened() as client:
                if states:
                    await client.connect()
                if states > 1:
                    await client.subscribe("/t")
                client.stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        await at.until(lambda: at.front.clients() == 0)
        assert at.engine.interests == set()


async def test_a_driver_with_a_loop_of_its_own_can_drive() -> None:
    """read, take, put and tick do the same as run does, without any task."""
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    front = Front(FrontLimits(), "b", [], deque(), lambda: None, clock=lambda: 0.0)
    front.open(listener)
    front.put([Serving(ready=True)])
    with socket.create_connection(listener.getsockname()) as sock:
        for _ in range(2):
            await trio.lowlevel.wait_readable(front.fileno())
            front.read()
            front.tick()
            sock.sendall(b"GET /elsewhere HTTP/1.1\r\n\r\n")
        front.put([])
        assert front.take() == []
        assert (await trio.to_thread.run_sync(sock.recv, 100)).startswith(b"HTTP/1.1 404")
        assert (front.clients(), front.busy) == (1, False)
    assert "clients=1" in repr(front)
    assert "closing" in repr(front._plane.connections()[0])
    front.close()


async def test_an_engine_that_only_takes_note_is_enough() -> None:
    """`wake` may do nothing but remember: answers come whenever the engine gets to it."""
    async with stage() as at, at.client() as client:
        woken: list[int] = []
        at.front._wake = lambda: woken.append(1)
        await client.send(c.Subscribe(1, [c.TopicRequest("/t", Position(1, 0))]))
        await at.until(lambda: bool(woken))
        at.engine.turn()
        [outcome] = (await client.recv(c.Subscribed)).topics
        assert outcome.outcome == "resumed"


class _Exhausted:
    """A listener in a process without a free descriptor."""

    def __init__(self, real: socket.socket) -> None:
        self._real = real

    def accept(self) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    def fileno(self) -> int:
        return self._real.fileno()
