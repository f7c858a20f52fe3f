"""What people see of a run: a live table on a terminal, one line per change or second elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table


class Scene(msgspec.Struct, frozen=True):
    """One moment of a run."""

    seconds: float
    length: float
    phase: str
    faults: tuple[str, ...]
    acks_per_second: float
    acked: int
    unknown: int
    takeovers: int

    def line(self) -> str:
        """The moment in one line."""
        broken = ", ".join(self.faults) or "-"
        return (
            f"{self.seconds:6.1f}s {self.phase:<6} acks {self.acks_per_second:5.0f}/s "
            f"takeovers {self.takeovers:4} unknown {self.unknown}  broken: {broken}"
        )


class View:
    """Shows scenes; `say` is for what should stay."""

    def __init__(self) -> None:
        self._console = Console(highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._live.stop()

    def say(self, text: str) -> None:
        """Print a line that stays."""
        self._console.print(text, markup=False, soft_wrap=True)

    def show(self, scene: Scene) -> None:
        """Show how it goes."""
        if not self._console.is_terminal:
            self.say(scene.line())
            return
        table = Table(box=None, show_header=False)
        rows = {
            "time": f"{scene.seconds:.0f} of {scene.length:.0f} s, {scene.phase}",
            "acknowledged": f"{scene.acks_per_second:.0f}/s, {scene.acked} in all",
            "outcome unknown": str(scene.unknown),
            "takeovers": str(scene.takeovers),
            "broken": "\n".join(scene.faults) or "nothing",
        }
        for name, value in rows.items():
            table.add_row(name, value)
        self._live.update(table, refresh=True)
