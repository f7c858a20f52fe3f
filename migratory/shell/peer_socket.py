"""One connection between two members: non-blocking reads and writes of whole frames.

Writes go straight to the kernel from the engine's turn; only what the kernel does not take waits
here, and a task of its own flushes it. Reads take big chunks and return all messages in them.

Invariants: bytes leave in the order of the writes; what waits is bounded by `MAX_WAITING`, and a
connection that exceeds it is broken (its peer takes nothing any more); a closed one stays closed.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
from collections import deque
from typing import Any

import trio

from migratory.wire.peer import PeerMessage
from migratory.wire.peer_codec import FrameBuffer, encode_frames

READ_SIZE = 256 << 10
MAX_WAITING = 64 << 20

Address = tuple[str, int]
Place = tuple[int, int, int, str, Any]  # as getaddrinfo tells it


class PeerSocket:
    """A connected stream socket with its frame buffer and whatever waits to be written."""

    __slots__ = ("_socket", "_waiting", "acked", "early", "frames", "heard", "open", "sent",
                 "waiting")  # fmt: skip

    def __init__(self, sock: socket.socket, limit: int) -> None:
        sock.setblocking(False)
        with contextlib.suppress(OSError):  # not TCP in some tests
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = sock
        self._waiting: deque[memoryview] = deque()
        self.waiting = 0  # bytes that the kernel has not taken yet
        self.sent = 0  # bytes written so far, waiting ones included
        self.acked = 0  # of these, processed by the peer
        self.frames = FrameBuffer(limit)
        self.early: list[PeerMessage] = []  # came in the same read as the Hello
        self.heard = 0.0  # when bytes came last, by the clock of whoever reads
        self.open = True

    def write(self, messages: list[PeerMessage]) -> bool:
        """Send one frame; True when some of it has to wait for `flush`. OSError: it is broken."""
        frame = encode_frames(messages)
        self.sent += len(frame)
        took = 0 if self._waiting else self._send(frame)
        if took == len(frame):
            return False
        self._waiting.append(memoryview(frame)[took:])
        self.waiting += len(frame) - took
        if self.waiting > MAX_WAITING:
            raise OSError(errno.ENOBUFS, f"{self.waiting} bytes wait for a peer that takes none")
        return len(self._waiting) == 1

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self._socket.send(data)
        except BlockingIOError:
            return 0

    async def flush(self) -> None:
        """Write what waits, as the kernel takes it."""
        while self._waiting and self.open:
            await trio.lowlevel.wait_writable(self._socket)
            took = self._send(self._waiting[0])
            self.waiting -= took
            if took == len(self._waiting[0]):
                self._waiting.popleft()
            else:
                self._waiting[0] = self._waiting[0][took:]

    async def read(self) -> list[PeerMessage]:
        """Wait for bytes and return the messages that are complete; EOFError at the end."""
        while self.open:
            await trio.lowlevel.wait_readable(self._socket)
            with contextlib.suppress(BlockingIOError):
                chunk = self._socket.recv(READ_SIZE)
                if not chunk:
                    raise EOFError
                return self.frames.feed(chunk)
        raise EOFError

    async def read_first(self) -> PeerMessage:
        """The message that opens a connection; others that came along are kept for later."""
        while not (messages := await self.read()):
            pass
        self.early = messages[1:]
        return messages[0]

    def abandoned(self) -> bool:
        """Whether the other side has closed already (it dialed while this process was paused)."""
        try:
            return not self._socket.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Close at once; tasks that wait for the socket get ClosedResourceError."""
        if self.open:
            self.open = False
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()

    def finish(self, messages: list[PeerMessage]) -> None:
        """Say the last words if the kernel takes them, and close."""
        if self.open:
            with contextlib.suppress(OSError):
                self.write(messages)
            self.close()


async def connect(address: Address, limit: int) -> PeerSocket:
    """Open a connection; OSError (ConnectionRefusedError among them) when there is none."""
    return await dial(await _look_up(address), limit)


async def _look_up(address: Address) -> Place:
    return (await trio.socket.getaddrinfo(*address, type=socket.SOCK_STREAM))[0]


async def dial(place: Place, limit: int) -> PeerSocket:
    """Open a connection to a place that was looked up; OSError when there is none."""
    family, kind, protocol, _, where = place
    sock = socket.socket(family, kind | socket.SOCK_NONBLOCK, protocol)
    try:
        problem = sock.connect_ex(where)
        if problem == errno.EINPROGRESS:
            await trio.lowlevel.wait_writable(sock)
            problem = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if not problem and sock.getsockname() == sock.getpeername():
            problem = errno.ECONNREFUSED  # nobody listens: the kernel connected us to ourselves
    except BaseException:
        sock.close()
        raise
    if problem:
        sock.close()
        raise OSError(problem, os.strerror(problem))
    return PeerSocket(sock, limit)


async def reach(address: Address, limit: int, every: float) -> PeerSocket:
    """Connect with one more try beside the others from time to time, until the first is answered.

    The kernel repeats a lost SYN after one second and then ever later, however soon a cut heals.
    """
    place = await _look_up(address)  # once: look-ups may hang, and each takes a thread
    found: list[PeerSocket] = []
    failed: list[OSError] = []

    async def attempt() -> None:
        try:
            found.append(await dial(place, limit))
        except OSError as error:
            failed.append(error)
        nursery.cancel_scope.cancel()

    async def attempts() -> None:
        while True:
            nursery.start_soon(attempt)
            await trio.sleep(every)

    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(attempts)
    except BaseException:
        for connection in found:
            connection.close()
        raise
    for connection in found[1:]:
        connection.close()
    if not found:
        raise failed[0]
    return found[0]


def listen(address: Address) -> socket.socket:
    """Bind a listening socket; OSError with EADDRINUSE when someone has the address."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
        sock.listen(128)
    except BaseException:
        sock.close()
        raise
    return sock
