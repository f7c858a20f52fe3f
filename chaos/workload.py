"""The workload: publishers and subscribers of the SDK, as one process on the clients' host.

Publishers pipeline unique payloads over hot and cold topics. Neighbours publish and read, each with
another member as its first contact: whatever a member does, somebody sees it. Subscribers behave
as people do: steady ones read everything; flapping ones leave and resume with their positions;
truants stay away for longer than the history lasts; slow ones read too slowly; pausing ones stop
reading for a while; a herd reads the hot topics. SIGUSR1 makes all subscribers leave and come back
at once. SIGTERM ends publishing, waits for outcomes, lets deliveries arrive, and ends. One JSON
line per second on stdout says how it goes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random

import msgspec
import trio
from cyclopts import App

from chaos.topics import hot_and_cold
from client_sdk import (
    Client,
    ClientError,
    NotPublished,
    OutcomeUnknown,
    Position,
    Receipt,
    Subscription,
    open_client,
    open_trace,
)
from migratory.trace_files import TraceWriter

HOT_EVERY, COLD_EVERY, NEAR_EVERY = 0.04, 0.06, 0.1  # seconds between two messages of a publisher
SETTLE = 30.0  # seconds for outcomes at the end
ARRIVE = 3.0  # seconds for the last deliveries
TELL_EVERY = 1.0


class Tally(msgspec.Struct):
    """What the runner is told."""

    sent: int = 0
    acked: int = 0
    not_published: int = 0
    unknown: int = 0
    delivered: int = 0
    comebacks: int = 0


class Habit(msgspec.Struct, frozen=True):
    """How a subscriber behaves, in seconds; ranges to draw from."""

    name: str
    count: int
    hot_only: bool = False
    stay: tuple[float, float] = (1e9, 1e9)  # between two absences
    away: tuple[float, float] = (0.0, 0.0)
    per_item: float = 0.0  # spent on each item
    pause: tuple[float, float] = (0.0, 0.0)  # without reading, at the end of each stay
    buffer: int = 1000


HABITS = (
    Habit("steady", 2),
    Habit("flapping", 2, stay=(0.5, 4), away=(0.05, 2)),
    Habit("truant", 1, hot_only=True, stay=(2, 3), away=(10, 14)),
    Habit("slow", 1, hot_only=True, per_item=0.05, buffer=20),
    Habit("pausing", 1, stay=(1, 4), pause=(1, 5), buffer=50),
    Habit("herd", 6, hot_only=True),
)


class Workload:
    """All clients of a run."""

    def __init__(self, servers: list[str], trace: TraceWriter, seed: int) -> None:
        self.hot, self.cold = hot_and_cold(trace.groups)
        self.tally = Tally()
        self._servers = servers
        self._trace = trace
        self._seed = seed
        self._stop = trio.Event()
        self._stampede = trio.Event()

    def _open(self, name: str) -> AbstractAsyncContextManager[Client]:
        return open_client(self._servers, client=name, trace=self._trace)

    async def run(self) -> None:
        """Publish and subscribe until SIGTERM."""
        async with trio.open_nursery() as readers:
            for habit in HABITS:
                for n in range(habit.count):
                    readers.start_soon(self._subscriber, f"{habit.name}{n}", habit)
            readers.start_soon(self._tell)
            readers.start_soon(self._listen)
            async with trio.open_nursery() as writers:
                writers.start_soon(self._publisher, "hot0", self.hot, HOT_EVERY)
                writers.start_soon(self._publisher, "hot1", self.hot, HOT_EVERY)
                writers.start_soon(self._publisher, "cold0", self.cold, COLD_EVERY)
                for n, server in enumerate(self._servers):
                    writers.start_soon(self._neighbour, f"near{n}", server)
            await trio.sleep(ARRIVE)
            readers.cancel_scope.cancel()
        self._say()

    async def _listen(self) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGUSR1) as signals:
            async for number in signals:
                if number == signal.SIGTERM:
                    self._stop.set()
                else:
                    self._stampede.set()
                    self._stampede = trio.Event()

    async def _tell(self) -> None:
        while True:
            self._say()
            await trio.sleep(TELL_EVERY)

    def _say(self) -> None:
        print(msgspec.json.encode(self.tally).decode(), flush=True)

    # ---- publishing ----------------------------------------------------------------------------

    async def _publisher(self, name: str, topics: list[str], every: float) -> None:
        """Come once and publish until the end."""
        async with self._open(name) as client:
            await self._publish(client, name, topics, every)

    async def _neighbour(self, name: str, server: str) -> None:
        """Publish to all topics and read them, so that every member has such a client."""
        topics = [*self.hot, *self.cold]
        async with (
            open_client([server], client=name, trace=self._trace) as client,
            client.subscribe(*topics) as items,
            trio.open_nursery() as reading,
        ):
            reading.start_soon(self._read, items, Habit(name, 1), {})
            await self._publish(client, name, topics, NEAR_EVERY)
            reading.cancel_scope.cancel()

    async def _publish(self, client: Client, name: str, topics: list[str], every: float) -> None:
        """One message after another, many under way, until the end; then all outcomes."""
        async with trio.open_nursery() as nursery:
            while not self._stop.is_set():
                for topic in topics:
                    self.tally.sent += 1
                    payload = f"{self._trace.run}/{name}/{self.tally.sent}"
                    receipt = await client.publish_soon(topic, payload)
                    nursery.start_soon(self._settle, receipt)
                    with trio.move_on_after(every):
                        await self._stop.wait()
            nursery.cancel_scope.deadline = trio.current_time() + SETTLE

    async def _settle(self, receipt: Receipt) -> None:
        try:
            await receipt.wait()
            self.tally.acked += 1
        except NotPublished:
            self.tally.not_published += 1
        except OutcomeUnknown:
            self.tally.unknown += 1

    # ---- subscribing ---------------------------------------------------------------------------

    async def _subscriber(self, name: str, habit: Habit) -> None:
        """Come, read, leave and come back where it was, for ever."""
        random = Random(f"{self._seed}:{name}")
        topics = self.hot if habit.hot_only else [*self.hot, *self.cold]
        positions: dict[str, Position] = {}
        while True:
            with trio.move_on_after(random.uniform(*habit.stay)):
                await self._until_stampede(lambda: self._stay(name, habit, topics, positions))
            self.tally.comebacks += 1
            await trio.sleep(random.uniform(*habit.away))

    async def _until_stampede(self, stay: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:

            async def leave(stampede: trio.Event) -> None:
                await stampede.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(leave, self._stampede)
            await stay()

    async def _stay(
        self, name: str, habit: Habit, topics: list[str], positions: dict[str, Position]
    ) -> None:
        """Read until cancelled; positions say what was read."""
        random = Random(f"{self._seed}:{name}:{self.tally.comebacks}")
        async with (
            self._open(name) as client,
            client.subscribe(*topics, positions=positions, buffer=habit.buffer) as items,
        ):
            while True:
                pause = habit.pause[1] > 0
                with trio.move_on_after(random.uniform(*habit.stay) if pause else 1e9):
                    await self._read(items, habit, positions)
                await trio.sleep(random.uniform(*habit.pause))

    async def _read(
        self, items: Subscription, habit: Habit, positions: dict[str, Position]
    ) -> None:
        while True:
            # A batch is noted as a whole before anything can be cancelled.
            batch = await items.batch()
            for item in batch:
                positions[item.topic] = item.position
            self.tally.delivered += len(batch)
            if habit.per_item:
                await trio.sleep(habit.per_item * len(batch))


app = App(name="chaos.workload", backend="trio", result_action="return_value")


@app.default
async def workload(*, servers: str, groups: int, traces: Path, run: str, seed: int) -> None:
    """Publish and subscribe until SIGTERM."""
    async with open_trace(traces, run=run, node="workload", groups=groups) as trace:
        await Workload(servers.split(","), trace, seed).run()


if __name__ == "__main__":
    try:
        app()
    except ClientError as error:
        sys.exit(f"workload: {error}")
