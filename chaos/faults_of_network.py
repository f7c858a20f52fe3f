"""Faults of connections: cuts in all directions, slow, late and lossy cables, resets.

Each is a function: it breaks something, calls `hold` with what it hit (which writes `fault_on` and
waits for the planned time) and repairs in `finally`, also when the run is cancelled.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from random import Random
from typing import Protocol

import trio

from chaos.cable import Trouble, carry
from chaos.cluster import CLIENTS, Cluster, namespaces_of
from chaos.network import SLOW_RATE
from chaos.processes import Program
from chaos.sockets import reset_connections

RESET_EVERY = 0.3  # seconds
FLAKY = 0.25  # seconds of each state
LOSSY = Trouble(loss=0.1)
LATE = Trouble(delay=0.05, jitter=0.1)


Hold = Callable[[str], Awaitable[None]]


class Turns(Protocol):
    """The hold of a fault that takes a while to break: it has turns, or waits for a moment."""

    def begin(self, hit: str) -> None:
        """It begins to hit; nobody waits for its moment any more."""

    async def __call__(self, hit: str) -> None:
        """As any hold."""

    async def rest(self) -> None:
        """What is left of the planned time since it began."""

    def missed(self) -> None:
        """The moment that it waited for did not come: this is not the fault that was planned."""

    def turn(self, name: str) -> contextlib.AbstractContextManager[None]:
        """A block in which it has hold of this member."""


@contextlib.contextmanager
def cuts(cluster: Cluster, *pairs: tuple[str, str]) -> Iterator[None]:
    """Whatever the first of each pair sends to the second is lost."""
    for source, target in pairs:
        cluster.cut(source, target)
    try:
        yield
    finally:
        for source, target in pairs:
            cluster.heal(source, target)


def both_ways(name: str, others: list[str]) -> list[tuple[str, str]]:
    """From one host to others, and back."""
    return [pair for other in others if other != name for pair in ((name, other), (other, name))]


def everybody(cluster: Cluster) -> list[str]:
    """All hosts."""
    return [*cluster.members, *cluster.zookeepers, CLIENTS]


async def cut(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host reaches nobody and is reached by nobody."""
    with cuts(cluster, *both_ways(name, everybody(cluster))):
        await hold(name)


async def mute(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host hears everybody and is heard by nobody."""
    with cuts(cluster, *((name, other) for other in everybody(cluster) if other != name)):
        await hold(name)


async def cut_zookeeper(cluster: Cluster, name: str, hold: Hold) -> None:
    """A member does not reach ZooKeeper."""
    with cuts(cluster, *both_ways(name, cluster.zookeepers)):
        await hold(name)


async def cut_peers(cluster: Cluster, name: str, hold: Hold) -> None:
    """A member does not reach the other members."""
    with cuts(cluster, *both_ways(name, cluster.members)):
        await hold(name)


async def cut_pair(cluster: Cluster, target: str, hold: Hold) -> None:
    """Two members do not reach each other."""
    one, _, other = target.partition("|")
    with cuts(cluster, (one, other), (other, one)):
        await hold(target)


async def cut_one_way(cluster: Cluster, target: str, hold: Hold) -> None:
    """One member is not heard by another."""
    source, _, deaf = target.partition(">")
    with cuts(cluster, (source, deaf)):
        await hold(target)


async def cut_clients(cluster: Cluster, target: str, hold: Hold) -> None:
    """Clients reach nobody."""
    with cuts(cluster, *both_ways(CLIENTS, cluster.members)):
        await hold(target)


async def deafen_clients(cluster: Cluster, target: str, hold: Hold) -> None:
    """Clients are heard and hear nobody: what they publish is acknowledged in vain."""
    with cuts(cluster, *((name, CLIENTS) for name in cluster.members)):
        await hold(target)


async def flaky(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host that is gone for moments."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_flap, cluster, name)
        await hold(name)
        nursery.cancel_scope.cancel()


async def _flap(cluster: Cluster, name: str) -> None:
    while True:
        with cuts(cluster, *both_ways(name, everybody(cluster))):
            await trio.sleep(FLAKY)
        await trio.sleep(FLAKY)


@contextlib.asynccontextmanager
async def slowed(cluster: Cluster, name: str, rate: str = SLOW_RATE) -> AsyncIterator[None]:
    """A host's cable carries little."""
    async with cluster.cables[name]:  # a fault that came late may meet another one
        network = namespaces_of(cluster)
        network.slow(name, rate)
        try:
            yield
        finally:
            network.unslow(name)


async def slow(cluster: Cluster, name: str, hold: Hold) -> None:
    """The same for the planned time."""
    async with slowed(cluster, name):
        await hold(name)


async def lossy(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host's cable loses a tenth of what it carries, both ways, at random."""
    await _with_trouble(cluster, name, LOSSY, hold)


async def late(cluster: Cluster, name: str, hold: Hold) -> None:
    """A host's cable is long: everything comes late, some of it later."""
    await _with_trouble(cluster, name, LATE, hold)


async def _with_trouble(cluster: Cluster, name: str, trouble: Trouble, hold: Hold) -> None:
    async with cluster.cables[name]:
        with namespaces_of(cluster).tapped(name) as (near, far):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(carry, near, far, trouble, Random(name))
                await hold(name)
                nursery.cancel_scope.cancel()


async def reset(cluster: Cluster, name: str, hold: Hold) -> None:
    """All connections of a member are reset again and again."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_reset_often, cluster.programs[name])
        await hold(name)
        nursery.cancel_scope.cancel()


async def _reset_often(program: Program) -> None:
    while True:
        reset_connections(program.pid)
        await trio.sleep(RESET_EVERY)
