"""Cuts really cut: TCP between two namespaces, with nothing left behind."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from chaos.network import NamespaceNetwork, Network, open_network
from chaos.sockets import reset_connections

PORT = 7777


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
