"""The way of clients to members: real WebSocket bytes over socket pairs, without any port.

A `Door` is what a front takes for its listening socket. A pair of local sockets is delivered by
the kernel at once, so that nothing depends on real time. The client's side of it is late on
purpose, can stall, so that the front meets slow clients, and can be torn.
"""

from __future__ import annotations

import os
import socket
from collections import deque
from random import Random
from typing import Any, cast

import trio

from tests.simulation.tier2.scheduling import Agenda

BUFFER = 4096  # of the kernel, for clients that may be slow


class _Seat(socket.socket):
    """The front's side of a pair; what is said about TCP has no meaning here."""

    def setsockopt(self, *args: Any) -> None:
        """Take no options."""


class Door:
    """Where clients of one process come in; open while its front listens."""

    def __init__(self) -> None:
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._waiting: deque[socket.socket] = deque()
        self._closed = False
        self.open = False

    def as_listener(self) -> socket.socket:
        """For `Front.open`."""
        return cast("socket.socket", self)

    def knock(self, *, small: bool) -> socket.socket | None:
        """The client's side of a new connection; None when nobody listens."""
        if not self.open:
            return None
        mine, theirs = socket.socketpair()
        if small:
            theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        self._waiting.append(_Seat(fileno=theirs.detach()))
        os.eventfd_write(self._bell, 1)
        return mine

    # ---- what a plane does with a listening socket ---------------------------------------------

    def setblocking(self, _flag: bool) -> None:
        """It never blocks."""

    def setsockopt(self, *_args: int) -> None:
        """Take no options."""

    def listen(self, _backlog: int) -> None:
        """Let clients in."""
        self.open = True

    def shutdown(self, _how: int) -> None:
        """Let nobody in."""
        self.open = False

    def fileno(self) -> int:
        """Readable while somebody waits."""
        return self._bell

    def accept(self) -> tuple[socket.socket, str]:
        """The next client."""
        if not self._waiting:
            raise BlockingIOError
        sock = self._waiting.popleft()
        if not self._waiting:
            os.eventfd_read(self._bell)
        return sock, ""

    def close(self) -> None:
        """Nobody comes any more."""
        self.open = False
        for sock in self._waiting:
            sock.close()
        if not self._closed:
            self._closed = True
            os.close(self._bell)


class Street(trio.abc.Stream):
    """The client's side of a connection."""

    def __init__(self, sock: socket.socket, random: Random, delay: float) -> None:
        self._sock = sock
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(sock))
        self._random = random
        self._delay = delay
        self._clear = trio.Event()
        self._clear.set()

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        """Send, a little later."""
        await trio.sleep(self._random.uniform(0, self._delay))
        await self._clear.wait()
        await self._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        """There is always room for a little."""
        await trio.lowlevel.checkpoint()

    async def receive_some(self, max_bytes: int | None = None) -> bytes | bytearray:
        """Receive, a little later."""
        await self._clear.wait()
        data = await self._stream.receive_some(max_bytes)
        await trio.sleep(self._random.uniform(0, self._delay))
        await self._clear.wait()
        return data

    @property
    def open(self) -> bool:
        """Whether the client still has it."""
        return self._sock.fileno() >= 0

    async def aclose(self) -> None:
        """Close."""
        await self._stream.aclose()

    def stall(self, agenda: Agenda, seconds: float) -> None:
        """Move nothing for a while."""
        if self._clear.is_set():
            self._clear = trio.Event()
            agenda.later(seconds, self._clear.set)

    def tear(self) -> None:
        """End the connection without a word, for both sides."""
        if self.open:
            self._stream.socket.shutdown(socket.SHUT_RDWR)
