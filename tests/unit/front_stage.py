"""A front on a real loopback socket, an engine on a dict of lists, and clients to talk to it.

The clients speak through the sans-I/O `websockets.ClientProtocol`, which judges every byte of the
front by itself, or through raw sockets where a test wants to break the rules.
"""

from __future__ import annotations

import contextlib
import socket
from collections import deque
from collections.abc import AsyncIterator, Callable
from typing import TypeVar

import trio
import trio.testing
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.protocol import State
from websockets.speedups import apply_mask
from websockets.typing import Subprotocol
from websockets.uri import parse_uri

from migratory.front.connection import Connection
from migratory.front.front import Front, any_origin
from migratory.front.limits import FrontLimits
from migratory.front.plane import TICK_S
from migratory.wire import client as c
from migratory.wire.codec import MSGPACK, Codec
from migratory.wire.entry import MSG, Entry
from migratory.wire.ids import Position
from migratory.wire.peer import Publication, Refusal
from migratory.wire.shard import (
    Answers,
    Fresh,
    Gap,
    Live,
    More,
    NotServed,
    Page,
    PubAck,
    Pubs,
    Reset,
    Resumed,
    Serving,
    Sub,
    ToEngine,
    ToFront,
    Unsub,
)

T = TypeVar("T")
PID = "publisher-0123456789"


class Engine:
    """Topics are lists of entries whose first ones may be cut off; every epoch is 1."""

    def __init__(self) -> None:
        self.fifo: deque[ToEngine] = deque()
        self.topics: dict[str, list[Entry]] = {}
        self.first: dict[str, int] = {}  # first cached sequence, where it is not 1
        self.interests: set[str] = set()
        self.seen: list[ToEngine] = []
        self.page = 1000  # messages on a page
        self.hold = False  # answer publications later
        self.held: list[Publication] = []
        self.refuse: dict[str, str] = {}  # topics, and the code that refuses them
        self.lost = False  # what position a client has means nothing any more
        self.front: Front | None = None

    def turn(self) -> None:
        """Everything that waits, and what that leads to."""
        assert self.front is not None
        while self.fifo:
            message = self.fifo.popleft()
            self.seen.append(message)
            for answer in self.answer(message):
                self.front.handle(answer)
        self.front.flush()

    def answer(self, message: ToEngine) -> list[ToFront]:
        """What one message leads to."""
        match message:
            case Sub(sub, topic, position, depth):
                self.interests.add(topic)
                return [self.serve(sub, topic, position, depth)]
            case More(sub, topic, after):
                return [self.serve(sub, topic, after, 0)]
            case Unsub(topic):
                self.interests.discard(topic)
                return []
            case Pubs(items):
                if self.hold:
                    self.held += items
                    return []
                return self.commit(items)

    def serve(self, sub: int, topic: str, position: Position | None, depth: int) -> ToFront:
        """One page."""
        if topic in self.refuse:
            return NotServed(sub, topic, self.refuse[topic])
        entries = self.topics.get(topic, [])
        head, first = len(entries), self.first.get(topic, 1)
        outcome: Fresh | Resumed | Gap | Reset
        if position is None:
            outcome, seq = Fresh(), max(head - depth, first - 1)
        elif self.lost:
            outcome, seq, self.lost = Reset("history_lost"), head, False
        elif position.sequence + 1 < first:
            outcome, seq = Gap(position.sequence + 1, first, head), first - 1
        else:
            outcome, seq = Resumed(head - position.sequence), position.sequence
        page = entries[seq : seq + self.page]
        return Page(sub, topic, outcome, 1, seq, page, seq + len(page) == head)

    def commit(self, items: list[Publication]) -> list[ToFront]:
        """Append publications, announce them, acknowledge them."""
        out: list[ToFront] = []
        answers: list[PubAck | Refusal] = []
        for item in items:
            if item.topic in self.refuse:
                answers.append(Refusal(item.ref, self.refuse[item.topic], item.rewind, 7))
                continue
            entries = self.topics.setdefault(item.topic, [])
            at = len(entries) + 1
            entries.append(Entry(1, MSG, 5, 5, item.topic, at, item.flags, payload=item.payload))
            if item.topic in self.interests:
                out.append(Live(item.topic, [entries[-1]]))
            if item.pid:
                answers.append(PubAck(item.ref, Position(1, len(entries))))
        return [*out, Answers(answers)] if answers else out

    def publish(self, topic: str, *payloads: bytes) -> None:
        """Commit messages of somebody elsewhere."""
        assert self.front is not None
        for answer in self.commit([Publication(topic, payload) for payload in payloads]):
            self.front.handle(answer)
        self.front.flush()

    def release(self) -> None:
        """Answer what was held back."""
        assert self.front is not None
        held, self.held = self.held, []
        for answer in self.commit(held):
            self.front.handle(answer)
        self.front.flush()


