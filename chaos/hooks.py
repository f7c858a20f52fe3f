"""Commands of others that break and heal: run with a time limit, counted, and never forgotten.

What a command is about to break is written down first, as the command that heals it, in `heal.sh`
beside the run: also a runner that is killed leaves a file with which a person can heal. Overlapping
faults may break the same thing: the first one breaks it, the last one heals it.

Invariant: what stands in `broken` may be broken, whatever is not there is healed.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import trio

from chaos.own_file import HOOKS, OwnHooks
from migratory.errors import MigratoryError

LAST_WORDS = 300  # characters of a failed command's output that are told
Spot = Mapping[str, str]  # what the places in a command's words stand for


class Hooks:
    """Runs the hooks of a file in its directory; output goes to `hooks.log` of the run."""

    def __init__(self, commands: OwnHooks, place: Path, out: Path) -> None:
        self.broken: dict[tuple[str, ...], str] = {}  # the command that heals: what it heals
        self._commands = commands
        self._place = place
        self._out = out
        self._counts: Counter[tuple[str, ...]] = Counter()
        self._turns: defaultdict[tuple[str, ...], trio.Lock] = defaultdict(trio.Lock)

    @asynccontextmanager
    async def breaking(self, hook: str, spots: Sequence[Spot]) -> AsyncIterator[None]:
        """Break all spots side by side, and heal them at the end of the block in any case."""
        begun: list[Spot] = []
        try:
            async with trio.open_nursery() as nursery:
                for spot in spots:
                    begun.append(spot)
                    nursery.start_soon(self._break, hook, spot)
            yield
        finally:
            with trio.CancelScope(shield=True):
                failed: list[MigratoryError] = []
                async with trio.open_nursery() as nursery:
                    for spot in begun:
                        nursery.start_soon(self._heal, hook, spot, failed)
            if failed:
                raise failed[0]

    async def run(self, hook: str, spot: Spot) -> None:
        """Run one command to its end."""
        await self._run(f"{hook} {shown(spot)}", self._commands.command(hook, spot))

    async def heal_rest(self) -> list[str]:
        """Try once more to heal what could not be healed; what is still broken, and why."""
        left = []
        for command, what in list(self.broken.items()):
            try:
                await self._run(what, list(command))
            except MigratoryError as error:
                left.append(error.message)
            else:
                self._forget(command)
        return left

    # ---- one thing ------------------------------------------------------------------------------

    def _healing(self, hook: str, spot: Spot) -> tuple[str, ...]:
        return tuple(self._commands.command(HOOKS[hook].healed_by, spot))

    async def _break(self, hook: str, spot: Spot) -> None:
        heals = self._healing(hook, spot)
        self._counts[heals] += 1
        async with self._turns[heals]:
            if heals not in self.broken:
                self.broken[heals] = f"{HOOKS[hook].healed_by} {shown(spot)}"
                self._write()
                await self.run(hook, spot)

    async def _heal(self, hook: str, spot: Spot, failed: list[MigratoryError]) -> None:
        heals = self._healing(hook, spot)
        self._counts[heals] -= 1
        async with self._turns[heals]:
            if self._counts[heals] == 0 and heals in self.broken:
                try:
                    await self._run(self.broken[heals], list(heals))
                except MigratoryError as error:
                    failed.append(error)
                else:
                    self._forget(heals)

    def _forget(self, heals: tuple[str, ...]) -> None:
        del self.broken[heals]
        self._write()

    def _write(self) -> None:
        """`heal.sh`: the commands that heal what is broken now; at any moment a whole file."""
        where = f"cd {shlex.quote(str(self._place))}\n"
        lines = "".join(f"{shlex.join(command)}\n" for command in self.broken)
        written = self._out / ".heal.sh"
        written.write_text(where + lines)
        written.replace(self._out / "heal.sh")

    # ---- commands -------------------------------------------------------------------------------

    async def _run(self, what: str, words: list[str]) -> None:
        with tempfile.TemporaryFile() as output:
            try:
                how = await self._ended(words, output.fileno())
            except OSError as error:
                how = f"cannot be started: {error}"
            output.seek(0)
            said = " ".join(output.read().decode(errors="replace").split())
        with (self._out / "hooks.log").open("a") as log:
            log.write(f"$ {shlex.join(words)}\n{said}\n" if said else f"$ {shlex.join(words)}\n")
        if how:
            told = f"hook {what} {how}" + (f": {said[-LAST_WORDS:]}" if said else "")
            remedy = f"try it in {self._place}: {shlex.join(words)}"
            raise MigratoryError("HOOK_FAILED", told, remedy)

    async def _ended(self, words: list[str], output: int) -> str:
        """Run a command; what is wrong with its end, or nothing.

        Its output is a file and no pipe: what it leaves running keeps that open.
        """
        process = await trio.lowlevel.open_process(
            words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT,
            cwd=self._place, start_new_session=True,
        )  # fmt: skip
        try:
            with trio.move_on_after(self._commands.timeout) as limit:
                await process.wait()
        finally:
            if process.returncode is None:
                os.killpg(process.pid, signal.SIGKILL)
                with trio.CancelScope(shield=True):
                    await process.wait()
        if limit.cancelled_caught:
            return f"did not end within {self._commands.timeout:g} s (hooks.timeout)"
        return f"ended with {process.returncode}" if process.returncode else ""


def shown(spot: Spot) -> str:
    """Whom it hits, in a word."""
    names = ("member", "server", "from", "to")
    return ">".join(spot[name] for name in names if name in spot)
