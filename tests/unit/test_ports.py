"""Reserved ports: nobody else of this project gets them, and nobody listens there."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from migratory.shell.ports import LOOPBACK, Ports, PortTakenError


def test_free_ports_are_different_and_can_be_bound() -> None:
    """A server can have each of them at once."""
    with Ports() as ports:
        found = ports.free(20)
        assert len(set(found)) == 20
        for port in found:
            socket.create_server((LOOPBACK, port)).close()


def test_a_reserved_port_is_taken_until_it_is_given_back() -> None:
    """Also another process sees the reservation, though nobody listens yet."""
    script = "import sys; from migratory.shell.ports import Ports; Ports().take(int(sys.argv[1]))"
    with Ports() as ports:
        port = ports.free(1)[0]
        with pytest.raises(PortTakenError):
            Ports().take(port)
        other = subprocess.run(
            [sys.executable, "-c", script, str(port)], check=False, capture_output=True, text=True
        )
        assert "PortTakenError" in other.stderr
    with Ports() as ports:
        assert ports.take(port) == port


def test_a_port_with_a_listener_is_not_given() -> None:
    """A refused port leaves no reservation behind."""
    with Ports() as ports:
        port = ports.free(1)[0]
    with socket.create_server((LOOPBACK, port)), Ports() as ports, pytest.raises(PortTakenError):
        ports.take(port)
    with Ports() as ports:
        assert ports.take(port) == port
