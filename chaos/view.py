"""What people see of a run: a live table on a terminal, one line per change or second elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from chaos.live import Finding
from chaos.workload import Tally


class Scene(msgspec.Struct, frozen=True):
    """One moment of a run."""

    seconds: float
    length: float
    phase: str
    faults: tuple[str, ...]
    acks_per_second: float
    deliveries_per_second: float
    tally: Tally
    takeovers: int
    finding: Finding | None  # of the quick checks, once there is one

    def line(self) -> str:
        """The moment in one line."""
        broken = ", ".join(self.faults) or "-"
        found = "-" if self.finding is None else str(self.finding.violations)
        return (
            f"{self.seconds:6.1f}s {self.phase:<6} acks {self.acks_per_second:5.0f}/s "
            f"deliveries {self.deliveries_per_second:6.0f}/s takeovers {self.takeovers:4} "
            f"violations {found}  broken: {broken}"
        )

    def rows(self) -> dict[str, str]:
        """The moment as a table."""
        told = self.tally
        return {
            "time": f"{self.seconds:.0f} of {self.length:.0f} s, {self.phase}",
            "acknowledged": f"{self.acks_per_second:.0f}/s, {told.acked} of {told.sent}, "
            f"{told.duplicates} resent, {told.unknown} unknown",
            "delivered": f"{self.deliveries_per_second:.0f}/s, {told.delivered}",
            "resumed": f"{told.resumed}, {told.gaps} gaps, {told.resets} resets",
            "takeovers": str(self.takeovers),
            "violations": said(self.finding),
            "broken": "\n".join(self.faults) or "nothing",
        }


def said(finding: Finding | None) -> str:
    """What the quick checks have found so far."""
    if finding is None:
        return "nothing checked yet"
    if not finding.violations:
        return f"none in {finding.rows} rows, as far as can be said now"
    counts = ", ".join(f"{name} {count}" for name, count in sorted(finding.checks.items()))
    return f"{counts} in {finding.rows} rows\n{finding.last}"


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
        for name, value in scene.rows().items():
            table.add_row(name, Text(value))  # not markup: names of faults and topics are data
        self._live.update(table, refresh=True)