class Raw:
    """A TCP connection to the front."""

    def __init__(self, stream: trio.SocketStream) -> None:
        self.stream = stream

    async def send(self, data: bytes) -> None:
        """Bytes as they are."""
        await self.stream.send_all(data)

    async def rest(self) -> bytes:
        """Everything until the front closes."""
        found = b""
        with contextlib.suppress(trio.BrokenResourceError):
            async for chunk in self.stream:
                found += chunk
        return found


class Client:
    """A WebSocket client that checks what it gets."""

    def __init__(self, stream: trio.SocketStream, codec: Codec) -> None:
        self.stream, self.codec = stream, codec
        uri = parse_uri("ws://front/v1/ws")
        names = [Subprotocol(codec.subprotocol)]
        self.protocol = ClientProtocol(uri, subprotocols=names, max_size=4 << 20)
        self.frames: deque[Frame] = deque()

    async def open(self) -> None:
        """The handshake."""
        self.protocol.send_request(self.protocol.connect())
        await self.flush()
        while self.protocol.state is State.CONNECTING:
            await self.pull()
        assert self.protocol.handshake_exc is None, self.protocol.handshake_exc
        assert self.protocol.subprotocol == self.codec.subprotocol

    async def flush(self) -> None:
        """Send what the protocol has to send."""
        for data in self.protocol.data_to_send():
            if data:
                with contextlib.suppress(trio.BrokenResourceError):
                    await self.stream.send_all(data)
            else:
                with contextlib.suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                    await self.stream.send_eof()

    async def pull(self) -> bool:
        """Receive some bytes; False at the end."""
        try:
            data = await self.stream.receive_some(65536)
        except trio.BrokenResourceError:
            data = b""
        if data:
            self.protocol.receive_data(data)
        else:
            self.protocol.receive_eof()
        for event in self.protocol.events_received():
            if isinstance(event, Frame):
                self.frames.append(event)
        await self.flush()
        return bool(data)

    async def raw(self, data: bytes) -> None:
        """Bytes as they are, past the protocol."""
        await self.stream.send_all(data)

    async def send(self, *messages: c.ClientMessage) -> None:
        """Messages, all in one write."""
        for message in messages:
            data = self.codec.encode_request(message)
            (self.protocol.send_text if self.codec.text else self.protocol.send_binary)(data)
        await self.stream.send_all(b"".join(self.protocol.data_to_send()))

    async def frame(self) -> Frame:
        """The next frame."""
        while not self.frames:
            assert await self.pull(), f"closed with {self.protocol.close_code}"
        return self.frames.popleft()

    async def recv(self, kind: type[T]) -> T:
        """The next message, which must be of this kind."""
        frame = await self.frame()
        assert frame.opcode in (Opcode.TEXT, Opcode.BINARY), frame
        assert (frame.opcode is Opcode.TEXT) == self.codec.text
        message = self.codec.decode_answer(frame.data)
        assert isinstance(message, kind), message
        return message

    async def connect(self) -> c.Welcome:
        """CONNECT and WELCOME."""
        await self.send(c.Connect(1))
        return await self.recv(c.Welcome)

    async def subscribe(
        self, topic: str, position: Position | None = None, depth: int = 0, request: int = 1
    ) -> c.Outcome:
        """Subscribe one topic."""
        await self.send(c.Subscribe(request, [c.TopicRequest(topic, position, depth)]))
        answer = await self.recv(c.Subscribed)
        assert answer.id == request
        [outcome] = answer.topics
        return outcome

    async def sequences(self, count: int) -> list[int]:
        """The sequences of that many messages, however they are framed."""
        found: list[int] = []
        while len(found) < count:
            found += [m.sequence for m in (await self.recv(c.Messages)).messages]
        return found

    async def ended(self) -> tuple[str, int]:
        """The code of the ERROR that comes next, and the number of the close that follows."""
        error = await self.recv(c.Error)
        return error.code, await self.closed()

    async def closed(self) -> int:
        """Read to the end; the close code."""
        while await self.pull():
            pass
        return self.protocol.close_code or 1006


