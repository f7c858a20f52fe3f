"""The workload: publishers and subscribers of the SDK, as one process on the clients' host.

`chaos.load` says how many there are and how they behave. Publishers pipeline unique payloads, one
by one or in bursts; careless ones want no acknowledgement; travellers' lines break. Neighbours
publish and read, each with another member as its first contact: whatever a member does, somebody
sees it.
Subscribers behave as people do: steady ones read everything; flapping ones leave and resume with
their positions; truants stay away for longer than the history lasts; slow ones read too slowly;
pausing ones stop reading for a while; strays come with positions that nobody gave them; a herd
reads the hot topics. SIGUSR1 makes all subscribers leave and come back at once; after SIGUSR2 no
line breaks any more, since the cluster is to be judged alone; SIGTERM ends publishing, waits for
outcomes, lets deliveries arrive, and ends. One JSON line per second on stdout says how it goes.
"""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from random import Random
from typing import Literal

import msgspec
import trio
from cyclopts import App

from chaos.bad_line import open_bad_line
from chaos.load import Habit, Load, Pace, Topics, find_load, names
from chaos.topics import hot_and_cold
from client_sdk import (
    Client,
    ClientError,
    Gap,
    Item,
    Message,
    NotPublished,
    OutcomeUnknown,
    Position,
    Receipt,
    Reset,
    Resumed,
    Subscription,
    open_client,
    open_trace,
)
from migratory.errors import MigratoryError
from migratory.trace_files import TraceWriter

SETTLE = 30.0  # seconds for outcomes at the end
ARRIVE = 3.0  # seconds for the last deliveries
TELL_EVERY = 1.0
NEAR = Pace("near", 1, "all", 0.1)
JOURNEY = (4.0, 8.0)  # seconds between a traveller's coming and leaving
ASTRAY = 1_000_000  # sequences ahead of anything
TRACE_FILES = 10_000  # no row of a run may be missing: the disk is the bound


class Tally(msgspec.Struct):
    """What the runner is told."""

    sent: int = 0
    acked: int = 0
    duplicates: int = 0
    not_published: int = 0
    unknown: int = 0
    delivered: int = 0
    resumed: int = 0
    gaps: int = 0
    resets: int = 0
    comebacks: int = 0


