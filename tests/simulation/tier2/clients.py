"""Publishers and subscribers: the real SDK, on streets that stall and are torn.

Only the way to a server and the source of publisher ids are replaced. A session that does not
trust its connection is a violation here, although in life it would repair it in silence.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from random import Random
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import urlsplit

import trio

from client_sdk import (
    Client,
    NotPublished,
    OutcomeUnknown,
    Receipt,
    Subscription,
    client,
    link,
    open_client,
)
from client_sdk.link import ABNORMAL, LinkLost
from client_sdk.session import Session, SessionConfig
from client_sdk.subscriptions import State
from migratory.wire.client import Messages, ServerMessage
from migratory.wire.ids import Position
from tests.simulation.checker import Violation
from tests.simulation.clients import TOPICS
from tests.simulation.tier2.judge import Reader, Sent

if TYPE_CHECKING:
    from tests.simulation.tier2.world import World

PROMPT = 2.0  # seconds for an acknowledgement when all is well


class StrictSession(Session):
    """A session that does not forgive: neither a gap nor a message that it has already."""

    def received(self, message: ServerMessage, now: float) -> None:
        """Take one message of the server."""
        if isinstance(message, Messages):
            topic = self._subscriptions._live(message.topic)
            position = topic.position if topic is not None else None
            first = message.messages[0]
            if position is not None and first.sequence <= position.sequence:
                raise Violation(f"TWICE {first} of {message.topic} at {position}")
        super().received(message, now)

    def _depart(
        self, reason: str, at: float, *, blame: bool, servers: list[str] | None = None
    ) -> None:
        if reason.startswith("broken delivery"):
            raise Violation(f"BROKEN-DELIVERY {reason} from {self.welcome}")
        super()._depart(reason, at, blame=blame, servers=servers)


@contextmanager
def streets(world: World) -> Iterator[None]:
    """Let the SDK find the members of a world."""
    numbers = Random(world.random.getrandbits(64))

    def session(config: SessionConfig, _pid: object, random: Random) -> Session:
        return StrictSession(config, lambda: f"{numbers.getrandbits(88):022x}", random)

    async def dial(url: str, *_options: object) -> Any:
        return await world.visit(urlsplit(url).hostname or "")

    replaced: list[tuple[Any, str, Any]] = [(client, "Session", session), (link, "_dial", dial)]
    usual = [getattr(module, name) for module, name, _ in replaced]
    for module, name, value in replaced:
        setattr(module, name, value)
    try:
        yield
    finally:
        for (module, name, _), value in zip(replaced, usual, strict=True):
            setattr(module, name, value)


def unreachable(name: str) -> LinkLost:
    """What the SDK makes of a server that is not there."""
    return LinkLost(ABNORMAL, f"{name} is not there")


class SimulatedClient:
    """What publishers and subscribers share: lives, one after the other."""

    def __init__(self, world: World, name: str) -> None:
        self.world = world
        self.name = name
        self.random = Random(world.random.getrandbits(64))
        self.lives = 0
        self.scope = trio.CancelScope()  # of the present life
        self.stopped = False

    async def run(self) -> None:
        """Live, crash, come back."""
        await trio.sleep(self.random.uniform(0, 0.5))
        while not self.stopped:
            self.lives += 1
            with trio.CancelScope() as self.scope:
                await self.live()
            await trio.sleep(self.random.choice([0.05, 0.5, 4.0]))

    def crash(self) -> None:
        """End the present life at once."""
        self.scope.cancel()

    async def live(self) -> None:
        """One life."""
        raise NotImplementedError

    def note(self, what: str) -> None:
        """For the trace."""
        self.world.trace.add(self.name, what)

    def encoding(self) -> Literal["msgpack", "json"]:
        """One of the two."""
        return self.random.choice(("msgpack", "json"))


class Publisher(SimulatedClient):
    """Publishes numbered messages, pipelined, and keeps account of their outcomes."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        self.number = 0
        self.waiting = 0
        self.unknown = 0

    async def live(self) -> None:
        """Publish until the end of this life; then what is under way is unknown."""
        world = self.world
        deadline = world.weather.retention.dedup_ttl_ms / 2_500
        async with (
            open_client(
                world.cluster.members,
                random=Random(self.random.getrandbits(64)),
                encoding=self.encoding(),
                publish_deadline=deadline,
                window=self.random.choice([5, 1000]),
            ) as opened,
            trio.open_nursery() as nursery,
        ):
            while not self.stopped:
                topic = self.random.choice(TOPICS)
                for _ in range(self.random.choice([1, 1, 1, 3, 10])):
                    await self._publish(opened, nursery, topic)
                await trio.sleep(self.random.uniform(0.02, 0.4))
            await opened.flush()

    async def _publish(self, opened: Client, nursery: trio.Nursery, topic: str) -> None:
        self.number += 1
        padding = "x" * self.random.choice([0, 0, 0, 0, 500, 3000])
        text = f"{self.name} {self.lives} {self.number} {padding}"
        sent = Sent(f"{self.name} {self.lives}", self.number, topic, text.encode())
        payload = text if self.random.random() < 0.5 else text.encode()
        self.world.judge.publishes(sent)
        receipt = await opened.publish_soon(topic, payload)
        self.waiting += 1
        nursery.start_soon(self._await, receipt, sent)

    async def _await(self, receipt: Receipt, sent: Sent) -> None:
        try:
            position = await receipt.wait()
        except NotPublished as error:
            sent.outcome = "never"
            self.note(f"never {sent.number} {error.code}")
        except OutcomeUnknown as error:
            self.unknown += 1
            sent.outcome = "unknown"
            self.note(f"unknown {sent.number} {error.code}")
        else:
            self.note(f"acked {sent.number} {position}")
            self.world.judge.acknowledged(sent, position)
        finally:
            self.waiting -= 1


