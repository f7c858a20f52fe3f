"""The cluster under test: members, ZooKeeper servers and one host for clients, as processes.

Everything is started through the command line, as an operator would. `m1`.. are members, `z1`..
ZooKeeper servers, `clients` is where the workload runs; each is a host of the network. The state of
a member is asked from inside its own host, so no cut hides it.

Invariant: whoever makes a cluster closes it, and then nothing of it runs and no namespace is left.
"""

from __future__ import annotations

import contextlib
import glob
import os
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import trio

from chaos.cable import TUN
from chaos.kinds import KINDS
from chaos.network import NamespaceNetwork, Network
from chaos.plan import Plan
from chaos.processes import Program
from chaos.watched import Ending, Service, Watched

ZOOKEEPERS = 3
CLIENTS = "clients"
CLIENT_PORT, PEER_PORT, ADMIN_PORT, ZOOKEEPER_PORT = 8800, 8900, 9000, 2181
PORTS: dict[Service, int] = {"admin": ADMIN_PORT, "zookeeper": ZOOKEEPER_PORT}
STOP = 20.0  # seconds for a member to drain
MAX_MESSAGES = 200  # history: short enough that an absence outlasts it
MAX_AGE = 180.0
FILES = 10_000  # of a life's trace: nothing of a run is deleted before it is judged
SERVER = ("migratory",)  # the module that members run, and words before its command


