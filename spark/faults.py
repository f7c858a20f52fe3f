"""What is wrong with a trace itself: an error that ends the job, or a fault beside the checks."""

from __future__ import annotations

from typing import NamedTuple


class TraceError(Exception):
    """A trace that cannot be checked at all: a code, what is wrong, what to do."""

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(code, message, remedy)
        self.code = code

    def __str__(self) -> str:
        code, message, remedy = self.args
        return f"{code}: {message}" + (f"\n  {remedy}" if remedy else "")


class TraceFault(NamedTuple):
    """Rows that are missing or cannot be read; the rest is checked, the verdict is unknown."""

    file: str
    row: str
    wrong: str

    def __str__(self) -> str:
        return f"{self.file}, {self.row}: {self.wrong}"
