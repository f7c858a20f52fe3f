"""The trio client: a session, the connection under it, and the tasks that wait for it.

    async with open_client(["127.0.0.1:8800"]) as client:
        position = await client.publish("/greetings", "hello")
        async with client.subscribe("/greetings", depth=1) as messages:
            async for item in messages:
                ...

One task owns the connection: it dials, serves and dials again until the client is closed or told
to stop. Publishing and subscribing never wait for a connection, except through the window.
Readers are served in batches, with one checkpoint per frame. A reader that is slow slows only
itself: beyond its `buffer` its topics are paused at the server and resumed from its position, so
at most `buffer` messages and one frame wait for it in memory.
"""

from __future__ import annotations

import secrets
import ssl
from collections import deque
from collections.abc import AsyncIterator, Generator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random
from typing import Any, Final, Literal

import trio

from client_sdk.errors import ClientClosed, ClientError, SubscriptionDenied
from client_sdk.items import Item
from client_sdk.link import Link, LinkLost, open_link
from client_sdk.publishing import Publishing
from client_sdk.servers import Servers, url_of
from client_sdk.session import Session, SessionConfig
from client_sdk.trace import ClientTrace
from migratory.trace_files import TraceWriter
from migratory.wire import client as wire
from migratory.wire.codec import JSON, MSGPACK
from migratory.wire.codes import Code, Duty
from migratory.wire.ids import Position, topic_fault

CONNECT_TIMEOUT: Final = 5.0
SEND_TIMEOUT: Final = 10.0
SETTLED_AFTER: Final = 1.0  # a connection that served this long was a good one
BUFFER: Final = 1000


class Receipt:
    """The promise of an outcome for one published message; await it, or `wait`."""

    __slots__ = ("_message",)

    def __init__(self, message: Publishing) -> None:
        self._message = message

    def __repr__(self) -> str:
        return f"<Receipt of {self._message!r}>"

    def __await__(self) -> Generator[Any, None, Position]:
        return self.wait().__await__()

    @property
    def done(self) -> bool:
        """Whether the outcome is known."""
        return self._message.done

    @property
    def duplicate(self) -> bool:
        """Whether an earlier attempt had published the message already."""
        return self._message.duplicate

    async def wait(self) -> Position:
        """Wait for the acknowledgement; NotPublished or OutcomeUnknown when there is none."""
        message = self._message
        if message.done:
            await trio.lowlevel.checkpoint()
        else:
            if message.waiter is None:
                message.waiter = trio.Event()
            await message.waiter.wait()
        if message.error is not None:
            raise message.error
        return message.position or Position(0, 0)


class Subscription:
    """The items of some topics, in order per topic. One task reads it."""

    def __init__(self, client: Client, topics: list[str], buffer: int) -> None:
        self.topics = topics
        self._client = client
        self._buffer = buffer
        self._batches: deque[list[Item]] = deque()
        self._waiting = 0  # items in the batches
        self._current: deque[Item] = deque()
        self._paused = False
        self._error: ClientError | None = None
        self._news = trio.Event()

    def __repr__(self) -> str:
        return f"<Subscription of {len(self.topics)} topics, {self._waiting} items wait>"

    def __aiter__(self) -> Subscription:
        return self

    async def __anext__(self) -> Item:
        if not self._current:
            self._current.extend(await self.batch())
        return self._current.popleft()

    async def batch(self) -> list[Item]:
        """Wait for the next items, all of one topic; the error when nothing can come any more."""
        await trio.lowlevel.checkpoint()
        while not self._batches:
            if self._error is not None:
                raise self._error
            self._news = _unset(self._news)
            await self._news.wait()
        batch = self._batches.popleft()
        self._waiting -= len(batch)
        if self._paused and self._waiting <= self._buffer // 2:
            self._paused = False
            self._client._resume(self.topics)  # noqa: SLF001 (the two are one thing)
        return batch

    def _put(self, items: list[Item]) -> bool:
        """Take items; True when the reader has fallen too far behind just now."""
        self._batches.append(items)
        self._waiting += len(items)
        self._news.set()
        if self._paused or self._waiting <= self._buffer:
            return False
        self._paused = True
        return True

    def _fail(self, error: ClientError) -> None:
        if self._error is None:
            self._error = error
        self._news.set()


