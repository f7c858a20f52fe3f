"""Small servers for tests of the trio client: they speak the protocol over real sockets.

All servers of a `Cloud` share its topics, so that a client can move between them. It runs on
trio-websocket, which is good enough for tests and not for the world.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from functools import partial
from typing import Any

import trio
import trio_websocket as ws

from migratory.wire import client as wire
from migratory.wire.codec import CODECS, Codec
from migratory.wire.codes import Code
from migratory.wire.ids import Position

LIMIT = 20  # seconds that any wait of a test may take


async def until(holds: Callable[[], Any]) -> None:
    """Wait for something that other tasks bring about."""
    with trio.fail_after(LIMIT):
        while not holds():  # noqa: ASYNC110 (what is waited for has no event of its own)
            await trio.sleep(0.002)


class Cloud:
    """Topics and publishers, as if all members were one."""

    def __init__(self, keepalive_ms: int = 10_000) -> None:
        self.keepalive_ms = keepalive_ms
        self.logs: dict[str, list[Any]] = {}
        self.publishers: dict[tuple[str, str], tuple[int, int]] = {}
        self.servers: list[Server] = []
        self.counts: Counter[str] = Counter()  # frames by type
        self.denied: dict[str, wire.Outcome] = {}  # topics that are refused
        self.deaf = False  # publications are carried out and not answered

    def texts(self, topic: str) -> list[Any]:
        """The payloads of a topic in order."""
        return self.logs.get(topic, [])

    def publish(self, pid: str, sent: wire.Sent) -> tuple[int, bool]:
        """Store a message unless it is there; its sequence, and whether it was there."""
        log = self.logs.setdefault(sent.topic, [])
        pseq, sequence = self.publishers.get((pid, sent.topic), (0, 0))
        if pid and sent.pseq <= pseq:
            return (sequence if sent.pseq == pseq else 0), True
        assert not pid or sent.pseq == pseq + 1, "out of order"
        log.append(sent.data)
        self.publishers[pid, sent.topic] = sent.pseq, len(log)
        return len(log), False

    def spread(self) -> None:
        """Send every subscriber what it has not got yet."""
        for server in self.servers:
            for connection in server.connections:
                connection.deliver()


class Connection:
    """A client of one server."""

    def __init__(self, cloud: Cloud, server: Server, socket: Any, codec: Codec) -> None:
        self.cloud = cloud
        self.server = server
        self.socket = socket
        self.codec = codec
        self.at: dict[str, int] = {}
        self.out, self._out = trio.open_memory_channel[wire.ServerMessage](math.inf)

    async def run(self) -> None:
        """Serve until the client goes."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._write)
            try:
                while True:
                    self._handle(self.codec.decode(await self.socket.get_message()))
            except ws.ConnectionClosed:
                nursery.cancel_scope.cancel()

    async def _write(self) -> None:
        async for message in self._out:
            frame = self.codec.encode(message)
            try:
                await self.socket.send_message(frame.decode() if self.codec.text else frame)
            except ws.ConnectionClosed:
                return

    def say(self, message: wire.ServerMessage) -> None:
        """Send something to the client."""
        self.out.send_nowait(message)

    def deliver(self) -> None:
        """Send messages of all topics after what was sent."""
        for topic, at in self.at.items():
            log = self.cloud.texts(topic)
            if at < len(log):
                part = [wire.Message(1, at + i + 1, 0, data) for i, data in enumerate(log[at:])]
                self.say(wire.Messages(topic, part))
                self.at[topic] = len(log)

    def _handle(self, message: wire.ClientMessage) -> None:
        self.cloud.counts[type(message).__name__] += 1
        if self.server.frozen:
            return
        match message:
            case wire.Connect():
                servers = [wire.Server(server.address) for server in self.cloud.servers]
                self.say(
                    wire.Welcome(
                        1,
                        self.server.name,
                        self.cloud.keepalive_ms,
                        wire.Limits(),
                        servers,
                        900_000,
                    )
                )
            case wire.Subscribe(id_, topics):
                for request in topics:
                    self._subscribe(id_, request)
            case wire.Unsubscribe(id_, names):
                for name in names:
                    self.at.pop(name, None)
                self.say(wire.Unsubscribed(id_))
            case wire.Publish():
                self._publish(message)
            case wire.Ping(n):
                self.say(wire.Pong(n))

    def _subscribe(self, id_: int, request: wire.TopicRequest) -> None:
        topic, log = request.topic, self.cloud.texts(request.topic)
        outcome = self.cloud.denied.get(topic)
        if outcome is None:
            if request.position is None:
                start = max(0, len(log) - request.depth)
                outcome = wire.Outcome(topic, "fresh", Position(1, start))
            else:
                start = request.position.sequence
                outcome = wire.Outcome(topic, "resumed", request.position, missed=len(log) - start)
            self.at[topic] = start
        self.say(wire.Subscribed(id_, [outcome]))
        self.deliver()

    def _publish(self, frame: wire.Publish) -> None:
        acked = []
        for index, sent in enumerate(frame.messages):
            sequence, duplicate = self.cloud.publish(frame.pid, sent)
            acked.append(wire.Acked(frame.id, index, 1 if sequence else 0, sequence, duplicate))
        self.cloud.spread()
        if not self.cloud.deaf and frame.pid:
            self.say(wire.Ack(acked))


