"""Cuts really cut: TCP between two namespaces, with nothing left behind."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest
import trio

from chaos.cable import Trouble, carry
from chaos.network import NamespaceNetwork, Network, open_network
from chaos.sockets import reset_connections

PORT = 7777
Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def network() -> Iterator[NamespaceNetwork]:
    """Two hosts, a and b."""
    made, lacking = open_network()
    if not isinstance(made, NamespaceNetwork):
        pytest.skip(lacking)
    made.add("a")
    made.add("b")
    yield made
    made.close()


@pytest.fixture
def pair(network: NamespaceNetwork) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A connection from a to b: a's end, then b's."""
    with network.open_socket("b") as listener, network.open_socket("a") as dialled:
        listener.bind((network.address("b"), PORT))
        listener.listen()
        dialled.settimeout(3)
        dialled.connect((network.address("b"), PORT))
        taken, _ = listener.accept()
        with taken:
            taken.settimeout(3)
            yield dialled, taken


def heard(by: socket.socket, wait: float) -> bytes:
    """What arrives in time."""
    by.settimeout(wait)
    try:
        return by.recv(100)
    except TimeoutError:
        return b""


def test_a_one_way_cut_is_one_way(
    network: NamespaceNetwork, pair: tuple[socket.socket, socket.socket]
) -> None:
    """What a sends is lost while what b sends arrives; healing brings the rest."""
    a, b = pair
    network.cut("a", "b")
    a.send(b"lost for now")
    b.send(b"still heard")
    assert heard(b, 0.3) == b""
    assert heard(a, 3) == b"still heard"
    network.heal("a", "b")
    assert heard(b, 5) == b"lost for now"


def test_overlapping_cuts_heal_when_the_last_one_does(
    network: NamespaceNetwork, pair: tuple[socket.socket, socket.socket]
) -> None:
    """Two faults may cut the same pair; each heals only its own."""
    a, b = pair
    network.cut("a", "b")
    network.cut("a", "b")
    network.heal("a", "b")
    a.send(b"x")
    assert heard(b, 0.3) == b""
    network.heal("a", "b")
    assert network.cuts == 0
    assert heard(b, 5) == b"x"


def test_new_connections_hang_behind_a_cut(network: NamespaceNetwork) -> None:
    """A cut is silent: nobody is told that there is no way."""
    network.cut("b", "a")
    with network.open_socket("b") as listener, network.open_socket("a") as dialled:
        listener.bind((network.address("b"), PORT))
        listener.listen()
        dialled.settimeout(0.4)
        with pytest.raises(TimeoutError):
            dialled.connect((network.address("b"), PORT))


def test_a_slow_link_is_slow_until_it_is_not(
    network: NamespaceNetwork, pair: tuple[socket.socket, socket.socket]
) -> None:
    """A slow host's bytes take their time."""
    a, b = pair

    def carry(size: int) -> float:
        began = time.monotonic()
        a.sendall(bytes(size))
        while size:
            size -= len(b.recv(1 << 16))
        return time.monotonic() - began

    network.slow("a")
    slow = carry(20_000)
    network.unslow("a")
    assert slow > 0.3 > carry(20_000)


async def carried(
    network: NamespaceNetwork, trouble: Trouble, pair: Pair, count: int
) -> list[float]:
    """Seconds of so many round trips over a cable with this trouble."""
    a, b = (trio.socket.from_stdlib_socket(end.dup()) for end in pair)
    took = []
    with network.tapped("a") as (near, far), a, b:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(carry, near, far, trouble, Random(1))
            for _ in range(count):
                began = trio.current_time()
                for source, target in ((a, b), (b, a)):
                    await source.send(b"x")
                    assert await target.recv(1) == b"x"
                took.append(trio.current_time() - began)
            nursery.cancel_scope.cancel()
    return sorted(took)


async def test_a_late_cable_delays_both_ways(network: NamespaceNetwork, pair: Pair) -> None:
    """Each way takes the delay and up to the jitter more, until the cable is mended."""
    took = await carried(network, Trouble(delay=0.05, jitter=0.05), pair, 10)
    assert took[0] > 0.1
    assert took[-1] - took[0] > 0.01
    a, b = pair
    began = time.monotonic()
    a.send(b"y")
    assert heard(b, 3) == b"y"
    assert time.monotonic() - began < 0.05


async def test_a_lossy_cable_loses_some_and_tcp_repeats_them(
    network: NamespaceNetwork, pair: Pair
) -> None:
    """Some round trips wait for a repetition, none is lost for good, and other hosts are spared."""
    took = await carried(network, Trouble(loss=0.2), pair, 30)
    assert took[0] < 0.05
    assert took[-1] > 0.15  # the shortest time after which TCP repeats


async def test_a_cable_is_whole_after_trouble_that_was_cut_short(
    network: NamespaceNetwork, pair: Pair
) -> None:
    """Whoever is cancelled leaves no taps behind, and the host is plugged in again."""
    with trio.move_on_after(0.2):
        await carried(network, Trouble(loss=1.0), pair, 1)
    a, b = pair
    a.send(b"y")
    assert heard(b, 5)[-1:] == b"y"
    with network.tapped("a"):  # the same names can be used again
        pass


def test_connections_of_a_process_are_reset(pair: tuple[socket.socket, socket.socket]) -> None:
    """Both ends of every established connection learn that it is gone."""
    a, b = pair
    assert reset_connections(os.getpid()) >= 1
    with pytest.raises(OSError, match=r"reset|not connected"):
        b.recv(1)
    a.close()


def test_a_replaced_host_has_the_same_address(network: NamespaceNetwork) -> None:
    """Another host takes over the address of one that is unplugged."""
    port = network.replace("b")
    with network.open_socket("b") as listener, network.open_socket("a") as dialled:
        listener.bind((network.address("b"), PORT))
        listener.listen()
        dialled.settimeout(3)
        dialled.connect((network.address("b"), PORT))
    network.rejoin(port)
    network.leave(port)


def test_a_replaced_host_has_the_same_cuts(network: NamespaceNetwork) -> None:
    """A cut that overlaps with a replacement holds for the new host, and heals there."""
    network.cut("b", "a")
    network.replace("b")
    with network.open_socket("b") as dialled:
        dialled.settimeout(0.5)
        with pytest.raises(TimeoutError):
            dialled.connect((network.address("a"), PORT))
    network.heal("b", "a")
    assert network.cuts == 0
    with network.open_socket("b") as dialled:
        dialled.settimeout(3)
        with pytest.raises(ConnectionRefusedError):
            dialled.connect((network.address("a"), PORT))


def test_nothing_appears_where_we_were_started() -> None:
    """The machine's own network is as before, during and after."""
    before = sorted(socket.if_nameindex())
    made, _ = open_network()
    made.add("a")
    assert sorted(socket.if_nameindex()) == before
    made.close()
    assert sorted(socket.if_nameindex()) == before


def test_without_root_everything_is_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who may not make namespaces is told what is missing, and gets the rest."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    network, lacking = open_network()
    assert type(network) is Network
    assert "not root" in lacking
    assert network.add("m1").startswith("127.")
    assert Path("/proc/self/ns/net").exists()
