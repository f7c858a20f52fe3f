"""Rows of the runner, the nemesis and the final reader (docs/traces.md).

Invariant: a row is in the file when `note` returns, so that a run which is killed keeps what it
had seen.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from migratory.trace_files import TraceWriter


@contextmanager
def notes(directory: Path, run: str, proc: str, groups: int) -> Iterator[TraceWriter]:
    """The trace of a process that is neither a member nor a client."""
    writer = TraceWriter(directory, run, proc, groups)
    try:
        yield writer
    finally:
        writer.close()


def note(trace: TraceWriter, kind: str, extra: Mapping[str, object]) -> None:
    """Write a row now."""
    trace.row(kind, extra={key: str(value) for key, value in extra.items()})
    trace.flush()