class Cluster(Watched):
    """All processes of a run but the workload, and what can be done to them."""

    def __init__(
        self, plan: Plan, network: Network, directory: Path, run: str,
        server: Sequence[str] = SERVER,
    ) -> None:  # fmt: skip
        members = [f"m{n}" for n in range(1, plan.members + 1)]
        zookeepers = [f"z{n}" for n in range(1, ZOOKEEPERS + 1)]
        super().__init__(members, zookeepers, plan.survive, directory, network)
        self.server = server
        self.groups = plan.groups
        self.programs: dict[str, Program] = {}
        self.down: set[str] = set()  # what is meant not to run
        self.endings: list[Ending] = []  # that nobody was told of yet
        self.strays: list[Program] = []  # replaced processes that may still run
        self._lives = {name: trio.Lock() for name in (*self.members, *self.zookeepers)}
        self.cables = {name: trio.Lock() for name in (*self.members, *self.zookeepers)}
        for name in (*self.members, *self.zookeepers, CLIENTS):
            network.add(name)
        for name in self.members:
            self._write(name, run)

    @property
    def servers(self) -> list[str]:
        """Where clients connect."""
        return [f"{self.network.address(name)}:{CLIENT_PORT}" for name in self.members]

    def _write(self, name: str, run: str) -> None:
        """A member's configuration."""
        at = self.network.address
        listed = "".join(
            f'\n[[cluster.member]]\nid = "{m}"\npeer = "{at(m)}:{PEER_PORT}"\n'
            f'client = "{at(m)}:{CLIENT_PORT}"\n'
            for m in self.members
        )
        keeper = ",".join(f"{at(z)}:{ZOOKEEPER_PORT}" for z in self.zookeepers)
        traces = self.directory.absolute() / "traces"
        trace = (
            f'\n[trace]\nmode = "full"\ndirectory = "{traces}"\nrun = "{run}"\nfiles = {FILES}\n'
        )
        text = (
            f'[cluster]\nname = "chaos"\nfaults = {self.survive}\ngroups = {self.groups}\n'
            f'zookeeper = "{keeper}"\n{listed}\n[member]\nid = "{name}"\n\n'
            f'[admin]\naddress = "{self.network.home(name)}:{ADMIN_PORT}"\n\n'
            f"[history]\nmax_messages = {MAX_MESSAGES}\nmax_age = {MAX_AGE}\n"
            f"{trace}"
        )
        (self.directory / f"{name}.toml").write_text(text)

    # ---- processes -----------------------------------------------------------------------------

    def start(self, name: str, environment: dict[str, str] | None = None) -> None:
        """Start a member or a ZooKeeper server that is not running."""
        if name in self.zookeepers:
            home = str(self.directory.absolute() / "zookeeper")
            hosts = ",".join(self.network.address(z) for z in self.zookeepers)
            words = ["migratory", "zookeeper", "--server", name[1:], "--addresses", hosts]
            words += ["--dir", home]
        else:
            words = [*self.server, "serve", str(self.directory / f"{name}.toml")]
            self.forgetful.add(name)
        log = self.directory / f"{name}.log"
        entrance = self.network.entrance(name)
        self.down.discard(name)
        self.programs[name] = Program(words, entrance, log, environment=environment)

    def kill(self, name: str) -> None:
        """End it at once; it stays down until it is started."""
        self._take_down(name)
        self.programs[name].kill()

    def _take_down(self, name: str) -> None:
        if name not in self.down and not self.programs[name].running:
            self._ended(name, "by itself")  # before anybody looked
        self.down.add(name)
        if name in self.members:
            self.forgetful.add(name)  # from now on, or two faults could see room for one

    def pause(self, name: str) -> None:
        """Freeze it."""
        self.programs[name].pause()

    def resume(self, name: str) -> None:
        """Let it go on."""
        self.programs[name].resume()

    def cut(self, source: str, target: str) -> None:
        """Lose whatever one host sends to another."""
        self.network.cut(source, target)

    def heal(self, source: str, target: str) -> None:
        """Take one cut back."""
        self.network.heal(source, target)

    def revive(self) -> list[Ending]:
        """Start what ended by itself, as an operator's supervisor would; who did not end well."""
        ended = [n for n, p in self.programs.items() if n not in self.down and not p.running]
        for name in ended:
            self._ended(name, "by itself")
            self.start(name)
        found, self.endings = self.endings, []
        return found

    def _ended(self, name: str, when: str) -> None:
        self.endings.append(Ending(name, self.programs[name].code, when))

    async def stop(self, name: str) -> int:
        """Drain a member and wait for its end; it stays down until it is started."""
        self._take_down(name)
        code = await self.programs[name].stop(STOP)
        if code != 0:
            self._ended(name, "when it was drained")
        return code

    async def recover(self, name: str) -> None:
        """Order a member, as an operator on its host, to open what waits with what it can find."""
        admin = f"{self.network.home(name)}:{ADMIN_PORT}"
        words = ["migratory", "recover", "--accept-loss", "--yes", "--admin", admin]
        log = self.directory / "recover.log"
        ordered = Program(words, self.network.entrance(name), log)
        try:
            await ordered.ended()
        finally:
            ordered.kill()

    async def close(self) -> None:
        """End everything at once: what was worth reading has been read."""
        for program in (*self.programs.values(), *self.strays):
            program.kill()
        await trio.lowlevel.checkpoint()

    def life(self, name: str) -> object:
        """Its process, which knows nothing of an earlier one."""
        return None if name in self.down else self.programs.get(name)

    async def dial(self, name: str, service: Service) -> trio.SocketStream:
        """A connection to a host from itself; no cut hides the admin port."""
        host = self.network.home(name) if service == "admin" else self.network.address(name)
        asked = trio.socket.from_stdlib_socket(self.network.open_socket(name))
        try:
            await asked.connect((host, PORTS[service]))
        except BaseException:
            asked.close()
            raise
        return trio.SocketStream(asked)

    def trace_bytes(self, name: str) -> int:
        """How much all lives of a member have written of their traces."""
        files = (self.directory / "traces").glob(f"{name}-*.jsonl")
        return sum(file.stat().st_size for file in files)

    @contextlib.asynccontextmanager
    async def replacing(self, name: str) -> AsyncIterator[None]:
        """A block that ends and starts a process, alone; a member must be allowed to forget."""
        async with self.keeping(name):
            if name in self.members:
                await self.wait_remembered(name)
            yield

    def keeping(self, name: str) -> trio.Lock:
        """A block in which nobody else ends or starts a process."""
        return self._lives[name]


def find_faketime() -> str:
    """Where libfaketime is on this machine, or nothing."""
    found = glob.glob("/usr/lib/*/faketime/libfaketime.so.1")  # noqa: PTH207
    return found[0] if found else ""


def possible_kinds(network: Network) -> frozenset[str]:
    """The kinds of faults that this machine can do."""
    has = {
        "": True,
        "root": os.geteuid() == 0,
        "namespaces": network.can_cut,
        "taps": network.can_cut and Path(TUN).exists(),
        "libfaketime": bool(find_faketime()),
    }
    return frozenset(name for name, kind in KINDS.items() if has[kind.needs])


@contextlib.asynccontextmanager
async def open_cluster(
    plan: Plan, network: Network, directory: Path, run: str, server: Sequence[str] = SERVER
) -> AsyncIterator[Cluster]:
    """A cluster that is NORMAL; leaving the block ends all its processes."""
    cluster = Cluster(plan, network, directory, run, server)
    try:
        for name in (*cluster.zookeepers, *cluster.members):
            cluster.start(name)
        await cluster.wait_normal()
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            await cluster.close()


def namespaces_of(cluster: Cluster) -> NamespaceNetwork:
    """The network of a cluster whose faults need namespaces."""
    assert isinstance(cluster.network, NamespaceNetwork)
    return cluster.network
