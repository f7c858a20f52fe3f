"""One member's process: what is started in which order, and how it ends.

Start: all ports are bound first, so that a second process with the addresses of a living member
fails before it has disturbed anybody; then ZooKeeper gives this process its boot number and the
epochs; then links, engine and front run in one nursery. The front listens when the engine is ready.

End: the engine says why. Peers hear a goodbye, then the ZooKeeper session is closed, which takes
the member's nodes away at once. The first SIGTERM or SIGINT drains, the second one ends at once.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import signal
import socket
import time
from collections import deque
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from coordinator.boot import boot
from coordinator.events import DrainWanted, RecoverWanted
from coordinator.keeper import Booted, BootRefused, Fault, MemberNode, Node, Paths, read_one
from coordinator.member import Member
from migratory.config import Config, cfg_bytes, config_hash, split_address
from migratory.errors import MigratoryError
from migratory.front.front import Front
from migratory.front.limits import FrontLimits
from migratory.observability.logs import get_logger
from migratory.observability.trace import MemberTrace
from migratory.shell.admin import Admin, Request, Response, answer
from migratory.shell.bell import Bell
from migratory.shell.driver import Driver
from migratory.shell.peer_hello import Identity
from migratory.shell.peer_link import Mesh, answers_hello
from migratory.shell.peer_socket import Address, listen
from migratory.shell.zookeeper import Keeper, open_keeper
from migratory.trace_files import TraceWriter
from migratory.wire.client import Limits, Server
from migratory.wire.ids import NO_BOOT
from migratory.wire.shard import ToEngine, ToFront

EXIT_CODES = {"CONFIG_MISMATCH": 2, "SUPERSEDED": 3}

T = TypeVar("T", DrainWanted, RecoverWanted)

log = get_logger("node")


class NodeError(MigratoryError):
    """Why this process cannot run, or cannot go on."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(code, message, remedy)
        self.exit_code = EXIT_CODES.get(code, 1)


class LocalFront:
    """The FIFO to a front in this process: two deques, no encoding."""

    def __init__(self, config: Config, bell: Bell) -> None:
        self._asked: deque[ToEngine] = deque()
        servers = [Server(member.client) for member in config.cluster.members]
        self.front = Front(_limits(config), config.member.id, servers, self._asked, bell.ring)

    def take(self) -> list[ToEngine]:
        """What the front wants."""
        asked = list(self._asked)
        self._asked.clear()
        return asked

    def put(self, messages: list[ToFront]) -> None:
        """What the front gets; it goes out to the sockets at once."""
        handle = self.front.handle
        for message in messages:
            handle(message)
        self.front.flush()

    def clients(self) -> int:
        """How many clients are connected."""
        return self.front.counts()["clients"]


def _limits(config: Config) -> FrontLimits:
    limits = config.limits
    return FrontLimits(
        client=Limits(
            payload_bytes=limits.payload,
            frame_bytes=limits.frame,
            subscriptions=limits.subscriptions,
            unanswered=limits.unanswered,
        ),
        clients=limits.clients,
        outbox_bytes=limits.outbox,
        handshake_s=limits.handshake_timeout,
        dedup_ttl_ms=config.history.retention().dedup_ttl_ms,
    )


class Ports:
    """The three bound sockets of a member."""

    def __init__(self, config: Config, held: contextlib.ExitStack) -> None:
        mine = config.cluster.member(config.member.id)
        self.peer = held.enter_context(_bound("peer", mine.peer, listen))
        self.client = held.enter_context(_bound("client", mine.client, _bind_only))
        self.admin = held.enter_context(_bound("admin", config.admin.address, listen))


def _bound(what: str, address: str, how: Callable[[Address], socket.socket]) -> socket.socket:
    try:
        return how(split_address(address))
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise NodeError(
                "ADDRESS_IN_USE",
                f"the {what} address {address} is used by another process",
                "if it is this member, it runs already; else change the address",
            ) from error
        raise NodeError(
            "ADDRESS_NOT_USABLE", f"the {what} address {address}: {error.strerror}"
        ) from error


def _bind_only(address: Address) -> socket.socket:
    """The front listens when the engine is ready; until then connections are refused."""
    family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError:
        sock.close()
        raise
    return sock


