"""`migratory demo`: live scores on a cluster whose busiest coordinator is killed again and again.

A publisher reports invented matches and waits for acknowledgements; subscribers on all members
write down what they get. In the end every subscriber must have got every acknowledged message once
and in order: what the summary says is counted from those notes.
"""

from __future__ import annotations

import itertools
import random
import signal
import tempfile
import time
from pathlib import Path
from typing import Any

import trio
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from client_sdk.client import Client, open_client
from client_sdk.errors import ClientError
from client_sdk.items import Gap, Message, Reset
from migratory.commands.ledger import Ledger
from migratory.commands.up import line_of
from migratory.shell.local_cluster import LocalCluster, open_cluster
from migratory.wire.ids import Position, group_of

MATCHES = (
    ("/scores/football/1", "Herons", "Storks"),
    ("/scores/football/2", "Swifts", "Cranes"),
    ("/scores/handball/3", "Terns", "Plovers"),
    ("/scores/hockey/4", "Geese", "Loons"),
    ("/scores/chess/5", "Owls", "Ravens"),
)
TOPICS = [topic for topic, _, _ in MATCHES]
SUBSCRIBERS = 4
KILL_EVERY = 10.0
RESTART_AFTER = 1.0
PUBLISH_EVERY = 0.01  # seconds between two messages of the publisher
LAST_WORDS = 20.0  # seconds for what is under way at the end


class Book(Ledger):
    """The ledger of the demo, with what it did to the cluster."""

    def __init__(self) -> None:
        super().__init__(TOPICS, SUBSCRIBERS)
        self.kills = 0
        self.takeovers = 0
        self.last = {topic: ("", Position(0, 0)) for topic in TOPICS}
        self.began = 0.0

    def summary(self) -> str:
        """The line that ends the demo."""
        return f"{super().summary()} kills {self.kills} takeovers {self.takeovers}"

    def good(self) -> bool:
        """Whether the run shows what it is meant to show."""
        return self.faultless() and self.kills > 0 and self.takeovers > 0 and self.ack_count > 0


async def demo(*, seconds: float | None = None, members: int = 3, zookeepers: int = 3) -> int:
    """Show a cluster that loses its busiest coordinator every ten seconds, and loses nothing.

    Parameters
    ----------
    seconds
        End after so many seconds of traffic; by default only by Ctrl-C.
    members
        How many members.
    zookeepers
        How many ZooKeeper servers, 1 or 3.
    """
    book, stop = Book(), trio.Event()
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, book, stop, seconds, members, zookeepers, nursery.cancel_scope)
            async for _ in signals:
                if stop.is_set():
                    nursery.cancel_scope.cancel()
                    break
                print("stopping; once more to stop at once", flush=True)
                stop.set()
    print(book.summary())
    return 0 if book.good() else 1


async def _run(
    book: Book, stop: trio.Event, seconds: float | None, members: int, zookeepers: int,
    everything: trio.CancelScope,
) -> None:  # fmt: skip
    with tempfile.TemporaryDirectory(prefix="migratory-demo-") as made:
        print(f"starting {zookeepers} ZooKeeper servers and {members} members", flush=True)
        async with open_cluster(members, Path(made), zookeepers=zookeepers) as cluster:
            await cluster.wait_normal()
            print(f"clients may come to {', '.join(cluster.servers)}", flush=True)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_view, book, cluster)
                await _traffic(book, cluster, stop, seconds)
                nursery.cancel_scope.cancel()
    everything.cancel()


async def _traffic(
    book: Book, cluster: LocalCluster, stop: trio.Event, seconds: float | None
) -> None:
    """Publish, subscribe and kill for as long as asked, then let everything arrive."""
    async with trio.open_nursery() as subscribers:
        ready = [trio.Event() for _ in range(SUBSCRIBERS)]
        for n, event in enumerate(ready):
            subscribers.start_soon(_subscriber, book, cluster, n, event)
        for event in ready:
            await event.wait()
        book.began = time.monotonic()
        async with open_client(cluster.servers) as client, trio.open_nursery() as faults:
            faults.start_soon(_nemesis, book, cluster)
            async with trio.open_nursery() as publishing:
                publishing.start_soon(_publisher, book, client, publishing, stop)
                with trio.move_on_after(seconds or float("inf")):
                    await stop.wait()
                stop.set()
                publishing.cancel_scope.deadline = trio.current_time() + LAST_WORDS
            faults.cancel_scope.cancel()
        with trio.move_on_after(LAST_WORDS):
            while book.lost():  # noqa: ASYNC110 (notes are taken by many tasks)
                await trio.sleep(0.05)
        subscribers.cancel_scope.cancel()


