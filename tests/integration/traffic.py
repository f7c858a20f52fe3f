"""Live traffic on a cluster, written into a ledger."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import AsyncIterator

import trio

from client_sdk.client import Client, open_client
from client_sdk.errors import ClientError
from client_sdk.items import Gap, Message, Reset
from migratory.commands.ledger import Ledger
from migratory.shell.local_cluster import LocalCluster

TOPICS = [f"/traffic/{n}" for n in range(12)]
EVERY = 0.005  # seconds between two messages
ARRIVE = 20.0  # seconds for everything to arrive at the end


class Traffic(Ledger):
    """A publisher and some subscribers, noting everything, until `finish`."""

    def __init__(self, cluster: LocalCluster, subscribers: int) -> None:
        super().__init__(TOPICS, subscribers)
        self.cluster = cluster
        self.slowest = 0.0  # the longest wait for an acknowledgement
        self.errors: list[ClientError] = []
        self.resets: list[Reset] = []
        self._stop = trio.Event()
        self._done = trio.Event()

    async def publish(self) -> None:
        """One message after another, many under way."""
        async with open_client(self.cluster.servers) as client, trio.open_nursery() as nursery:
            for n in itertools.count():
                if self._stop.is_set():
                    break
                nursery.start_soon(self._publish_one, client, TOPICS[n % len(TOPICS)], f"{n}")
                await trio.sleep(EVERY)
        self._done.set()

    async def _publish_one(self, client: Client, topic: str, text: str) -> None:
        self.published += 1
        began = trio.current_time()
        try:
            position = await client.publish(topic, text)
        except ClientError as error:
            self.errors.append(error)
            return
        self.slowest = max(self.slowest, trio.current_time() - began)
        self.acked[topic][position] = text

    async def subscribe(self, n: int, task_status: trio.TaskStatus[None]) -> None:
        """Note what one subscriber gets."""
        waiting = set(TOPICS)
        async with open_client(self.cluster.servers) as client, client.subscribe(*TOPICS) as items:
            async for item in items:
                if item.topic in waiting:
                    waiting.discard(item.topic)
                    if not waiting:
                        task_status.started()
                if isinstance(item, Message):
                    self.delivered[n][item.topic].append(item)
                elif isinstance(item, Gap | Reset):
                    self.gaps += 1
                    if isinstance(item, Reset):
                        self.resets.append(item)

    async def acks(self, count: int, patience: float = 30.0) -> None:
        """Wait for so many more acknowledgements."""
        wanted = self.ack_count + count
        with trio.fail_after(patience):
            while self.ack_count < wanted:  # noqa: ASYNC110 (notes are taken by many tasks)
                await trio.sleep(0.01)

    async def finish(self) -> None:
        """Publish nothing more, and wait until everything acknowledged has arrived."""
        self._stop.set()
        with trio.fail_after(ARRIVE):
            await self._done.wait()
        with trio.move_on_after(ARRIVE):
            while self.lost():  # noqa: ASYNC110 (notes are taken by many tasks)
                await trio.sleep(0.05)

    def check(self) -> None:
        """Everything acknowledged was delivered once, in order, to everybody; nothing failed."""
        assert not self.errors, self.errors[:3]
        assert self.ack_count == self.published > 0
        assert self.faultless(), f"{self.summary()} gaps {self.gaps}"


@contextlib.asynccontextmanager
async def live_traffic(cluster: LocalCluster, subscribers: int = 3) -> AsyncIterator[Traffic]:
    """Traffic that flows: everybody is subscribed, and the first messages are acknowledged."""
    traffic = Traffic(cluster, subscribers)
    async with trio.open_nursery() as nursery:
        for n in range(subscribers):
            await nursery.start(traffic.subscribe, n)
        nursery.start_soon(traffic.publish)
        await traffic.acks(50)
        yield traffic
        nursery.cancel_scope.cancel()