class Server:
    """One member of the cloud, on a port of its own."""

    def __init__(self, cloud: Cloud, name: str) -> None:
        self.cloud = cloud
        self.name = name
        self.address = ""
        self.connections: list[Connection] = []
        self.frozen = False
        self.status = 101  # another one refuses the handshake
        self.garbage = False  # says something that is no answer
        self.mute = False  # speaks no subprotocol
        self.visits = 0
        self._scope = trio.CancelScope()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Listen until killed."""
        with self._scope:
            async with trio.open_nursery() as nursery:
                serve = partial(ws.serve_websocket, self._accept, "127.0.0.1", 0, None)
                listening = await nursery.start(serve)
                self.address = f"127.0.0.1:{listening.port}"
                self.cloud.servers.append(self)
                task_status.started()

    async def _accept(self, request: Any) -> None:
        self.visits += 1
        if self.status != 101:
            await request.reject(self.status)
            return
        wanted = next(p for p in request.proposed_subprotocols if p in CODECS)
        socket = await request.accept(subprotocol=None if self.mute else wanted)
        if self.garbage:
            await socket.send_message("noise")
        connection = Connection(self.cloud, self, socket, CODECS[wanted])
        self.connections.append(connection)
        try:
            await connection.run()
        finally:
            self.connections.remove(connection)

    async def kill(self) -> None:
        """Break every connection without a word and listen no more, as kill -9 does."""
        self.cloud.servers.remove(self)
        for connection in list(self.connections):
            await trio.aclose_forcefully(connection.socket._stream)
        self._scope.cancel()

    async def close(self, code: Code) -> None:
        """End every connection with a code, after an ERROR."""
        for connection in list(self.connections):
            frame = connection.codec.encode(wire.Error(code.name, f"told by {self.name}"))
            await connection.socket.send_message(frame)
            await connection.socket.aclose(code.number, code.name)


@asynccontextmanager
async def cloud_of(
    count: int, keepalive_ms: int = 10_000
) -> AsyncIterator[tuple[Cloud, list[Server]]]:
    """Start some servers."""
    cloud = Cloud(keepalive_ms)
    servers = [Server(cloud, f"m-{i + 1}") for i in range(count)]
    async with trio.open_nursery() as nursery:
        for server in servers:
            await nursery.start(server.run)
        try:
            yield cloud, servers
        finally:
            nursery.cancel_scope.cancel()
