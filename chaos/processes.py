"""Programs on hosts: started through their command line, tethered to this process, and ended.

A process is waited for through its pidfd, so nothing polls. All are started from the thread that
runs trio, which lives as long as the run (see `chaos.launcher`).
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import IO

import trio

from chaos.launcher import launched


class Program:
    """One running process."""

    def __init__(
        self, words: Sequence[str], entrance: str, log: Path, *,
        output: IO[bytes] | int | None = None, environment: Mapping[str, str] | None = None,
    ) -> None:  # fmt: skip
        with log.open("ab") as written:
            self._process = subprocess.Popen(
                launched([sys.executable, "-m", *words], entrance),
                stdin=subprocess.DEVNULL,
                stdout=written if output is None else output,
                stderr=written,
                env={**os.environ, **(environment or {})},
                start_new_session=True,  # Ctrl-C is for the runner, which ends all in order
            )

    def __repr__(self) -> str:
        return f"<Program {self.pid} {'runs' if self.running else self._process.returncode}>"

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether it is there, frozen or not."""
        return self._process.poll() is None

    @property
    def code(self) -> int | None:
        """How it ended."""
        return self._process.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal; one that has ended does not mind."""
        self._process.send_signal(number)

    def pause(self) -> None:
        """Freeze it."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let it go on."""
        self.signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once; when this returns it is gone."""
        self._process.kill()
        self._process.wait()

    def allow_files(self, *, grow: bool) -> None:
        """Whether its files may grow: if not, each write to one fails, as on a full disk."""
        limit = resource.RLIM_INFINITY if grow else 0
        with contextlib.suppress(ProcessLookupError):  # one that has ended does not mind
            resource.prlimit(self.pid, resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))

    async def lines(self) -> AsyncIterator[bytes]:
        """What it prints, line by line, until it prints no more."""
        assert self._process.stdout is not None
        rest = b""
        async with trio.lowlevel.FdStream(os.dup(self._process.stdout.fileno())) as output:
            async for part in output:
                *whole, rest = (rest + part).split(b"\n")
                for line in whole:
                    yield line

    def close_output(self) -> None:
        """Read nothing more of it."""
        if self._process.stdout is not None:
            self._process.stdout.close()

    async def ended(self) -> int:
        """Wait for its end; how it ended."""
        if self.running:
            watched = os.pidfd_open(self.pid)
            try:
                await trio.lowlevel.wait_readable(watched)
            finally:
                os.close(watched)
        return self._process.wait()

    async def stop(self, patience: float) -> int:
        """Ask it to end, and insist when it takes too long."""
        self.resume()
        self.signal(signal.SIGTERM)
        with trio.move_on_after(patience):
            return await self.ended()
        self.kill()
        return self._process.wait()
