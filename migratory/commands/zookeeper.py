"""`migratory zookeeper`: a real ensemble in the foreground, for development and tests."""

from __future__ import annotations

import contextlib
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Literal

import trio
from cyclopts import Parameter

from migratory.shell.ensemble import Ensemble, open_ensemble

LOOK_EVERY = 0.5  # seconds between two looks at the servers


async def zookeeper(
    *,
    servers: Literal[1, 3] = 1,
    directory: Annotated[Path | None, Parameter(name=["--dir"])] = None,
    port: int | None = None,
) -> None:
    """Run one or three ZooKeeper servers until SIGINT or SIGTERM.

    Prints the connection string, alone on a line, as soon as there is a quorum.

    Parameters
    ----------
    servers
        How many servers, 1 or 3.
    directory
        Where they keep logs and data; by default a temporary directory, removed at the end.
    port
        The first server's client port, the others follow; by default any free ports.
    """
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals, _home(directory) as d:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_run, servers, d, port)
            async for _signum in signals:
                nursery.cancel_scope.cancel()
                break


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