class Workload:
    """All clients of a run."""

    def __init__(
        self, servers: list[str], trace: TraceWriter, seed: int, load: Load, prefix: str
    ) -> None:
        hot, cold = hot_and_cold(trace.groups, prefix)
        self.topics: dict[Topics, list[str]] = {"hot": hot, "cold": cold, "all": [*hot, *cold]}
        self.tally = Tally()
        self._servers = servers
        self._trace = trace
        self._seed = seed
        self._load = load
        self._stop = trio.Event()
        self._stampede = trio.Event()
        self._calm = False

    def _open(
        self, name: str, servers: list[str] | None = None
    ) -> AbstractAsyncContextManager[Client]:
        # Half of all clients speak as browsers do.
        encoding: Literal["json", "msgpack"] = "json" if int(name[-1]) % 2 else "msgpack"
        return open_client(
            servers or self._servers, client=name, encoding=encoding, trace=self._trace
        )

    async def run(self) -> None:
        """Publish and subscribe until SIGTERM."""
        async with trio.open_nursery() as readers:
            for habit in self._load.habits:
                for name in names(habit):
                    readers.start_soon(self._subscriber, name, habit)
            readers.start_soon(self._tell)
            readers.start_soon(self._listen)
            async with trio.open_nursery() as writers:
                for pace in self._load.paces:
                    work = self._traveller if pace.line[1] else self._publisher
                    for name in names(pace):
                        writers.start_soon(work, name, pace)
                for n, server in enumerate(self._servers):
                    writers.start_soon(self._neighbour, f"near{n}", server)
            await trio.sleep(ARRIVE)
            readers.cancel_scope.cancel()
        self._say()

    async def _listen(self) -> None:
        heard = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
        with trio.open_signal_receiver(*heard) as signals:
            async for number in signals:
                if number == signal.SIGTERM:
                    self._stop.set()
                elif number == signal.SIGUSR2:
                    self._calm = True
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

    async def _publisher(self, name: str, pace: Pace) -> None:
        """Come once and publish until the end."""
        async with self._open(name) as client:
            await self._publish(client, name, pace, Random(f"{self._seed}:{name}"), 1e9)

    async def _neighbour(self, name: str, server: str) -> None:
        """Publish to all topics and read them, so that every member has such a client."""
        async with (
            self._open(name, [server]) as client,
            client.subscribe(*self.topics["all"]) as items,
            trio.open_nursery() as reading,
        ):
            reading.start_soon(self._read, items, Habit(name, 1), {})
            await self._publish(client, name, NEAR, Random(f"{self._seed}:{name}"), 1e9)
            reading.cancel_scope.cancel()

    async def _traveller(self, name: str, pace: Pace) -> None:
        """Come, publish over a line that breaks, leave, and come again as somebody else."""
        random = Random(f"{self._seed}:{name}")
        while not self._stop.is_set():
            lasts = (1e9, 1e9) if self._calm else pace.line
            async with (
                open_bad_line(self._servers, random, lasts) as address,
                self._open(name, [address]) as client,
            ):
                await self._publish(client, name, pace, random, random.uniform(*JOURNEY))

    async def _publish(
        self, client: Client, name: str, pace: Pace, random: Random, seconds: float
    ) -> None:
        """Bursts in time, many under way; then all outcomes."""
        topics = random.sample(self.topics[pace.topics], len(self.topics[pace.topics]))
        end, turn = trio.current_time() + seconds, 0
        async with trio.open_nursery() as nursery:
            while not self._stop.is_set() and trio.current_time() < end:
                topic, turn = topics[turn % len(topics)], turn + 1
                for _ in range(pace.burst):
                    self.tally.sent += 1
                    payload = f"{self._trace.run}/{name}/{self.tally.sent}".ljust(pace.bytes, ".")
                    if pace.acked:
                        receipt = await client.publish_soon(topic, payload)
                        nursery.start_soon(self._settle, receipt)
                    else:
                        nursery.start_soon(self._throw, client, topic, payload)
                with trio.move_on_after(pace.every):
                    await self._stop.wait()
            nursery.cancel_scope.deadline = trio.current_time() + SETTLE

    async def _settle(self, receipt: Receipt) -> None:
        try:
            await receipt.wait()
            self.tally.acked += 1
            self.tally.duplicates += receipt.duplicate
        except NotPublished:
            self.tally.not_published += 1
        except OutcomeUnknown:
            self.tally.unknown += 1

    async def _throw(self, client: Client, topic: str, payload: str) -> None:
        """Send it and never know."""
        try:
            await client.publish_unacknowledged(topic, payload)
        except NotPublished:
            self.tally.not_published += 1

    # ---- subscribing ---------------------------------------------------------------------------

    async def _subscriber(self, name: str, habit: Habit) -> None:
        """Come, read, leave and come back where it was, for ever."""
        random = Random(f"{self._seed}:{name}")
        positions: dict[str, Position] = {}
        while True:
            with trio.move_on_after(random.uniform(*habit.stay)):
                await self._until_stampede(lambda: self._stay(name, habit, positions))
            self.tally.comebacks += 1
            await trio.sleep(random.uniform(*habit.away))
            if habit.strays:
                for topic, at in positions.items():
                    positions[topic] = Position(at.epoch, at.sequence + ASTRAY)

    async def _until_stampede(self, stay: Callable[[], Awaitable[None]]) -> None:
        async with trio.open_nursery() as nursery:

            async def leave(stampede: trio.Event) -> None:
                await stampede.wait()
                nursery.cancel_scope.cancel()

            nursery.start_soon(leave, self._stampede)
            await stay()

    async def _stay(self, name: str, habit: Habit, positions: dict[str, Position]) -> None:
        """Read until cancelled; positions say what was read."""
        random = Random(f"{self._seed}:{name}:{self.tally.comebacks}")
        topics = self.topics[habit.topics]
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
                self._count(item)
            if habit.per_item:
                await trio.sleep(habit.per_item * len(batch))

    def _count(self, item: Item) -> None:
        match item:
            case Message():
                self.tally.delivered += 1
            case Resumed():
                self.tally.resumed += 1
            case Gap():
                self.tally.gaps += 1
            case Reset():
                self.tally.resets += 1
            case _:
                pass


app = App(name="chaos.workload", backend="trio", result_action="return_value")


@app.default
async def workload(
    *, servers: str, groups: int, prefix: str, traces: Path, run: str, seed: int, load: str
) -> None:
    """Publish and subscribe until SIGTERM."""
    async with open_trace(
        traces, run=run, node="workload", groups=groups, files=TRACE_FILES
    ) as trace:
        await Workload(servers.split(","), trace, seed, find_load(load), prefix).run()


if __name__ == "__main__":
    try:
        app()
    except (ClientError, MigratoryError) as error:
        sys.exit(f"workload: {error}")
