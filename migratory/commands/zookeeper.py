"""`migratory zookeeper`: a real ensemble in the foreground, for development and tests."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal, NoReturn

import trio
from cyclopts import Parameter

from migratory.errors import EnsembleError
from migratory.shell.ensemble import Ensemble, open_ensemble, server_command

LOOK_EVERY = 0.5  # seconds between two looks at the servers


async def zookeeper(
    *,
    servers: Literal[1, 3] = 1,
    directory: Annotated[Path | None, Parameter(name=["--dir"])] = None,
    port: int | None = None,
    server: int | None = None,
    addresses: str | None = None,
) -> None:
    """Run one or three ZooKeeper servers until SIGINT or SIGTERM.

    Prints the connection string, alone on a line, as soon as there is a quorum. With --server and
    --addresses it becomes that one server of an ensemble over several hosts, and prints nothing.

    Parameters
    ----------
    servers
        How many servers, 1 or 3.
    directory
        Where they keep logs and data; by default a temporary directory, removed at the end.
    port
        The first server's client port, the others follow; by default any free ports.
    server
        Become only this server of those at --addresses, numbered from 1; needs --dir.
    addresses
        The hosts of all servers of the ensemble, with commas; they use ZooKeeper's usual ports.
    """
    if server is not None or addresses is not None:
        _become(server, addresses, directory)
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, _home(directory) as d:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, servers, d, port)
            async for _signum in signals:
                nursery.cancel_scope.cancel()
                break


def _become(server: int | None, addresses: str | None, directory: Path | None) -> NoReturn:
    """Let one server take this process."""
    if server is None or addresses is None or directory is None:
        remedy = "name all three, or none of --server and --addresses"
        raise EnsembleError("HALF_SAID", "--server, --addresses and --dir go together", remedy)
    command = server_command(server, addresses.split(","), directory)
    os.execv(command[0], command)  # noqa: S606


@contextlib.contextmanager
def _home(directory: Path | None) -> Iterator[Path]:
    """The directory that was asked for, or one that goes away."""
    if directory is not None:
        yield directory
    else:
        with tempfile.TemporaryDirectory(prefix="migratory-zookeeper-") as made:
            yield Path(made)


async def _run(servers: int, directory: Path, port: int | None) -> None:
    """Keep an ensemble until cancelled; a server that ends by itself is an error."""
    async with open_ensemble(servers, directory, port) as ensemble:
        print(ensemble.hosts, flush=True)
        await _watch(ensemble)


async def _watch(ensemble: Ensemble) -> None:
    while True:
        await trio.sleep(LOOK_EVERY)
        ensemble.check_alive()
