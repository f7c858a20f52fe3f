"""`migratory up`: a cluster on this machine, supervised, with one line of state per member."""

from __future__ import annotations

import signal
import sys
import tempfile
from pathlib import Path
from typing import Annotated, Any, Literal

import trio
from cyclopts import Parameter
from rich.console import Console
from rich.live import Live
from rich.table import Table

from migratory.shell.local_cluster import LocalCluster, open_cluster

LOOK_EVERY = 0.5
RESTART_AFTER = 1.0  # a member that ended by itself is started again


async def up(
    *,
    members: Literal[1, 3, 4, 5, 7] = 3,
    zookeepers: Literal[1, 3] = 3,
    directory: Annotated[Path | None, Parameter(name=["--dir"])] = None,
    faults: int | None = None,
    any_port: Annotated[bool, Parameter(negative=())] = False,
) -> None:
    """Run a cluster on this machine until SIGINT or SIGTERM.

    Clients find it at 127.0.0.1:8800 and up; DIR/cluster.json has all addresses.

    Parameters
    ----------
    members
        How many members.
    zookeepers
        How many ZooKeeper servers, 1 or 3.
    directory
        Where configurations, logs and ZooKeeper's data go; by default a temporary directory.
    faults
        How many members may fail; by default as many as a majority allows.
    any_port
        Use any free ports instead of the usual ones.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, members, zookeepers, directory, faults, any_port)
            async for _ in signals:
                nursery.cancel_scope.cancel()
                break


async def _run(
    members: int, zookeepers: int, directory: Path | None, faults: int | None, any_port: bool
) -> None:
    with tempfile.TemporaryDirectory(prefix="migratory-up-") as made:
        place = directory or Path(made)
        print(f"starting {zookeepers} ZooKeeper servers and {members} members in {place}")
        async with open_cluster(
            members, place, zookeepers=zookeepers, faults=faults, fixed_ports=not any_port
        ) as cluster:
            print(f"clients: {','.join(cluster.servers)}   state: migratory status --dir {place}")
            print("Ctrl-C stops everything", flush=True)
            await _supervise(cluster)


async def _supervise(cluster: LocalCluster) -> None:
    """Show the state of all members, and start again what ends by itself."""
    console = Console()
    shown: dict[str, str] = {}
    with Live(console=console, auto_refresh=False, transient=False) as live:
        while True:
            await _revive(cluster, console)
            lines = {
                name: line_of(name, status) for name, status in (await cluster.statuses()).items()
            }
            if console.is_terminal:
                live.update(_table(lines), refresh=True)
            else:
                for name in [name for name in lines if lines[name] != shown.get(name)]:
                    print(lines[name], flush=True)
            shown = lines
            await trio.sleep(LOOK_EVERY)


async def _revive(cluster: LocalCluster, console: Console) -> None:
    for name in cluster.names:
        process = cluster.processes[name]
        if process.poll() is not None:
            console.print(f"{name} ended with {process.returncode}, starting it again")
            if process.returncode != -signal.SIGKILL:
                print(cluster.log_tail(name, 5), file=sys.stderr)
            await trio.sleep(RESTART_AFTER)
            cluster.start(name)


def line_of(name: str, status: dict[str, Any] | None) -> str:
    """The state of one member in one line."""
    if status is None:
        return f"{name}  does not answer (starting, or gone)"
    groups = status["groups"]
    normal = sum(group["status"] == "NORMAL" for group in groups)
    leads = sum(group["coordinator"] == name for group in groups)
    waits = sum(group["waits_for_operator"] for group in groups)
    state = "NORMAL" if normal == len(groups) else f"RECOVERING {normal}/{len(groups)}"
    if status["draining"]:
        state = "draining"
    clients = status.get("clients", 0)
    peers = " ".join(p for p, view in status["peers"].items() if view["reached"]) or "nobody"
    line = f"{name}  {state}  coordinates {leads}  clients {clients}  reaches {peers}"
    return line + (f"  {waits} groups wait for the operator" if waits else "")


def _table(lines: dict[str, str]) -> Table:
    table = Table.grid()
    for line in lines.values():
        table.add_row(line)
    return table
