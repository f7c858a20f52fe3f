"""Trace directories for tests: written at once, or growing as a run would write them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from migratory.trace_files import TraceFiles
from tests.spark.good_trace import Row

FILE_BYTES = 5000  # files of a growing trace are closed often
TORN = 997  # bytes, which end anywhere in a line


def write(traces: Path, rows: Iterable[Row]) -> Path:
    """A trace directory, a file per process."""
    traces.mkdir()
    files: dict[str, list[str]] = {}
    for row in rows:
        files.setdefault(row["proc"], []).append(json.dumps(row))
    for proc, lines in files.items():
        (traces / f"{proc}.0.jsonl").write_text("\n".join(lines) + "\n")
    return traces


def renumbered(rows: list[Row]) -> list[Row]:
    """Rows without holes in their numbers."""
    counts: dict[str, int] = {}
    for row in rows:
        row["n"] = counts[row["proc"]] = counts.get(row["proc"], -1) + 1
    return rows


def end_of(rows: list[Row]) -> Row:
    """The row that ends a run."""
    last = [row for row in rows if row["proc"] == "runner"][-1]
    return {**last, "kind": "end", "n": last["n"] + 1, "extra": None}


def grow(traces: Path, rows: Iterable[Row], pause: Callable[[], object], every: int) -> None:
    """Write rows in order, with a pause after so many; the client's lines are torn in between."""
    files: dict[str, TraceFiles] = {}
    traces.mkdir(exist_ok=True)
    waiting = b""
    with (traces / "c1.0.jsonl").open("ab", buffering=0) as client:
        for number, row in enumerate(rows, 1):
            line = json.dumps(row).encode() + b"\n"
            if row["proc"] == "c1":
                waiting += line
                while len(waiting) > TORN:
                    client.write(waiting[:TORN])
                    waiting = waiting[TORN:]
            else:
                proc = row["proc"]
                files.setdefault(proc, TraceFiles(traces, proc, FILE_BYTES, 100)).write(line)
            if row["kind"] == "end":
                break
            if number % every == 0:
                pause()
        client.write(waiting)
    for each in files.values():
        each.close()
