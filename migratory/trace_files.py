"""The files of one process's trace: numbered rows, a bounded number of files, no harm when full.

Members, clients and the chaos runner all write through this one border, hence its place beside
`migratory.wire`, which has no I/O. Rows are kept until `flush`, which its owner calls (a member
before anything leaves the process, a client at least ten times a second) and which also happens
by itself when many wait.

Invariants: rows are numbered in the order in which things happened; a number is used once, and
one that is missing in the files names a row that could not be written. No failure to write leaves
this module: the process goes on, it is said once, tried again every second, and said once more
when it works again. What a disk did not take waits in memory, at most `KEPT_BYTES` of it, and is
written first when there is room; what comes beyond that, or still waits at the end, is lost, which
is said with its number. A process that is killed while rows wait loses them too, and nothing shows
it: they are the last ones. A file ends with a whole line, except where a process was killed in a
write.
"""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

from migratory.wire.ids import group_of
from migratory.wire.trace import Row, encode_rows, keeps

FILE_BYTES = 64 << 20
FILES = 16
MAX_WAITING = 256  # rows, then they are written
RETRY = 1.0  # seconds between two attempts at a disk that takes nothing
KEPT_BYTES = 16 << 20  # of rows that wait for such a disk
PIECE = 1 << 20  # bytes that are given to the disk at once


def _say(fault: str, lost: int) -> None:
    logger = logging.getLogger("migratory.trace")
    if not fault:
        logger.warning("rows are written again, %d were lost", lost)
    elif lost:
        logger.warning("rows are lost, %d by now: %s", lost, fault)
    else:
        logger.warning("rows are not written: %s", fault)


