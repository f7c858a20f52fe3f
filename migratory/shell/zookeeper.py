"""Where kazoo ends: runs ZooKeeper procedures and tells of new sessions.

The procedures are generators of primitive operations (`coordinator.keeper`); each operation
becomes kazoo's asynchronous calls, whose results come back into trio by `run_sync_soon`, so no
call ever blocks the loop and no kazoo thread ever runs our code beyond handing over a result.

Invariants: an operation is only given to kazoo while a connection is up (kazoo would keep it in a
queue without bound otherwise); a call in flight when the connection breaks is `Fault.LOST`, never
repeated here; every element of a transaction's result is looked at, since kazoo returns errors in
a list; kazoo's SUSPENDED and LOST only decide when to wait, never what is safe.
"""

from __future__ import annotations

import contextlib
import math
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import trio
from kazoo.client import KazooClient, KazooState, TransactionRequest
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    OperationTimeoutError,
    RequestTimeoutError,
    RolledBackError,
    RuntimeInconsistency,
    SessionExpiredError,
    SessionMovedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler

from coordinator.events import KeeperAnswer, Procedure, SessionOpened
from coordinator.keeper import (
    Check,
    Children,
    Create,
    Delete,
    Fault,
    Get,
    Gets,
    KeeperOp,
    Multi,
    Node,
    Session,
    Set,
    Sync,
)
from migratory.errors import MigratoryError
from migratory.shell.bell import Bell

IN_FLIGHT = 64  # procedures at once; more wait their turn in the order of their start
# Quick and for ever: a member without ZooKeeper goes on serving and must find it again soon.
RECONNECT = {"max_tries": -1, "delay": 0.02, "backoff": 1.5, "max_delay": 0.5}

_FAULTS: dict[type[Exception], Fault] = {
    NoNodeError: Fault.NO_NODE,
    NodeExistsError: Fault.NODE_EXISTS,
    BadVersionError: Fault.BAD_VERSION,
    RolledBackError: Fault.ROLLED_BACK,
    RuntimeInconsistency: Fault.ROLLED_BACK,
    ConnectionLoss: Fault.LOST,
    OperationTimeoutError: Fault.LOST,
    RequestTimeoutError: Fault.LOST,
    SessionExpiredError: Fault.LOST,  # ConnectionClosedError is one of these
    SessionMovedError: Fault.LOST,
}


class KeeperError(MigratoryError):
    """ZooKeeper answered what no procedure of ours can cause, such as missing rights."""

    def __init__(self, detail: str) -> None:
        remedy = "look at the rights and quotas of this cluster's nodes in ZooKeeper"
        super().__init__("ZOOKEEPER_REFUSED", detail, remedy)


def fault_of(error: BaseException) -> Fault:
    """What a procedure is told of an error; errors that it cannot know end the member."""
    for kind, fault in _FAULTS.items():
        if isinstance(error, kind):
            return fault
    raise KeeperError(f"{type(error).__name__}: {error}") from error


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]  # kazoo has no types
    """kazoo's threads, with a bound on connecting and a way to drop a silent connection."""

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self._socket: socket.socket | None = None
        self.server = ""

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> socket.socket:
        """Open a connection; a server that is cut off must not hold us for a whole session."""
        sock: socket.socket = super().create_connection(
            *args, timeout=min(timeout, self._patience), **kwargs
        )
        self._socket = sock
        host, port = sock.getpeername()[:2]
        self.server = f"{host}:{port}"
        return sock

    def drop(self) -> None:
        """Break the present connection, so that kazoo fails what is in flight and reconnects."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


class _Results:
    """Waits for a number of kazoo's asynchronous results; crosses into trio once."""

    def __init__(self, calls: Sequence[Any], post: Callable[..., None]) -> None:
        self._calls = calls
        self._post = post
        self._missing = len(calls)
        self._lock = threading.Lock()
        self._all = trio.Event()
        for call in calls:
            call.rawlink(self._arrived)

    def _arrived(self, _call: Any) -> None:  # in one of kazoo's threads
        with self._lock:
            self._missing -= 1
            if self._missing:
                return
        self._post(self._all.set)

    async def wait(self) -> list[Any]:
        """Each call's value or its exception, in the order of the calls."""
        if self._calls:
            await self._all.wait()
        return [call.exception or call.value for call in self._calls]


