"""Rows of the runner and of the nemesis, as docs/traces.md has them: one JSON object per line.

Invariants: rows of a process are numbered without holes from 0; a value that is absent has no key;
whatever is in `extra` is text. A row is in the file when `write` returns, so that a run which is
killed keeps what it had seen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from hashlib import blake2b
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec


def message_id(payload: str | bytes) -> str:
    """The column `mid` of a payload."""
    raw = payload.encode() if isinstance(payload, str) else payload
    return blake2b(raw, digest_size=8).hexdigest()


class TraceWriter:
    """Writes the trace of one process that is no member."""

    def __init__(self, directory: Path, run: str, proc: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._same = {"run": run, "node": proc, "boot": 0, "proc": proc}
        self._file = (directory / f"{proc}.0.jsonl").open("wb", buffering=0)
        self._n = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self._file.close()

    def write(
        self, kind: str, *, extra: Mapping[str, object] | None = None, **columns: object
    ) -> None:
        """Write a row; `columns` are named as in the contract."""
        row = self._same | {
            "t_mono": time.monotonic_ns() // 1000,
            "t_wall": time.time_ns() // 1000,
            "n": self._n,
            "kind": kind,
            **columns,
        }
        if extra:
            row["extra"] = {key: str(value) for key, value in extra.items()}
        self._file.write(msgspec.json.encode(row) + b"\n")
        self._n += 1
