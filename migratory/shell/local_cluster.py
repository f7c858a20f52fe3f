"""A whole cluster on this machine: an ensemble and members as processes, for `up`, demo and tests.

Members are started through the command line, as anybody would start them. They are tethered to the
thread that makes the cluster: whatever happens to it, nothing is left running.

`DIR` holds `cluster.json` (addresses, for commands and people), one configuration and one log per
member, and the ensemble's directory.
"""

from __future__ import annotations

import contextlib
import http.client
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import trio

from migratory.errors import MigratoryError
from migratory.shell.ensemble import Ensemble, open_ensemble
from migratory.shell.ports import LOOPBACK, Ports, PortTakenError
from migratory.shell.tether import tethered

CLIENT_PORT, PEER_PORT, ADMIN_PORT = 8800, 8900, 9000
STOP_PATIENCE = 20.0  # seconds that a member may take to drain
ASK_PATIENCE = 2.0  # seconds for an answer of the admin port


class Addresses(msgspec.Struct, frozen=True):
    """Where one member listens."""

    client: str
    peer: str
    admin: str


class ClusterFile(msgspec.Struct, frozen=True):
    """`cluster.json`."""

    name: str
    zookeeper: str
    members: dict[str, Addresses]


def ask(address: str, path: str, method: str = "GET", body: bytes = b"") -> Any:
    """One request to an admin port; the decoded answer. OSError when nobody answers."""
    host, _, port = address.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout=ASK_PATIENCE)
    try:
        connection.request(method, path, body or None)
        answer = connection.getresponse()
        return msgspec.json.decode(answer.read())
    except (http.client.HTTPException, msgspec.DecodeError) as error:
        raise OSError(f"{address} gave no proper answer: {error}") from error
    finally:
        connection.close()


async def ask_soon(address: str, path: str, method: str = "GET", body: bytes = b"") -> Any:
    """The same without blocking the loop; None when nobody answers."""
    try:
        return await trio.to_thread.run_sync(ask, address, path, method, body)
    except OSError:
        return None


async def ask_status(address: str) -> dict[str, Any] | None:
    """What a member says of itself; None while it does not answer or has not booted yet."""
    found = await ask_soon(address, "/status")
    return found if isinstance(found, dict) and "groups" in found else None