class Keeper:
    """One ZooKeeper session after the other, and the procedures that run in them."""

    def __init__(self, hosts: str, session: float, bell: Bell) -> None:
        self._session = session
        self._bell = bell
        self._trio = trio.lowlevel.current_trio_token()
        self._handler = _Handler(patience=session / 4)
        self._client = KazooClient(
            hosts, timeout=session, handler=self._handler, connection_retry=RECONNECT
        )
        # The listener runs in kazoo's connection thread and must not block there.
        self._client.add_listener(self._state_changed)
        self._connected = trio.Event()
        self._moved = trio.Event()
        self._session_id: int | None = None
        self._opened = -math.inf
        self._out: deque[KeeperAnswer | SessionOpened] = deque()
        self._waiting: deque[tuple[int, Procedure]] = deque()
        self._running = 0
        self._nursery: trio.Nursery | None = None
        self._in_flight: dict[int, float] = {}  # number of an operation: when it was given to kazoo
        self._count = 0

    # ---- for the engine ------------------------------------------------------------------------

    def start(self, token: int, procedure: Procedure) -> None:
        """Begin a procedure; its value comes as a KeeperAnswer with this token."""
        self._waiting.append((token, procedure))
        self._begin_next()

    def take(self) -> list[KeeperAnswer | SessionOpened]:
        """What has come since the last call, in order."""
        taken = list(self._out)
        self._out.clear()
        return taken

    @property
    def session_id(self) -> int | None:
        """The number of the present or last session; None before the first."""
        return self._session_id

    @property
    def connected(self) -> bool:
        """Whether a server answers now; shown, never relied on."""
        return self._connected.is_set()

    @property
    def server(self) -> str:
        """The server at the other end of the present or last connection, for people."""
        return self._handler.server

    async def run(self, procedure: Procedure) -> Any:
        """Carry out a procedure here and now and return its value."""
        result: Any = None
        try:
            while True:
                result = await self._perform(procedure.send(result))
        except StopIteration as end:
            return end.value
        finally:
            procedure.close()

    # ---- procedures ----------------------------------------------------------------------------

    def _begin_next(self) -> None:
        while self._waiting and self._running < IN_FLIGHT and self._nursery is not None:
            self._running += 1
            self._nursery.start_soon(self._answer, *self._waiting.popleft())

    async def _answer(self, token: int, procedure: Procedure) -> None:
        value = await self.run(procedure)
        self._running -= 1
        self._out.append(KeeperAnswer(token, value))
        self._bell.ring()
        self._begin_next()

    async def _perform(self, op: KeeperOp) -> Any:
        """One operation: its value or a Fault."""
        with trio.move_on_after(self._session):
            await self._connected.wait()
        if not self._connected.is_set():
            await trio.lowlevel.checkpoint()
            return Fault.LOST  # it was never sent; to the procedure that is no difference
        if isinstance(op, Session):
            return self._session_id
        if isinstance(op, Get):
            return _node((await self._call([self._client.get_async(op.path)]))[0])
        if isinstance(op, Gets):
            return await self._gets(op)
        if isinstance(op, Multi):
            return await self._multi(op)
        if isinstance(op, Children):
            answer = (await self._call([self._client.get_children_async(op.path)]))[0]
            return fault_of(answer) if isinstance(answer, BaseException) else answer
        assert isinstance(op, Sync)
        answer = (await self._call([self._client.sync_async("/")]))[0]
        return fault_of(answer) if isinstance(answer, BaseException) else None

    async def _gets(self, op: Gets) -> list[Node | Fault] | Fault:
        answers = await self._call([self._client.get_async(path) for path in op.paths])
        nodes = [_node(answer) for answer in answers]
        return Fault.LOST if Fault.LOST in nodes else nodes

    async def _multi(self, op: Multi) -> list[Fault | None] | Fault:
        request: TransactionRequest = self._client.transaction()
        for part in op.ops:
            match part:
                case Create(path, value, ephemeral):
                    request.create(path, value, ephemeral=ephemeral)
                case Set(path, value, version):
                    request.set_data(path, value, version=version)
                case Delete(path, version):
                    request.delete(path, version=version)
                case Check(path, version):
                    request.check(path, version)
        answer = (await self._call([request.commit_async()]))[0]
        if isinstance(answer, BaseException):
            fault = fault_of(answer)
            if fault is not Fault.LOST:
                raise KeeperError(f"a transaction as a whole: {answer!r}")
            return fault
        assert len(answer) == len(op.ops), (op, answer)
        return [fault_of(part) if isinstance(part, BaseException) else None for part in answer]

    async def _call(self, calls: list[Any]) -> list[Any]:
        self._count += 1
        number = self._count
        self._in_flight[number] = trio.current_time()
        try:
            return await _Results(calls, self._post).wait()
        finally:
            del self._in_flight[number]

    # ---- the session ---------------------------------------------------------------------------

    def _post(self, function: Callable[..., None], *args: Any) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._trio.run_sync_soon(function, *args)

    def _state_changed(self, state: str) -> None:  # in kazoo's connection thread
        identity = self._client.client_id
        self._post(self._moved_to, state, identity[0] if identity else None)

    def _moved_to(self, state: str, session_id: int | None) -> None:
        if state == KazooState.CONNECTED and session_id is not None:
            if self._session_id not in (None, session_id):
                self._out.append(SessionOpened())
                self._bell.ring()
            self._session_id = session_id
            self._connected.set()
        elif self._connected.is_set():
            self._connected = trio.Event()
        self._moved.set()

    async def _keep_alive(self) -> None:
        """Drop a connection whose server is silent; restart kazoo should its thread have ended.

        kazoo sends no ping while requests go out, so a frozen server could hold them for ever.
        """
        while True:
            with trio.move_on_after(self._session / 8):
                await self._moved.wait()
            self._moved = trio.Event()
            oldest = min(self._in_flight.values(), default=math.inf)
            if trio.current_time() - oldest > self._session / 2:
                self._handler.drop()
            if self._dead() and trio.current_time() - self._opened > self._session:
                await self._open()

    def _dead(self) -> bool:
        # The only place that looks inside kazoo: its thread ends on what it does not expect.
        return bool(self._client._connection.connection_stopped.is_set())  # noqa: SLF001

    async def _open(self) -> None:
        await trio.to_thread.run_sync(self._client.start_async, abandon_on_cancel=True)
        self._opened = trio.current_time()

    async def serve(self, task_status: trio.TaskStatus[None]) -> None:
        """Look for the ensemble and run what is started, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._open()
            nursery.start_soon(self._keep_alive)
            self._begin_next()
            task_status.started()

    async def close(self) -> None:
        """End the session, which removes its ephemeral nodes; bounded when no server answers."""

        def stop() -> None:
            with contextlib.suppress(KazooException, OSError):
                self._client.stop()
                self._client.close()

        with trio.CancelScope(shield=True), trio.move_on_after(self._session / 2):
            await trio.to_thread.run_sync(stop, abandon_on_cancel=True)


def _node(answer: Any) -> Node | Fault:
    if isinstance(answer, BaseException):
        return fault_of(answer)
    value, stat = answer
    return Node(value, stat.version, stat.ephemeralOwner)


@contextlib.asynccontextmanager
async def open_keeper(hosts: str, session: float, bell: Bell) -> AsyncIterator[Keeper]:
    """A keeper that is looking for its ensemble; leaving the block ends the session."""
    keeper = Keeper(hosts, session, bell)
    async with trio.open_nursery() as nursery:
        await nursery.start(keeper.serve)
        try:
            yield keeper
        finally:
            nursery.cancel_scope.cancel()
            await keeper.close()
