"""The connection plane: all client sockets of a front behind one epoll.

Prior art: a trio task per connection costs four times the memory and three times the CPU of a
send. Here nothing runs per client: whoever owns the plane calls `read`, `flush` and `tick`, and
waits for `fileno()` to become readable when there is nothing to do. The plane moves bytes and
knows nothing of what they mean; that is its `Sessions`.

Output: frames are queued by reference (a fan-out shares one bytes object) and sent by `flush`, a
bounded number of connections per call. What gathers meanwhile for a connection is sent as one
write, joined once for all that have the same backlog. A connection whose socket is full waits for
EPOLLOUT; if its queue then exceeds the bound, `overflow` is called.

Invariant: a connection is GONE exactly when its socket is closed, and nothing raised by a socket
or by the handling of one connection's bytes leaves this module.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Protocol

from sortedcontainers import SortedDict

from migratory.front.connection import CLOSING, GONE, Connection
from migratory.front.limits import FrontLimits

_IN, _OUT = select.EPOLLIN, select.EPOLLOUT
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_JOIN_BYTES = 128 * 1024  # more than that is sent without being copied together
_BUFFERS = 512  # of one send; the kernel takes at most 1024
TICK_S = 0.1

_log = logging.getLogger(__name__)


class Sessions(Protocol):
    """What the plane tells about its connections."""

    def received(self, conn: Connection, data: bytes, /) -> None:
        """Bytes came in. Whatever it raises ends this connection only."""

    def faulted(self, conn: Connection, /) -> None:
        """Handling its bytes failed for a reason of our own: it must end."""

    def overflow(self, conn: Connection, /) -> None:
        """More waits for it than the outbox may hold."""

    def drained(self, conn: Connection, /) -> None:
        """All that was queued for it has been sent, and it was blocked or wants pages."""

    def left(self, conn: Connection, /) -> None:
        """It ends: told once, before its last frames are sent or when it is dropped."""

    def due(self, conn: Connection, now: float, /) -> float | None:
        """A time that was asked for has come; the answer is when to look again."""


class Plane:
    """Sockets, outboxes and timers."""

    def __init__(self, limits: FrontLimits, sessions: Sessions, clock: Callable[[], float]) -> None:
        self._limits, self._sessions, self._clock = limits, sessions, clock
        self._epoll = select.epoll()
        self._listener: socket.socket | None = None
        self._listening = False
        self._pause_until = 0.0  # no accepts before that
        self._paused = False
        self._connections: dict[int, Connection] = {}
        self._buffer = memoryview(bytearray(limits.read_bytes))
        self._dirty: deque[Connection] = deque()  # something is queued and nothing was tried yet
        self._resumable: list[Connection] = []
        self._joined: dict[tuple[bytes, ...], bytes] = {}  # of the present flush
        self._agenda: SortedDict[int, list[Connection]] = SortedDict()  # by tick
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._epoll.register(self._bell, _IN)
        self.now = clock()
        self.full = False  # set by sessions: this turn has taken in enough
        self.accepted = 0

    def __len__(self) -> int:
        return len(self._connections)

    def fileno(self) -> int:
        """Readable when `read` has something to do."""
        return self._epoll.fileno()

    @property
    def busy(self) -> bool:
        """Whether `flush` or `read` would go on with something that is not on the epoll."""
        return bool(self._dirty or self._resumable)

    def connections(self) -> list[Connection]:
        """All that are not gone."""
        return list(self._connections.values())

    # ---- listening -----------------------------------------------------------------------------

    def bind(self, listener: socket.socket) -> None:
        """Adopt a socket that listens from `listen(True)` on.

        It must be bound to a port by its number: Linux takes one that it chose itself away from a
        socket that stops listening.
        """
        listener.setblocking(False)
        # Inherited by the connections: they would keep it from listening a second time.
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener = listener

    def listen(self, ready: bool) -> None:
        """Start or stop to take connections; while stopped the kernel refuses them."""
        listener = self._listener
        if listener is None or ready == self._listening:
            return
        self._listening = ready
        if ready:
            listener.listen(self._limits.backlog)
            self._epoll.register(listener.fileno(), _IN)
            return
        self._accept()  # who is in the kernel's queue would otherwise be reset
        if not self._paused:
            self._epoll.unregister(listener.fileno())
        self._paused = False
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RD)  # Linux: the port stays ours and refuses

    def _accept(self) -> None:
        listener = self._listener
        assert listener is not None
        for _ in range(self._limits.accepts_per_turn):
            try:
                sock, _ = listener.accept()
            except OSError as error:
                if error.errno in _EXHAUSTED:
                    self._pause_accepting(error)
                if error.errno in (errno.ECONNABORTED, errno.EINTR):
                    continue
                return
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self.adopt(sock)
            except OSError:
                sock.close()

    def adopt(self, sock: socket.socket) -> Connection:
        """Serve a connected socket from now on."""
        sock.setblocking(False)
        conn = Connection(sock, self.now)
        self._epoll.register(conn.fd, _IN)
        self._connections[conn.fd] = conn
        self.accepted += 1
        self.schedule(conn, self.now + self._limits.handshake_s)
        return conn

    def _pause_accepting(self, error: OSError) -> None:
        """Without a descriptor the listener would stay readable and make the loop spin."""
        listener = self._listener
        if self._listening and not self._paused and listener is not None:
            _log.warning("accepting pauses for %s s: %s", self._limits.accept_pause_s, error)
            self._paused = True
            self._pause_until = self.now + self._limits.accept_pause_s
            self._epoll.unregister(listener.fileno())

    # ---- input ---------------------------------------------------------------------------------

    def read(self) -> None:
        """Serve the sockets that are ready, a bounded number of them."""
        self.now = self._clock()
        self.full = False
        self._go_on()
        connections = self._connections
        for fd, events in self._epoll.poll(0, self._limits.reads_per_turn):
            conn = connections.get(fd)
            if conn is None:
                self._other(fd)
                continue
            if events & _OUT and conn.out is not None:
                self._send(conn)
            if events & ~_OUT and conn.state != GONE:
                if conn.stopped:
                    if not events & _IN:
                        self.drop(conn)  # broken, and reading it would only tell the same
                    continue
                self._receive(conn)
                if self.full:
                    return

    def _other(self, fd: int) -> None:
        if self._listener is not None and fd == self._listener.fileno():
            self._accept()
        elif fd == self._bell:
            os.eventfd_read(self._bell)

    def _receive(self, conn: Connection) -> None:
        buffer = self._buffer
        try:
            size = conn.sock.recv_into(buffer)
        except BlockingIOError:
            return
        except OSError:
            size = 0
        if size == 0:
            self.drop(conn)
            return
        conn.heard = self.now
        if conn.state != CLOSING:
            self._hand_on(conn, bytes(buffer[:size]))

    def _hand_on(self, conn: Connection, data: bytes) -> None:
        try:
            self._sessions.received(conn, data)
        except Exception:  # noqa: BLE001 - see below
            # Whatever a stranger sends must not end the process, not even through our own faults.
            _log.exception("handling what %r sent", conn)
            self._sessions.faulted(conn)

    def stop(self, conn: Connection) -> None:
        """Read nothing more from a connection until `resume`."""
        conn.stopped = True
        self._watch(conn)

    def resume(self, conn: Connection) -> None:
        """Go on with a stopped connection in the next `read`."""
        if conn.stopped:
            self._resumable.append(conn)
            self.ring()

    def _go_on(self) -> None:
        resumable, self._resumable = self._resumable, []
        for conn in resumable:
            if conn.state != GONE and conn.stopped:
                conn.stopped = False
                self._hand_on(conn, b"")
                if conn.state != GONE:
                    self._watch(conn)

    def _watch(self, conn: Connection) -> None:
        events = 0 if conn.stopped else _IN
        self._epoll.modify(conn.fd, events | _OUT if conn.blocked else events)

    # ---- output --------------------------------------------------------------------------------

    def push(self, conn: Connection, frame: bytes) -> None:
        """Queue a frame; it leaves with the next `flush`. Nothing follows the last frames."""
        if conn.state < CLOSING:
            self._queue(conn, frame)
            if conn.blocked and conn.queued > self._limits.outbox_bytes:
                self._sessions.overflow(conn)

    def _queue(self, conn: Connection, frame: bytes) -> None:
        if conn.out is not None:
            conn.out.append(frame)
            conn.queued += len(frame)
        else:
            conn.out = [frame]
            conn.queued = len(frame)
            self._dirty.append(conn)

    def fan_out(self, connections: Iterable[Connection], frame: bytes) -> None:
        """Queue one frame for many."""
        size, dirty, bound = len(frame), self._dirty, self._limits.outbox_bytes
        over: list[Connection] = []
        for conn in connections:
            queue = conn.out
            if queue is None:
                conn.out = [frame]
                conn.queued = size
                dirty.append(conn)
            else:
                queue.append(frame)
                conn.queued += size
                if conn.blocked and conn.queued > bound:
                    over.append(conn)
        for conn in over:  # not before: it leaves the connections that were iterated over
            self._sessions.overflow(conn)

    def flush(self) -> None:
        """Send what is queued, for a bounded number of connections."""
        dirty, send, state = self._dirty, self._send, GONE
        for _ in range(min(len(dirty), self._limits.sends_per_turn)):
            conn = dirty.popleft()
            if conn.out is not None and conn.state != state and not conn.blocked:
                send(conn)
        self._joined.clear()
        if dirty:
            self.ring()

    def ring(self) -> None:
        """Make the epoll readable, since something is left to do."""
        with suppress(BlockingIOError):
            os.eventfd_write(self._bell, 1)

    def _send(self, conn: Connection) -> None:
        queue = conn.out
        assert queue is not None
        try:
            if len(queue) == 1:
                sent = conn.sock.send(queue[0])
            elif conn.queued <= _JOIN_BYTES:
                backlog = tuple(queue)
                joined = self._joined.get(backlog)
                if joined is None:
                    joined = self._joined[backlog] = b"".join(queue)
                sent = conn.sock.send(joined)
            else:
                sent = conn.sock.sendmsg(queue[:_BUFFERS])
        except BlockingIOError:
            sent = 0
        except OSError:
            self.drop(conn)
            return
        conn.spoke = self.now
        if sent == conn.queued:
            conn.out, conn.queued = None, 0
            if conn.blocked or conn.state == CLOSING or conn.wanted:
                self._emptied(conn)
        else:
            self._keep(conn, queue, sent)

    def _emptied(self, conn: Connection) -> None:
        conn.cut = False
        if conn.blocked:
            conn.blocked = False
            self._watch(conn)
        if conn.state == CLOSING:
            self._half_close(conn)
        else:
            self._sessions.drained(conn)

    def _keep(self, conn: Connection, queue: list[bytes], sent: int) -> None:
        """Take what was sent off the queue and wait until the socket takes more."""
        conn.queued -= sent
        done = 0
        while sent >= len(queue[done]):
            sent -= len(queue[done])
            done += 1
        if done:
            del queue[:done]
            conn.cut = False
        if sent:
            queue[0] = queue[0][sent:]
            conn.cut = True
        if not conn.blocked:
            conn.blocked = True
            self._watch(conn)
        if conn.queued > self._limits.outbox_bytes and conn.state != CLOSING:
            self._sessions.overflow(conn)

    # ---- the end -------------------------------------------------------------------------------

    def finish(self, conn: Connection, *last: bytes, discard: bool = False) -> None:
        """Send what is queued (or, on discard, only the frame begun) and these, then close.

        Reading goes on, and nothing is made of it: a socket that is closed with unread bytes is
        reset, and the other side might never see the last frames.
        """
        if conn.state >= CLOSING:
            return
        conn.state, conn.since = CLOSING, self.now
        self._sessions.left(conn)
        queue = conn.out
        if discard and queue is not None:
            del queue[1 if conn.cut else 0 :]
            conn.queued = sum(map(len, queue))
        if conn.stopped:
            conn.stopped = False
            self._watch(conn)
        for frame in last:
            self._queue(conn, frame)
        self.schedule(conn, self.now + self._limits.close_s)
        if conn.out is None:
            self._half_close(conn)

    def _half_close(self, conn: Connection) -> None:
        try:
            conn.sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.drop(conn)

    def drop(self, conn: Connection) -> None:
        """Close the socket now."""
        if conn.state == GONE:
            return
        closing, conn.state = conn.state == CLOSING, GONE
        conn.out = conn.tail = conn.fragments = conn.upgrade = None
        del self._connections[conn.fd]
        with suppress(OSError):
            self._epoll.unregister(conn.fd)
        conn.sock.close()
        if not closing:
            self._sessions.left(conn)

    def close(self) -> None:
        """Close everything."""
        for conn in self.connections():
            self.drop(conn)
        if self._listener is not None:
            self._listener.close()
        self._epoll.close()
        os.close(self._bell)

    # ---- time ----------------------------------------------------------------------------------

    def schedule(self, conn: Connection, at: float) -> None:
        """Have `due` called for a connection, not before this time and at most a tick later."""
        self._agenda.setdefault(int(at / TICK_S) + 1, []).append(conn)

    def tick(self) -> None:
        """Look at the connections whose time has come; to be called about every TICK_S."""
        now = self.now = self._clock()
        if self._paused and now >= self._pause_until:
            self._paused = False
            assert self._listener is not None
            self._epoll.register(self._listener.fileno(), _IN)
        last = int(now / TICK_S)
        while self._agenda and self._agenda.peekitem(0)[0] <= last:
            for conn in self._agenda.popitem(0)[1]:
                if conn.state == GONE:
                    continue
                again = self._sessions.due(conn, now)
                if again is not None and conn.state != GONE:
                    self.schedule(conn, max(again, now))