class TraceFiles:
    """`<proc>.<k>.jsonl` in a directory: a new one every `file_bytes`, at most `files` of them."""

    def __init__(self, directory: Path, proc: str, file_bytes: int, files: int) -> None:
        self._directory = directory
        self._proc = proc
        self._file_bytes = file_bytes
        self._files = files
        self._k = 0
        self._fd = -1
        self._size = 0
        self._retry_at = 0.0
        self._kept = bytearray()  # what a disk has not taken ...
        self._torn = 0  # ... except so many bytes of its first line
        self._lost = 0  # rows since the fault began
        self.fault = ""
        # Is told of a fault, of the first rows lost by it and of those lost at the end, and when
        # it is over ("") how many were.
        self.say: Callable[[str, int], None] = _say

    def write(self, lines: bytes) -> None:
        """Write whole lines, or none in order to try again those that wait.

        While the disk takes none they are kept, or lost when too many are.
        """
        if len(self._kept) + len(lines) <= KEPT_BYTES:
            self._kept += lines
        else:
            self._lose(lines, say=not self._lost)
        if not self.fault or time.monotonic() >= self._retry_at:
            self._write_kept()

    def close(self) -> None:
        """Close the file that is open; a later write goes on behind it."""
        if self._kept:
            self._write_kept()
        try:
            self._close_file()
        except OSError as error:
            self._change(_name(error))
        if self._kept:
            self._lose(self._kept, say=True)
            self._kept.clear()
            self._torn = self._lost = 0

    def _lose(self, lines: bytes | bytearray, *, say: bool) -> None:
        self._lost += lines.count(b"\n")
        if say:
            self.say(self.fault, self._lost)

    def _close_file(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def path(self, k: int) -> Path:
        """Where file number k is."""
        return self._directory / f"{self._proc}.{k}.jsonl"

    def _write_kept(self) -> None:
        try:
            if self._fd < 0:
                self._open()
            self._append()
            if self._size >= self._file_bytes:
                self._next_file()
        except OSError as error:
            self._retry_at = time.monotonic() + RETRY
            self._change(_name(error))
            with contextlib.suppress(OSError):
                self._take_back()
        else:
            self._change("")

    def _open(self) -> None:
        self._directory.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
        self._fd = os.open(self.path(self._k), flags, 0o644)
        self._size = os.fstat(self._fd).st_size

    def _append(self) -> None:
        kept = self._kept
        while self._torn < len(kept):
            written = self._torn + os.write(self._fd, kept[self._torn : self._torn + PIECE])
            whole = kept.rfind(b"\n", 0, written) + 1
            del kept[:whole]
            self._size += whole
            self._torn = written - whole

    def _take_back(self) -> None:
        """Whole lines stay, a torn one goes: what is in a file can always be read.

        If it cannot be taken back, the next attempt goes on in the middle of it; else that opens
        the file anew, since it may be another disk by then.
        """
        if self._torn:
            os.ftruncate(self._fd, self._size)
            self._torn = 0
        self._close_file()

    def _next_file(self) -> None:
        self._close_file()
        self._k += 1
        # The next one makes so many, so the oldest goes now.
        self.path(self._k - self._files).unlink(missing_ok=True)

    def _change(self, fault: str) -> None:
        if bool(fault) != bool(self.fault):
            self.say(fault, self._lost)
        if not fault:
            self._lost = 0
        self.fault = fault


def _name(error: OSError) -> str:
    return error.strerror or str(error)


class TraceWriter:
    """Writes the rows of one process; `groups` places topics in their groups."""

    def __init__(
        self,
        directory: Path,
        run: str,
        node: str,
        groups: int,
        *,
        boot: int = 0,
        sample: int = 1,
        file_bytes: int = FILE_BYTES,
        files: int = FILES,
    ) -> None:
        self.run = run
        self.node = node
        self.boot = boot
        self.proc = f"{node}-{boot}" if boot else node
        self.groups = groups
        self.sample = sample
        self.files = TraceFiles(directory, self.proc, file_bytes, files)
        self._rows: list[Row] = []
        self._n = 0
        self._names = 0

    def __repr__(self) -> str:
        return f"<TraceWriter {self.proc} row {self._n} {self.files.fault or 'written'}>"

    def keeps(self, topic: str) -> bool:
        """Whether rows of a topic are kept; ask before computing what they say."""
        return self.sample == 1 or keeps(topic, self.sample)

    def fresh(self, letter: str) -> str:
        """A name that is unique in the run, for a connection or a subscription."""
        self._names += 1
        return f"{self.proc}.{letter}{self._names}"

    def row(  # noqa: PLR0913 (they are the columns)
        self,
        kind: str,
        *,
        group: int | None = None,
        topic: str | None = None,
        epoch: int | None = None,
        seq: int | None = None,
        idx: int | None = None,
        pid: str | None = None,
        pseq: int | None = None,
        mid: str | None = None,
        sub: str | None = None,
        conn: str | None = None,
        extra: dict[str, str] | None = None,
    ) -> None:
        """Write a row, unless it names a topic that is not kept; a topic tells its group."""
        if topic is not None:
            if not self.keeps(topic):
                return
            if group is None:
                group = group_of(topic, self.groups)
        rows = self._rows
        rows.append(
            Row(
                run=self.run, node=self.node, boot=self.boot, proc=self.proc,
                t_mono=time.monotonic_ns() // 1000, t_wall=time.time_ns() // 1000,
                n=self._n, kind=kind, group=group, topic=topic, epoch=epoch, seq=seq, idx=idx,
                pid=pid, pseq=pseq, mid=mid, sub=sub, conn=conn, extra=extra,
            )
        )  # fmt: skip
        self._n += 1
        if len(rows) >= MAX_WAITING:
            self.flush()

    def flush(self) -> None:
        """Hand over to the operating system what waits: a killed process has written it."""
        if self._rows or self.files.fault:
            rows, self._rows = self._rows, []
            self.files.write(encode_rows(rows))

    def close(self) -> None:
        """Write what waits and close the file."""
        self.flush()
        self.files.close()
