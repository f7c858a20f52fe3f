"""Steady load on a cluster for benchmarks: publishers and subscribers at every member.

Each publisher sends at its own rate, whatever becomes of earlier messages, in turn to one topic of
every group. Each acknowledgement is timed from the call of the SDK. Subscribers read all topics.
Everything is noted; at the end the notes must agree: nothing lost, doubled, reordered or refused.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import statistics
from collections.abc import AsyncIterator, Sequence

import msgspec
import trio

from client_sdk import Client, ClientError, Gap, Message, Receipt, Reset, open_client
from migratory.commands.ledger import Ledger
from migratory.shell.local_cluster import LocalCluster
from migratory.wire.ids import group_of

ARRIVE = 30.0  # seconds for the last acknowledgements and deliveries


class Sample(msgspec.Struct, frozen=True, gc=False):
    """One acknowledged message: when it was published, and after how long it was safe."""

    at: float
    took: float
    moved: bool  # the publisher was at another member when the answer came
    behind: float  # how late it was published: more than a little, and this process was too slow


class Load(Ledger):
    """Publishers and subscribers, and everything that they were told."""

    def __init__(self, cluster: LocalCluster, rate: float, publishers: int, readers: int) -> None:
        topics = topics_of(cluster.groups)
        super().__init__(topics, readers * len(cluster.names))
        self.samples: list[Sample] = []
        self.errors: list[ClientError] = []
        self.breaks: list[str] = []  # every GAP and RESET, with its reader
        self._cluster = cluster
        self._topics = topics
        self._every = publishers * len(cluster.names) / rate
        self._publishers = publishers
        self._stop = trio.Event()
        self._done = trio.Event()

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        """Subscribe, then publish until `finish`."""
        async with trio.open_nursery() as nursery:
            for n, delivered in enumerate(self.delivered):
                await nursery.start(self._read, n, delivered)
            task_status.started()
            async with trio.open_nursery() as writers:
                for n in range(self._publishers * len(self._cluster.names)):
                    writers.start_soon(self._write, self._server(n), n)
            self._done.set()

    def _server(self, n: int) -> str:
        return self._cluster.servers[n % len(self._cluster.servers)]

    async def finish(self) -> None:
        """Publish nothing more, and wait until everything has arrived or should have."""
        self._stop.set()
        with trio.move_on_after(ARRIVE):
            await self._done.wait()
            wanted = self.ack_count * len(self.delivered)
            while self.delivery_count < wanted:  # noqa: ASYNC110 (notes are taken by many tasks)
                await trio.sleep(0.1)

    def verdict(self) -> str:
        """One line: what clients saw."""
        unanswered = self.published - self.ack_count - len(self.errors)
        seen = f"errors {len(self.errors)} unanswered {unanswered} gaps or resets {self.gaps}"
        first = "".join(f"; {each}" for each in (*self.errors[:2], *self.breaks[:2]))
        return f"{self.summary()} {seen}{first}"

    @property
    def flawless(self) -> bool:
        """Whether no client saw anything of what happened."""
        return self.faultless() and not self.errors and self.ack_count == self.published > 0

    # ---- clients -------------------------------------------------------------------------------

    async def _write(self, server: str, n: int) -> None:
        """Publish on schedule; what comes late is not left out."""
        topics = itertools.cycle(self._topics[n * 7 :] + self._topics[: n * 7])
        async with open_client([server]) as client, trio.open_nursery() as nursery:
            await client.wait_connected()
            due = trio.current_time() + self._every * n / self._publishers / 3
            while not self._stop.is_set():
                topic = next(topics)
                self.published += 1
                text = f"{n}/{self.published}"
                at, contact = trio.current_time(), client.contact
                receipt = await client.publish_soon(topic, text)
                nursery.start_soon(
                    self._settle, client, receipt, topic, text, at, at - due, contact
                )
                due += self._every
                with trio.move_on_at(due):
                    await self._stop.wait()

    async def _settle(
        self, client: Client, receipt: Receipt, topic: str, text: str, at: float, behind: float,
        contact: str,
    ) -> None:  # fmt: skip
        try:
            position = await receipt.wait()
        except ClientError as error:
            self.errors.append(error)
            return
        moved = contact != client.contact
        self.samples.append(Sample(at, trio.current_time() - at, moved, behind))
        self.acked[topic][position] = text

    async def _read(
        self, n: int, delivered: dict[str, list[Message]], task_status: trio.TaskStatus[None]
    ) -> None:
        waiting = set(self._topics)
        async with (
            open_client([self._server(n)]) as client,
            client.subscribe(*self._topics) as items,
        ):
            async for item in items:
                if waiting:
                    waiting.discard(item.topic)
                    if not waiting:
                        task_status.started()
                if isinstance(item, Message):
                    delivered[item.topic].append(item)
                elif isinstance(item, Gap | Reset):
                    self.gaps += 1
                    self.breaks.append(f"reader {n} at {client.contact}: {item}")


def topics_of(groups: int) -> list[str]:
    """One topic of each group."""
    found: dict[int, str] = {}
    for n in itertools.count():
        found.setdefault(group_of(f"/load/{n}", groups), f"/load/{n}")
        if len(found) == groups:
            return [found[g] for g in range(groups)]
    raise AssertionError("there is a topic for every group")


def percentile(ordered: Sequence[float], share: float) -> float:
    """The value that this share of an ordered sequence does not exceed."""
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def show(times: Sequence[float]) -> str:
    """Percentiles in milliseconds."""
    ordered = sorted(times)
    p50, p99 = statistics.median(ordered), percentile(ordered, 0.99)
    return f"p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms, max {ordered[-1] * 1000:.1f} ms"


def tell_times(samples: Sequence[Sample]) -> str:
    """How late acknowledgements were, and how late the load itself was."""
    times = sorted(sample.took for sample in samples)
    behind = percentile(sorted(sample.behind for sample in samples), 0.99)
    return (
        f"{len(times)} acknowledgements: {show(times)},"
        f" p99.9 {percentile(times, 0.999) * 1000:.1f} ms"
        f" (messages were published up to {behind * 1000:.1f} ms late, p99)"
    )


@contextlib.asynccontextmanager
async def open_load(
    cluster: LocalCluster, *, rate: float = 300.0, publishers: int = 2, readers: int = 1
) -> AsyncIterator[Load]:
    """Load that flows; publishers and readers are per member, the rate is of all together."""
    load = Load(cluster, rate, publishers, readers)
    gc.disable()  # its pauses would be taken for those of the cluster
    try:
        async with trio.open_nursery() as nursery:
            await nursery.start(load.run)
            yield load
            nursery.cancel_scope.cancel()
    finally:
        gc.enable()