class MemberProcess:
    """Everything of one process; `run` returns when it has ended as it should."""

    def __init__(self, config: Config) -> None:
        self._config = config
        self._me = config.member.id
        self._began = time.monotonic()
        self._stop = trio.CancelScope()
        self._at_once = False
        self._keeper: Keeper | None = None
        self._driver: Driver | None = None
        self._front: LocalFront | None = None

    async def run(self) -> None:
        """Start, serve, end; NodeError when there is a reason that an operator should know."""
        with contextlib.ExitStack() as held:
            ports = Ports(self._config, held)
            reason = "STOPPED"
            with self._stop:
                async with trio.open_nursery() as nursery:
                    await nursery.start(self._watch_signals)
                    admin = Admin(self._pages())
                    listener = trio.SocketListener(trio.socket.from_stdlib_socket(ports.admin))
                    nursery.start_soon(admin.run, listener)
                    reason = await self._live(ports, held)
                    nursery.cancel_scope.cancel()
        self._report(reason)

    def _report(self, reason: str) -> None:
        log.info("ended", member=self._me, reason=reason)
        if self._at_once:
            raise NodeError("ENDED_AT_ONCE", f"{self._me} was told twice to end and did not drain")
        if reason not in ("STOPPED", "DRAINED"):
            raise NodeError(reason, f"{self._me} has to end: {_MEANINGS.get(reason, reason)}")

    async def _live(self, ports: Ports, held: contextlib.ExitStack) -> str:
        """From the boot number to the reason of the end."""
        config, bell = self._config, Bell()
        cluster = config.cluster
        async with open_keeper(cluster.zookeeper, cluster.session, bell) as keeper:
            self._keeper = keeper
            booted = await self._boot(keeper)
            identity = self._identity(booted)
            log.info("booted", member=self._me, boot=str(booted.boot))
            mine = cluster.member(self._me)
            addresses = {each.id: split_address(each.peer) for each in cluster.members}
            mesh = Mesh(identity, addresses, booted.boots, cluster.session, bell)
            self._front = front = LocalFront(config, bell)
            member = self._member(booted)
            self._driver = driver = Driver(
                member,
                MemberNode(booted.boot, mine.peer, mine.client),
                mesh,
                keeper,
                front,
                bell,
                elsewhere=[each.client for each in cluster.members if each.id != self._me],
            )
            driver.trace = self._trace(member, held)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(mesh.run, ports.peer)
                nursery.start_soon(front.front.run, ports.client)
                reason = await driver.run()
                mesh.leave(reason)
                nursery.cancel_scope.cancel()
        return reason

    def _identity(self, booted: Booted | None) -> Identity:
        config = self._config
        return Identity(
            config.cluster.name,
            config_hash(config),
            config.cluster.facts().members,
            self._me,
            booted.boot if booted else NO_BOOT,
        )

    def _member(self, booted: Booted) -> Member:
        config = self._config
        return Member(
            config.cluster.facts(),
            self._me,
            booted.boot,
            booted.groups,
            booted.boots,
            config.history.retention(),
            trio.current_time(),
            lambda: int(time.time() * 1000),
        )

    def _trace(self, member: Member, held: contextlib.ExitStack) -> MemberTrace | None:
        trace = self._config.trace
        if trace.mode == "off":
            return None
        writer = TraceWriter(
            Path(trace.directory),
            trace.run,
            self._me,
            self._config.cluster.groups,
            boot=member.ctx.boot.n,
            sample=trace.sample if trace.mode == "sampled" else 1,
            file_bytes=trace.file_bytes,
            files=trace.files,
        )
        writer.files.say = _say_of_trace
        held.callback(writer.close)
        return MemberTrace(writer, member)

    async def _boot(self, keeper: Keeper) -> Booted:
        config, mine = self._config, self._config.cluster.member(self._me)
        paths = Paths(config.cluster.name)
        await self._refuse_twin(keeper, paths, mine.peer)
        booted = await keeper.run(
            boot(
                paths,
                self._me,
                secrets.token_hex(8),
                cfg_bytes(config),
                config.cluster.groups,
                mine.peer,
                mine.client,
            )
        )
        if isinstance(booted, BootRefused):
            raise NodeError(booted.code, booted.detail)
        assert isinstance(booted, Booted)
        return booted

    async def _refuse_twin(self, keeper: Keeper, paths: Paths, peer: str) -> None:
        """A living process with this id at another address must not be disturbed."""
        node: Node | Fault = await keeper.run(read_one(paths.member(self._me)))
        if isinstance(node, Fault):
            return
        other = msgspec.json.decode(node.value, type=MemberNode)
        patience = self._config.cluster.session / 2
        if other.peer != peer and await answers_hello(
            self._identity(None), split_address(other.peer), patience
        ):
            raise NodeError(
                "ID_IN_USE",
                f"a member with the id {self._me} lives at {other.peer}",
                "end that one first, or give this one an id of its own",
            )

    # ---- the operator --------------------------------------------------------------------------

    async def _watch_signals(self, task_status: trio.TaskStatus[None]) -> None:
        with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
            task_status.started()
            asked = False
            async for number in signals:
                log.info("signal", signal=signal.Signals(number).name, again=asked)
                if self._driver is None or asked:
                    self._at_once = asked
                    self._stop.cancel()
                    return
                asked = True
                self._driver.want(DrainWanted())

    def _pages(self) -> dict[tuple[str, str], Callable[[Request], Response]]:
        return {
            ("GET", "/health"): self._health,
            ("GET", "/ready"): self._ready,
            ("GET", "/status"): self._status,
            ("POST", "/drain"): self._drain,
            ("POST", "/recover"): self._recover,
        }

    def _health(self, _: Request) -> Response:
        """The process runs and its loop turns."""
        return answer(HTTPStatus.OK, {"member": self._me, "status": self._state()})

    def _ready(self, _: Request) -> Response:
        """Clients may come."""
        state = self._state()
        ok = HTTPStatus.OK if state == "serving" else HTTPStatus.SERVICE_UNAVAILABLE
        return answer(ok, {"member": self._me, "status": state})

    def _state(self) -> str:
        if self._driver is None:
            connected = self._keeper is not None and self._keeper.connected
            return "booting" if connected else "waiting for ZooKeeper"
        member = self._driver.member
        if member.ctx.draining:
            return "draining"
        return "serving" if member.serving else "recovering"

    def _status(self, _: Request) -> Response:
        """Everything that a person wants to know."""
        status: dict[str, Any] = {"member": self._me, "status": self._state()}
        status["uptime_s"] = round(time.monotonic() - self._began, 1)
        if self._keeper is not None:
            keeper = self._keeper
            status["zookeeper"] = {"connected": keeper.connected, "server": keeper.server}
        if self._driver is not None and self._front is not None:
            status |= self._driver.member.snapshot()
            status["counters"] = msgspec.to_builtins(self._driver.counts)
            status["front"] = self._front.front.counts()
            status["clients"] = self._front.clients()
            status["resumes"] = dict(self._driver.desk.outcomes)
            status["closed"] = dict(self._front.front.closed)
        return answer(HTTPStatus.OK, status)

    def _drain(self, request: Request) -> Response:
        """Begin to drain; {"now": true} does not wait for the others to be NORMAL."""
        wish = _order(request.body, DrainWanted)
        if wish is None or self._driver is None:
            return _not_taken(started=self._driver is not None)
        self._driver.want(wish)
        return answer(HTTPStatus.ACCEPTED, {"member": self._me, "status": "draining"})

    def _recover(self, request: Request) -> Response:
        """Accept the loss of what no reachable member holds; {"groups": [...]} or all that wait."""
        if self._driver is None:
            return _not_taken(started=False)
        waiting = [r.g for r in self._driver.member.replicas if r.waits_for_operator]
        wish = _order(request.body, RecoverWanted, groups=waiting)
        if wish is None or not all(0 <= g < self._config.cluster.groups for g in wish.groups):
            return _not_taken(started=True)
        self._driver.want(wish)
        return answer(HTTPStatus.ACCEPTED, {"member": self._me, "groups": wish.groups})


def _order(body: bytes, kind: type[T], **defaults: Any) -> T | None:
    """An order from a JSON body, which may be empty; None when it says something else."""
    try:
        said = msgspec.json.decode(body or b"{}", type=dict[str, Any])
        return msgspec.convert(defaults | said, kind, strict=True)
    except msgspec.MsgspecError:
        return None


def _not_taken(started: bool) -> Response:
    if started:
        return answer(HTTPStatus.BAD_REQUEST, {"error": "BAD_REQUEST"})
    return answer(HTTPStatus.SERVICE_UNAVAILABLE, {"error": "NOT_STARTED"})


def _say_of_trace(fault: str, lost: int) -> None:
    if not fault:
        log.info("trace_written", lost=lost)
    elif lost:
        log.error("trace_lost", detail=fault, lost=lost)
    else:
        log.error("trace_waits", detail=fault)


_MEANINGS = {"SUPERSEDED": "a later process runs under the same member id"}


async def run_member(config: Config) -> None:
    """Run a member until it is drained, stopped or has to end."""
    await MemberProcess(config).run()
