"""Free ports on loopback that stay free until the server that is meant to have them binds them.

Asking the kernel for port 0 and closing the socket gives a port that any outgoing connection may
take a moment later. Ports from here lie outside the range that the kernel gives to connections,
and a process of this project that wants one holds a lock on its number: an abstract socket, which
the kernel frees when the process ends, and which each network namespace has for itself.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Self

LOOPBACK = "127.0.0.1"
_LOWEST, _HIGHEST = 10_000, 65_535
_EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")


class PortTakenError(Exception):
    """Somebody listens there, or another process of this project has reserved it."""


class Ports:
    """Ports that this process has reserved; closing it gives them back."""

    def __init__(self) -> None:
        self._locks: list[socket.socket] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

    def close(self) -> None:
        """Give all ports back."""
        while self._locks:
            self._locks.pop().close()

    def take(self, port: int) -> int:
        """Reserve this very port."""
        with contextlib.ExitStack() as undo:
            lock = undo.enter_context(socket.socket(socket.AF_UNIX))
            try:
                lock.bind(f"\0migratory/port/{port}")
                if _somebody_listens(port):
                    raise PortTakenError(port)
            except OSError as error:
                raise PortTakenError(port) from error
            undo.pop_all()
        self._locks.append(lock)
        return port

    def free(self, count: int) -> list[int]:
        """Reserve any free ports."""
        found: list[int] = []
        for port in _candidates():
            if len(found) == count:
                break
            with contextlib.suppress(PortTakenError):
                found.append(self.take(port))
        return found


def _somebody_listens(port: int) -> bool:
    """Whether a server could not bind the port; connections that linger are no obstacle."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((LOOPBACK, port))
            probe.listen()
        except OSError:
            return True
    return False


def _candidates() -> Iterator[int]:
    """Ports outside the kernel's range, from a random one on, so that processes do not queue."""
    low, high = (int(word) for word in _EPHEMERAL.read_text().split())
    ports = [*range(_LOWEST, low), *range(high + 1, _HIGHEST)]
    start = random.randrange(len(ports))
    yield from ports[start:]
    yield from ports[:start]
