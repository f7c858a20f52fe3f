"""Errors that a person is told about, each with a duty: a code, what happened and what to do.

Programs look at the code, people read the rest. Whatever is not one of these is a bug and ends the
process with its traceback. Errors of foreign libraries never leave the module that calls them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple


class MigratoryError(Exception):
    """Something that the operator or the caller can mend."""

    exit_code = 1

    def __init__(self, code: str, message: str, remedy: str = "") -> None:
        super().__init__(code, message, remedy)
        self.code = code
        self.message = message
        self.remedy = remedy

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" + (f"\n  {self.remedy}" if self.remedy else "")


class ConfigFault(NamedTuple):
    """One mistake in a configuration: where it stands, what is wrong, what to do."""

    key: str
    wrong: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.key}: {self.wrong}; {self.remedy}"


class ConfigError(MigratoryError):
    """A configuration that cannot be used, with all its mistakes at once."""

    exit_code = 2

    def __init__(self, source: str, faults: Sequence[ConfigFault]) -> None:
        count = "one mistake" if len(faults) == 1 else f"{len(faults)} mistakes"
        lines = "".join(f"\n  {fault}" for fault in faults)
        super().__init__("CONFIG_INVALID", f"{count} in {source}{lines}")
        self.source = source
        self.faults = tuple(faults)


class EnsembleError(MigratoryError):
    """The ZooKeeper servers that we start ourselves could not do what was asked."""