class Clock:
    """Time that passes when a test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        """The time."""
        return self.now


class Stage:
    """A running front and its engine."""

    def __init__(self, front: Front, engine: Engine, port: int, clock: Clock) -> None:
        self.front, self.engine, self.port, self.clock = front, engine, port, clock

    def wait(self, seconds: float) -> None:
        """Let time pass for the front, with a tick to spare."""
        self.clock.now += seconds + 2 * TICK_S
        self.front.tick()
        self.front.flush()

    @contextlib.asynccontextmanager
    async def raw(self) -> AsyncIterator[Raw]:
        """A TCP connection."""
        async with await trio.open_tcp_stream("127.0.0.1", self.port) as stream:
            yield Raw(stream)

    @contextlib.asynccontextmanager
    async def opened(self, codec: Codec = MSGPACK, rcvbuf: int = 0) -> AsyncIterator[Client]:
        """A WebSocket on which CONNECT was not sent."""
        sock = trio.socket.socket()
        if rcvbuf:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, rcvbuf)
        try:
            await sock.connect(("127.0.0.1", self.port))
        except BaseException:
            sock.close()
            raise
        async with trio.SocketStream(sock) as stream:
            client = Client(stream, codec)
            await client.open()
            yield client

    @contextlib.asynccontextmanager
    async def client(self, codec: Codec = MSGPACK, rcvbuf: int = 0) -> AsyncIterator[Client]:
        """A client that is connected."""
        async with self.opened(codec, rcvbuf) as client:
            await client.connect()
            yield client

    async def fill(self, conn: Connection, topic: str, payload: bytes) -> None:
        """Publish until the kernel takes nothing more for a client that does not read.

        A socket that would block takes more a moment later, as the kernel moves its buffers; it is
        full when nothing has moved for a while.
        """
        queued = 0
        while not conn.blocked or conn.queued != queued:
            if not conn.blocked:
                self.engine.publish(topic, payload)
            queued = conn.queued
            await trio.sleep(0.1)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the front will do."""
        while not condition():  # noqa: ASYNC110 (the front does not tell tests what it does)
            await trio.sleep(0.002)


@contextlib.asynccontextmanager
async def stage(
    limits: FrontLimits = FrontLimits(),  # noqa: B008 (it is frozen)
    origin: Callable[[str | None], bool] = any_origin,
) -> AsyncIterator[Stage]:
    """A front that serves; whatever a test waits for must come within half a minute."""
    engine = Engine()
    servers = [c.Server("127.0.0.1:8800")]
    clock = Clock()
    front = Front(limits, "a", servers, engine.fifo, engine.turn, origin, clock)
    engine.front = front
    listener = _bound()
    with trio.fail_after(30):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(front.run, listener)
            await trio.testing.wait_all_tasks_blocked()
            front.handle(Serving(ready=True))
            yield Stage(front, engine, listener.getsockname()[1], clock)
            nursery.cancel_scope.cancel()


def _bound() -> socket.socket:
    """A socket bound to a free port by its number."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    listener = socket.socket()
    listener.bind(address)
    return listener


def masked(first: int, payload: bytes, size: bytes = b"") -> bytes:
    """A client's frame with this first byte, and a length of its own if given."""
    mask = b"\x12\x34\x56\x78"  # always the same, since frames become names of tests
    if not size:
        n = len(payload)
        if n < 126:
            size = bytes([128 | n])
        elif n < 65536:
            size = b"\xfe" + n.to_bytes(2, "big")
        else:
            size = b"\xff" + n.to_bytes(8, "big")
    return bytes([first]) + size + mask + apply_mask(payload, mask)