class LocalCluster:
    """Members m1..mN on loopback; each can be killed, paused, stopped and started again."""

    def __init__(
        self, ensemble: Ensemble, members: int, directory: Path, *, name: str = "local",
        faults: int | None = None, groups: int = 100, fixed_ports: bool = False, settings: str = "",
    ) -> None:  # fmt: skip
        self.ensemble = ensemble
        self.directory = directory
        self.names = [f"m{n}" for n in range(1, members + 1)]
        self.faults = (members - 1) // 2 if faults is None else faults
        self.groups = groups
        self.settings = settings  # further TOML, the same for all members
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = Ports()
        try:
            self.file = ClusterFile(name, ensemble.hosts, self._addresses(fixed=fixed_ports))
        except PortTakenError as error:
            self._ports.close()
            raise MigratoryError(
                "PORT_TAKEN", f"port {error} is taken", "end what listens there, or --any-port"
            ) from error
        self._write()

    def _addresses(self, *, fixed: bool) -> dict[str, Addresses]:
        found = {}
        for n, name in enumerate(self.names):
            wanted = (CLIENT_PORT + n, PEER_PORT + n, ADMIN_PORT + n)
            ports = [self._ports.take(p) for p in wanted] if fixed else self._ports.free(3)
            found[name] = Addresses(*(f"{LOOPBACK}:{port}" for port in ports))
        return found

    def _write(self) -> None:
        """The files that members and commands read."""
        self.directory.mkdir(parents=True, exist_ok=True)
        shown = msgspec.json.format(msgspec.json.encode(self.file), indent=2)
        (self.directory / "cluster.json").write_bytes(shown + b"\n")
        members = "".join(
            f'\n[[cluster.member]]\nid = "{name}"\npeer = "{a.peer}"\nclient = "{a.client}"\n'
            for name, a in self.file.members.items()
        )
        for name, a in self.file.members.items():
            text = (
                f'[cluster]\nname = "{self.file.name}"\nfaults = {self.faults}\n'
                f'groups = {self.groups}\nzookeeper = "{self.file.zookeeper}"\n{members}\n'
                f'[member]\nid = "{name}"\n\n[admin]\naddress = "{a.admin}"\n\n{self.settings}\n'
            )
            (self.directory / f"{name}.toml").write_text(text)

    @property
    def servers(self) -> list[str]:
        """The client addresses."""
        return [a.client for a in self.file.members.values()]

    # ---- processes -----------------------------------------------------------------------------

    def start(self, name: str) -> None:
        """Start a member that is not running."""
        command = [sys.executable, "-m", "migratory", "serve"]
        with (self.directory / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                tethered([*command, str(self.directory / f"{name}.toml")]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we stop the members in order
            )

    def running(self, name: str) -> bool:
        """Whether a member's process is there."""
        return name in self.processes and self.processes[name].poll() is None

    def kill(self, name: str) -> None:
        """End a member with SIGKILL."""
        self.processes[name].kill()
        self.processes[name].wait()

    def pause(self, name: str) -> None:
        """SIGSTOP."""
        self.processes[name].send_signal(signal.SIGSTOP)

    def resume(self, name: str) -> None:
        """SIGCONT."""
        self.processes[name].send_signal(signal.SIGCONT)

    async def stop(self, name: str) -> int:
        """SIGTERM: the member drains and leaves; its exit code."""
        process = self.processes[name]
        process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_PATIENCE):
            await _ended(process)
        if process.poll() is None:
            process.kill()
        return process.wait()

    async def close(self) -> None:
        """Stop whatever runs; all at once, as there is nobody to hand over to."""
        alive = [p for name, p in self.processes.items() if self.running(name)]
        for process in alive:
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGTERM)
        with trio.move_on_after(STOP_PATIENCE / 20):
            for process in alive:
                await _ended(process)
        for process in alive:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)  # the second one: at once
        deadline = time.monotonic() + STOP_PATIENCE / 4
        for process in alive:
            with trio.move_on_after(max(0.0, deadline - time.monotonic())):
                await _ended(process)
            if process.poll() is None:
                process.kill()
            process.wait()
        self._ports.close()

    def log_tail(self, name: str, lines: int = 15) -> str:
        """The end of a member's log."""
        path = self.directory / f"{name}.log"
        text = path.read_text(errors="replace") if path.exists() else ""
        return "\n".join(text.splitlines()[-lines:])

    # ---- state ---------------------------------------------------------------------------------

    async def status(self, name: str) -> dict[str, Any] | None:
        """What a member says of itself."""
        return await ask_status(self.file.members[name].admin)

    async def statuses(self) -> dict[str, dict[str, Any] | None]:
        """The same of all members, asked side by side."""
        found: dict[str, dict[str, Any] | None] = {}

        async def fill(name: str) -> None:
            found[name] = await self.status(name) if self.running(name) else None

        async with trio.open_nursery() as nursery:
            for name in self.names:
                nursery.start_soon(fill, name)
        return {name: found[name] for name in self.names}

    async def wait_normal(self, patience: float = 60.0) -> None:
        """Wait until all members that run are NORMAL everywhere and every group is coordinated."""
        deadline = trio.current_time() + patience
        while trio.current_time() < deadline:
            if await self.is_normal():
                return
            self._check_alive()
            await trio.sleep(0.05)
        tails = "".join(f"\n--- {name}\n{self.log_tail(name)}" for name in self.names)
        raise MigratoryError("NOT_NORMAL", f"the cluster is not NORMAL in time{tails}")

    async def is_normal(self) -> bool:
        """Whether every running member serves, is NORMAL and knows each group's coordinator."""
        statuses = await self.statuses()
        for name in self.names:
            status = statuses[name]
            if not self.running(name):
                continue
            if status is None or not (status["normal"] and status["serving"]):
                return False
            if any(not group["coordinator"] for group in status["groups"]):
                return False
        return True

    def _check_alive(self) -> None:
        for name, process in self.processes.items():
            if process.poll() not in (None, -signal.SIGKILL):
                tail = self.log_tail(name)
                raise MigratoryError("MEMBER_ENDED", f"{name} ended by itself:\n{tail}")


async def _ended(process: subprocess.Popen[bytes]) -> None:
    """Wait for a process without blocking: there is no event for it that trio could wait for."""
    while process.poll() is None:  # noqa: ASYNC110
        await trio.sleep(0.02)


@contextlib.asynccontextmanager
async def open_members(
    ensemble: Ensemble, members: int, directory: Path, **options: Any
) -> AsyncIterator[LocalCluster]:
    """Members on an ensemble that runs, started and perhaps not yet NORMAL."""
    cluster = LocalCluster(ensemble, members, directory, **options)
    try:
        for name in cluster.names:
            cluster.start(name)
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            await cluster.close()


@contextlib.asynccontextmanager
async def open_cluster(
    members: int, directory: Path, *, zookeepers: int = 1, **options: Any
) -> AsyncIterator[LocalCluster]:
    """The same with an ensemble of its own; `options` are those of LocalCluster."""
    async with (
        open_ensemble(zookeepers, directory / "zookeeper") as ensemble,
        open_members(ensemble, members, directory, **options) as cluster,
    ):
        yield cluster