class Probe(Publisher):
    """When everything is well: one message to each topic through one member, promptly."""

    def __init__(self, world: World, contact: str) -> None:
        super().__init__(world, f"probe-{contact}")
        self.contact = contact

    async def live(self) -> None:
        """Every message is acknowledged in time."""
        async with (
            open_client([self.contact], random=self.random, encoding=self.encoding()) as opened,
            trio.open_nursery() as nursery,
        ):
            await opened.wait_connected()
            with trio.move_on_after(PROMPT) as waiting:
                for topic in TOPICS:
                    await self._publish(opened, nursery, topic)
                await opened.flush()
            if waiting.cancelled_caught:
                raise Violation(f"LATE: {self.waiting} outcomes for {self.name} after {PROMPT} s")


class Subscriber(SimulatedClient):
    """Follows some topics, remembers its positions over its crashes."""

    def __init__(self, world: World, name: str) -> None:
        super().__init__(world, name)
        topics = self.random.sample(TOPICS, self.random.choice([1, 2, len(TOPICS)]))
        self.readers = {topic: Reader(world.judge, topic) for topic in topics}
        self.slow = self.random.random() < 0.3
        self.opened: Client | None = None

    async def live(self) -> None:
        """Read until the end of this life."""
        positions: dict[str, Position] = {
            topic: reader.position
            for topic, reader in self.readers.items()
            if reader.position is not None
        }
        async with (
            open_client(
                self.world.cluster.members,
                random=Random(self.random.getrandbits(64)),
                encoding=self.encoding(),
            ) as opened,
            opened.subscribe(
                *self.readers,
                positions=positions,
                depth=self.random.choice([0, 0, 3]),
                buffer=3 if self.slow else 1000,
            ) as items,
        ):
            self.opened = opened
            await self._read(items)

    async def _read(self, items: Subscription) -> None:
        while True:
            for item in await items.batch():
                self.note(f"{type(item).__name__} {item.topic} {item.position}")
                self.readers[item.topic].take(item)
            if self.slow and not self.world.healed:
                await trio.sleep(self.random.uniform(0, 0.5))

    def unfinished(self) -> str:
        """What it still lacks at rest."""
        if self.opened is None:
            return f"{self.name} has never come"
        topics = self.opened._session._subscriptions._topics
        for name, topic in topics.items():
            if topic.state is not State.LIVE:
                return f"{self.name} is not live on {name}"
        return next((why for r in self.readers.values() if (why := r.unfinished())), "")