async def _publisher(book: Book, client: Client, nursery: trio.Nursery, stop: trio.Event) -> None:
    """Report matches; each message is a task that waits for its own acknowledgement."""
    score = {topic: [0, 0] for topic, _, _ in MATCHES}
    while not stop.is_set():
        topic, home, away = random.choice(MATCHES)
        score[topic][random.randrange(2)] += 1
        book.published += 1
        text = f"{home} {score[topic][0]} : {score[topic][1]} {away}"
        nursery.start_soon(_publish, book, client, topic, text)
        await trio.sleep(PUBLISH_EVERY)


async def _publish(book: Book, client: Client, topic: str, text: str) -> None:
    try:
        position = await client.publish(topic, text)
    except ClientError:
        book.unknown += 1
        return
    book.acked[topic][position] = text
    book.last[topic] = (text, position)


async def _subscriber(book: Book, cluster: LocalCluster, n: int, ready: trio.Event) -> None:
    """Note everything that comes."""
    waiting = set(TOPICS)
    async with open_client(cluster.servers) as client, client.subscribe(*TOPICS) as items:
        async for item in items:
            waiting.discard(item.topic)
            if not waiting:
                ready.set()
            if isinstance(item, Message):
                book.delivered[n][item.topic].append(item)
            elif isinstance(item, Gap | Reset):
                book.gaps += 1


async def _nemesis(book: Book, cluster: LocalCluster) -> None:
    """Kill the coordinator of the busiest group every ten seconds, when all members are NORMAL."""
    began = trio.current_time()
    for n in itertools.count(1):
        await trio.sleep_until(began + n * KILL_EVERY)
        await cluster.wait_normal()
        before = await _epochs(cluster)
        victim = await _coordinator(cluster, _busiest(book, cluster.groups))
        if victim is None:
            continue
        book.kills += 1
        cluster.kill(victim)
        try:
            await trio.sleep(RESTART_AFTER)
            after = await _epochs(cluster)
            book.takeovers += sum(after.get(g, 0) > epoch for g, epoch in before.items())
        finally:
            cluster.start(victim)


def _busiest(book: Book, groups: int) -> int:
    counts: dict[int, int] = {}
    for topic, acked in book.acked.items():
        g = group_of(topic, groups)
        counts[g] = counts.get(g, 0) + len(acked)
    return max(counts, key=lambda g: counts[g])


async def _coordinator(cluster: LocalCluster, g: int) -> str | None:
    for status in (await cluster.statuses()).values():
        if status is not None and status["groups"][g]["coordinator"]:
            name: str = status["groups"][g]["coordinator"]
            return name if cluster.running(name) else None
    return None


async def _epochs(cluster: LocalCluster) -> dict[int, int]:
    """The highest epoch of each group that a member knows."""
    found: dict[int, int] = {}
    for status in (await cluster.statuses()).values():
        for group in status["groups"] if status else ():
            found[group["group"]] = max(found.get(group["group"], 0), group["epoch"])
    return found


# ---- the view -----------------------------------------------------------------------------------


async def _view(book: Book, cluster: LocalCluster) -> None:
    """Show what goes on: in place on a terminal, a line now and then elsewhere."""
    console = Console()
    with Live(console=console, auto_refresh=False) as live:
        beat = 0
        while True:
            statuses = await cluster.statuses()
            if console.is_terminal:
                live.update(_picture(book, statuses, cluster.groups), refresh=True)
            elif beat % 10 == 0 and book.began:
                print(f"{time.monotonic() - book.began:5.0f} s  {_counts(book)}", flush=True)
            beat += 1
            await trio.sleep(0.5)


def _counts(book: Book) -> str:
    return (
        f"published {book.published}  acked {book.ack_count}  delivered {book.delivery_count}"
        f"  gaps {book.gaps}  kills {book.kills}  takeovers {book.takeovers}"
    )


def _picture(book: Book, statuses: dict[str, dict[str, Any] | None], groups: int) -> Group:
    table = Table(box=None, pad_edge=False)
    for title in ("topic", "group", "coordinator", "epoch", "sequence", "score"):
        table.add_column(title)
    known = next((s for s in statuses.values() if s is not None), None)
    for topic, _, _ in MATCHES:
        g = group_of(topic, groups)
        text, position = book.last[topic]
        leader = known["groups"][g]["coordinator"] if known else ""
        place = (str(position.epoch), str(position.sequence))
        table.add_row(topic, str(g), leader or "takeover ...", *place, text)
    members = [Text(line_of(name, status)) for name, status in statuses.items()]
    return Group(*members, Text(), table, Text(), Text(_counts(book)))