class Client:
    """A publisher and subscriber; made by `open_client`."""

    def __init__(
        self, servers: Servers, config: SessionConfig, random: Random, *, binary: bool,
        ssl_context: ssl.SSLContext | None, trace: ClientTrace | None,
    ) -> None:  # fmt: skip
        self._servers = servers
        self._session = Session(config, lambda: secrets.token_urlsafe(16), random)
        self._trace = trace
        if trace is not None:
            self._session.trace_to(trace)
        self._codec = MSGPACK if binary else JSON
        self._ssl_context = ssl_context
        self._deadline = config.publish_deadline
        self._window = trio.Semaphore(config.window)
        self._readers: dict[str, Subscription] = {}
        self._bell = trio.Event()
        self._answers = trio.Event()
        self._welcomed = trio.Event()
        self._ended: ClientError | None = None
        self._url = ""

    def __repr__(self) -> str:
        return f"<Client {self._session!r}>"

    # ---- publishing ----------------------------------------------------------------------------

    async def publish(self, topic: str, payload: str | bytes) -> Position:
        """Publish a message and wait until it is safe; its position.

        Raises NotPublished when it certainly is not published, OutcomeUnknown when that cannot be
        known. When cancelled, a message that was not sent yet is withdrawn; one that was sent is
        still brought to its end. Position(0, 0) means: safe, but where is no longer known.
        """
        message = await self._publish(topic, payload)
        try:
            return await Receipt(message).wait()
        except trio.Cancelled:
            self._session.withdraw(message)
            self._dispatch()
            raise

    async def publish_soon(self, topic: str, payload: str | bytes) -> Receipt:
        """Publish without waiting for the outcome: waits only while the window is full."""
        return Receipt(await self._publish(topic, payload))

    async def publish_unacknowledged(self, topic: str, payload: str | bytes) -> None:
        """Send a message at most once, without any promise."""
        await Receipt(await self._publish(topic, payload, acknowledge=False)).wait()

    async def flush(self) -> None:
        """Wait until everything published so far has an outcome."""
        await trio.lowlevel.checkpoint()
        while self._session.pending:
            self._answers = _unset(self._answers)
            await self._answers.wait()

    async def _publish(
        self, topic: str, payload: str | bytes, *, acknowledge: bool = True
    ) -> Publishing:
        try:
            self._window.acquire_nowait()
        except trio.WouldBlock:
            await self._window.acquire()
        try:
            self._check()
            now = trio.current_time()
            message = self._session.publish(topic, payload, now, acknowledge=acknowledge)
        except BaseException:
            self._window.release()
            raise
        self._bell.set()
        return message

    # ---- subscribing ---------------------------------------------------------------------------

    @asynccontextmanager
    async def subscribe(
        self,
        *topics: str,
        positions: Mapping[str, Position] | None = None,
        depth: int = 0,
        buffer: int = BUFFER,
    ) -> AsyncIterator[Subscription]:
        """Subscribe topics: after their `positions`, else with `depth` messages of history.

        Raises AlreadySubscribed, or SubscriptionDenied here or while iterating.
        """
        self._check()
        known = positions or {}
        for topic in topics:
            fault = topic_fault(topic)
            if fault is not None:
                raise SubscriptionDenied(topic, Code.BAD_TOPIC.name, fault, "correct the topic")
        names = list(dict.fromkeys(topics))
        self._session.subscribe(wire.TopicRequest(t, known.get(t), depth) for t in names)
        subscription = Subscription(self, names, buffer)
        self._readers.update((topic, subscription) for topic in names)
        self._bell.set()
        try:
            yield subscription
        finally:
            for topic in names:
                del self._readers[topic]
            self._session.unsubscribe(names)
            self._bell.set()

    def position(self, topic: str) -> Position | None:
        """The position of the last message of a topic that was given to its reader's buffer."""
        return self._session.position(topic)

    def _resume(self, topics: Sequence[str]) -> None:
        self._session.resume(topics)
        self._bell.set()

    # ---- the connection ------------------------------------------------------------------------

    @property
    def contact(self) -> str:
        """The id of the member that serves this client now, "" for none."""
        welcome = self._session.welcome
        return welcome.member if welcome else ""

    async def wait_connected(self) -> str:
        """Wait until a server has welcomed the client; its member id."""
        await trio.lowlevel.checkpoint()
        while not self.contact:
            self._check()
            self._welcomed = _unset(self._welcomed)
            await self._welcomed.wait()
        return self.contact

    def _check(self) -> None:
        if self._ended is not None:
            raise self._ended

    async def _run(self) -> None:
        """Keep a connection until the client is told to stop."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._expire)
            while self._session.stopped is None:
                await trio.sleep(self._servers.delay())
                await self._visit(self._servers.choose(trio.current_time()))
            self._end(self._session.stopped)
            nursery.cancel_scope.cancel()

    async def _visit(self, address: str) -> None:
        """Connect to a server and stay as long as it goes well."""
        url, started = url_of(address, self._url), trio.current_time()
        code, reason = 1000, ""
        try:
            async with open_link(
                url,
                self._codec,
                ssl_context=self._ssl_context,
                connect_timeout=CONNECT_TIMEOUT,
                send_timeout=SEND_TIMEOUT,
            ) as link:
                self._url, started = url, trio.current_time()
                self._session.opened(started)
                code, reason = await self._serve(link)
        except LinkLost as lost:
            code, reason = lost.code, lost.reason
        now = trio.current_time()
        welcomed = bool(self.contact)
        leave = self._session.closed(code, reason, now)
        self._dispatch()
        if welcomed and now - started >= SETTLED_AFTER:
            self._servers.worked(address)
        if leave.blame:
            self._servers.failed(address, now)
        self._servers.hint(leave.servers)

    async def _serve(self, link: Link) -> tuple[int, str]:
        """Read and write until one of them ends; the close code and reason."""
        outcome: list[tuple[int, str]] = []
        async with trio.open_nursery() as nursery:

            async def guard(task: Any) -> None:
                try:
                    await task(link)
                except LinkLost as lost:
                    outcome.append((lost.code, lost.reason))
                nursery.cancel_scope.cancel()

            nursery.start_soon(guard, self._read)
            nursery.start_soon(guard, self._write)
        # The server's close code says more than the error of a send that it broke.
        told = [end for end in outcome if Duty.of(end[0]) is not None]
        return (told or outcome or [(1000, "")])[0]

    async def _read(self, link: Link) -> None:
        while True:
            message = await link.receive()
            self._session.received(message, trio.current_time())
            if isinstance(message, wire.Welcome):
                self._servers.learn(message.servers)
                self._welcomed.set()
            self._dispatch()
            if not isinstance(message, wire.Messages) or self._session.leave is not None:
                self._bell.set()  # there may be something to send

    async def _write(self, link: Link) -> None:
        while True:
            self._bell = trio.Event()
            # Linger 0: whatever waits when the sender wakes goes out together.
            frames = self._session.collect(trio.current_time())
            self._dispatch()
            for frame in frames:
                await link.send(frame)
            leave = self._session.leave
            if leave is not None and leave.at <= trio.current_time():
                return
            wake = self._session.next_wake()
            with trio.move_on_at(float("inf") if wake is None else wake):
                await self._bell.wait()

    async def _expire(self) -> None:
        """Give up overdue messages also while there is no connection."""
        while True:
            await trio.sleep(min(1.0, self._deadline / 8))
            self._session.expire(trio.current_time())
            self._dispatch()

    def _dispatch(self) -> None:
        """Hand on what the session has for readers and publishers."""
        session = self._session
        for topic, items in session.take_items():
            reader = self._readers[topic]  # it leaves together with its topics
            if reader._put(items):  # noqa: SLF001 (the two are one thing)
                session.pause(reader.topics)
                self._bell.set()
        for topic, error in session.take_failures():
            self._readers[topic]._fail(error)  # noqa: SLF001 (the two are one thing)
        settled = session.take_settled()
        for message in settled:
            self._window.release()
            if message.waiter is not None:
                message.waiter.set()
        if settled:
            self._answers.set()

    def _end(self, error: ClientError) -> None:
        if self._ended is None:
            self._ended = error
        self._session.fail_pending(error.code, error.message)
        self._dispatch()
        if self._trace is not None:
            self._trace.closed(error.code)
        for reader in self._readers.values():
            reader._fail(error)  # noqa: SLF001 (the two are one thing)
        self._welcomed.set()


@asynccontextmanager
async def open_client(  # noqa: PLR0913 (all but the first have defaults that suit most)
    servers: Sequence[str],
    *,
    token: str = "",
    client: str = "",
    encoding: Literal["msgpack", "json"] = "msgpack",
    window: int = 1000,
    publish_deadline: float = 120.0,
    ssl_context: ssl.SSLContext | None = None,
    random: Random | None = None,
    trace: TraceWriter | None = None,
) -> AsyncIterator[Client]:
    """Open a client of these servers: `host:port`, or whole ws:// or wss:// addresses.

    Returns at once and connects in the background; `wait_connected` waits. `window` bounds the
    messages without an outcome. Leaving the block closes the client: what is still pending then
    fails, so `flush` first what must not. What the client does is written to `trace`.
    """
    chance = random or Random(secrets.randbits(64))
    config = SessionConfig(
        token=token, client=client, window=window, publish_deadline=publish_deadline
    )
    known = Servers(servers, chance)
    opened = Client(
        known,
        config,
        chance,
        binary=encoding == "msgpack",
        ssl_context=ssl_context,
        trace=ClientTrace(trace, client) if trace else None,
    )
    failure: Exception | None = None
    async with trio.open_nursery() as nursery:
        nursery.start_soon(opened._run)  # noqa: SLF001 (they are one module)
        try:
            yield opened
        except Exception as error:  # noqa: BLE001 (raised below, outside of the nursery's group)
            failure = error
        finally:
            opened._end(ClientClosed())  # noqa: SLF001 (they are one module)
            nursery.cancel_scope.cancel()
    if failure is not None:
        raise failure


def _unset(event: trio.Event) -> trio.Event:
    """An event to wait for: the same for all who wait, a new one once it has happened."""
    return trio.Event() if event.is_set() else event
