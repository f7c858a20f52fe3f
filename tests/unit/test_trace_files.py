"""The writer of traces: numbers, files and their bounds, samples, and disks that take nothing."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import msgspec
import pytest

from migratory import trace_files
from migratory.trace_files import TraceWriter
from migratory.wire.ids import group_of
from migratory.wire.trace import Row, decode_rows, encode_rows, keeps, mid_of

COMMON = {"run", "node", "boot", "proc", "t_mono", "t_wall", "n", "kind"}


def read(directory: Path) -> list[Row]:
    """All rows in the order of their files."""
    paths = sorted(directory.iterdir(), key=lambda path: int(path.name.split(".")[1]))
    return [row for path in paths for row in decode_rows(path.read_bytes())]


def numbers(directory: Path) -> list[int]:
    """The numbers of all rows."""
    return [row.n for row in read(directory)]


def test_a_row_has_only_what_it_has(tmp_path: Path) -> None:
    """Columns without a value are left out, zeros and empty names are values."""
    writer = TraceWriter(tmp_path, "r", "m1", 10, boot=3)
    writer.row("isolate")
    writer.row("ack", group=0, epoch=0, idx=0)
    writer.close()
    lines = (tmp_path / "m1-3.0.jsonl").read_bytes().splitlines()
    first, second = [set(msgspec.json.decode(line)) for line in lines]
    assert first == COMMON
    assert second == COMMON | {"group", "epoch", "idx"}
    row = read(tmp_path)[1]
    assert (row.run, row.node, row.boot, row.proc, row.n) == ("r", "m1", 3, "m1-3", 1)
    assert row.t_wall > 1_600_000_000_000_000
    assert "row 2 written" in repr(writer)


def test_a_topic_tells_its_group(tmp_path: Path) -> None:
    """Who names a topic need not name the group; names of connections are unique."""
    writer = TraceWriter(tmp_path, "r", "c1", 7)
    writer.row("sub_open", topic="/a/b", sub=writer.fresh("s"))
    writer.row("sub_open", topic="/a/b", sub=writer.fresh("s"), group=99)
    writer.close()
    rows = read(tmp_path)
    assert [row.group for row in rows] == [group_of("/a/b", 7), 99]
    assert [row.sub for row in rows] == ["c1.s1", "c1.s2"]


def test_a_message_has_one_name() -> None:
    """Text and its bytes are the same message; the name is 16 hexadecimal digits."""
    assert mid_of("grün") == mid_of("grün".encode())
    assert len(mid_of(b"")) == 16


def test_a_line_that_was_cut_off_is_not_read() -> None:
    """A process that was killed in a write leaves its whole rows."""
    row = Row(run="r", node="n", boot=0, proc="n", t_mono=1, t_wall=2, n=0, kind="k")
    assert decode_rows(encode_rows([row, row])[:-5]) == [row]
    assert decode_rows(b"") == []


def test_a_sample_keeps_all_rows_of_a_topic_or_none(tmp_path: Path) -> None:
    """Every process keeps the same topics, about one in so many, in all groups."""
    topics = [f"/t/{n}" for n in range(4000)]
    kept = [topic for topic in topics if keeps(topic, 10)]
    assert 300 < len(kept) < 500
    assert {group_of(topic, 10) for topic in kept} == set(range(10))
    assert all(keeps(topic, 1) for topic in topics)
    writer = TraceWriter(tmp_path, "r", "m1", 10, sample=10)
    for topic in topics:
        writer.row("append", topic=topic)
        writer.row("commit", topic=topic)
    writer.row("boot")
    writer.close()
    rows = read(tmp_path)
    assert [row.topic for row in rows if row.kind == "append"] == kept
    assert [row.topic for row in rows if row.kind == "commit"] == kept
    assert [row.n for row in rows] == list(range(2 * len(kept) + 1))


def test_files_are_bounded_in_size_and_number(tmp_path: Path) -> None:
    """A new file after so many bytes, the oldest deleted: the rest is without holes."""
    writer = TraceWriter(tmp_path, "r", "m1", 10, boot=1, file_bytes=2000, files=3)
    for _ in range(200):
        writer.row("boot")
        writer.flush()
    writer.close()
    sizes = [path.stat().st_size for path in tmp_path.iterdir()]
    assert len(sizes) <= 3
    assert max(sizes) < 2200
    found = numbers(tmp_path)
    assert found == list(range(found[0], 200))
    assert found[0] > 0


def test_many_rows_are_written_by_themselves(tmp_path: Path) -> None:
    """Nobody can forget to flush so long that memory fills."""
    writer = TraceWriter(tmp_path, "r", "m1", 10)
    for _ in range(trace_files.MAX_WAITING):
        writer.row("boot")
    assert len(numbers(tmp_path)) == trace_files.MAX_WAITING


def test_a_writer_goes_on_behind_what_is_there(tmp_path: Path) -> None:
    """A file of an earlier process with the same name is not overwritten."""
    for _ in range(2):
        writer = TraceWriter(tmp_path, "r", "c1", 10)
        writer.row("boot")
        writer.close()
        writer.close()
    assert numbers(tmp_path) == [0, 0]


FULL = os.strerror(errno.ENOSPC)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int]]:
    """What writers say of their disk, and how many rows they lost; they try again at once."""
    told: list[tuple[str, int]] = []
    monkeypatch.setattr(trace_files, "RETRY", 0.0)
    monkeypatch.setattr(trace_files, "_say", lambda *words: told.append(words))
    return told


def on_full_disk(directory: Path) -> tuple[TraceWriter, Path]:
    """A writer whose first file is on a full disk until that path is unlinked."""
    path = directory / "m1.0.jsonl"
    path.symlink_to("/dev/full")
    return TraceWriter(directory, "r", "m1", 10), path


def boot(writer: TraceWriter, times: int) -> None:
    """So many rows, each flushed."""
    for _ in range(times):
        writer.row("boot")
        writer.flush()


def test_a_full_disk_costs_nothing_while_it_is_short(
    tmp_path: Path, said: list[tuple[str, int]]
) -> None:
    """Rows wait for room; it is said once that they do, and once more when they are written."""
    writer, path = on_full_disk(tmp_path)
    boot(writer, 3)
    assert said == [(FULL, 0)]
    assert FULL in repr(writer)
    path.unlink()
    boot(writer, 2)
    writer.close()
    assert said == [(FULL, 0), ("", 0)]
    assert numbers(tmp_path) == [0, 1, 2, 3, 4]


def test_rows_that_wait_need_no_further_row(tmp_path: Path, said: list[tuple[str, int]]) -> None:
    """A flush tries again what waits, also when nothing has happened since."""
    writer, path = on_full_disk(tmp_path)
    boot(writer, 2)
    path.unlink()
    writer.flush()
    assert numbers(tmp_path) == [0, 1]
    assert said == [(FULL, 0), ("", 0)]


def test_a_disk_that_stays_full_loses_rows_and_nothing_else(
    tmp_path: Path, said: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Memory is bounded: what comes when too many rows wait is a hole, and its size is said."""
    monkeypatch.setattr(trace_files, "KEPT_BYTES", 1000)
    writer, path = on_full_disk(tmp_path)
    boot(writer, 20)
    path.unlink()
    writer.flush()
    boot(writer, 1)
    writer.close()
    found = numbers(tmp_path)
    assert found == [*range(len(found) - 1), 20]
    assert 3 < len(found) < 12
    assert said == [(FULL, 0), (FULL, 1), ("", 21 - len(found))]


def test_rows_that_still_wait_at_the_end_are_lost(
    tmp_path: Path, said: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever closes on a full disk says how many rows the trace lacks in all."""
    monkeypatch.setattr(trace_files, "KEPT_BYTES", 1000)
    writer, _ = on_full_disk(tmp_path)
    boot(writer, 20)
    writer.close()
    assert said == [(FULL, 0), (FULL, 1), (FULL, 20)]


def test_an_attempt_takes_little_memory(tmp_path: Path, said: list[tuple[str, int]]) -> None:
    """However much waits, the disk is offered a small piece of it at a time."""
    writer, _ = on_full_disk(tmp_path)
    writer.files.write(b"x" * (trace_files.KEPT_BYTES - 1) + b"\n")
    tracemalloc.start()
    writer.flush()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2 * trace_files.PIECE
    assert said == [(FULL, 0)]


def test_more_than_a_piece_is_written_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where one piece ends and the next begins nothing is lost or repeated."""
    monkeypatch.setattr(trace_files, "PIECE", 100)
    writer = TraceWriter(tmp_path, "r", "m1", 10)
    for _ in range(50):
        writer.row("boot")
    writer.close()
    assert numbers(tmp_path) == list(range(50))


def test_a_writer_that_ends_tries_a_last_time(
    tmp_path: Path, said: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What waits is written at the end, if there is room by then."""
    monkeypatch.setattr(trace_files, "RETRY", 3600.0)
    place = tmp_path / "no directory"
    place.write_text("")
    writer = TraceWriter(place, "r", "m1", 10)
    boot(writer, 1)
    place.unlink()
    writer.close()
    assert numbers(place) == [0]
    assert said == [(os.strerror(errno.EEXIST), 0), ("", 0)]


def test_a_disk_that_takes_nothing_is_not_tried_all_the_time(
    tmp_path: Path, said: list[tuple[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between two attempts rows are kept without a system call."""
    monkeypatch.setattr(trace_files, "RETRY", 3600.0)
    place = tmp_path / "no directory"
    place.write_text("")
    writer = TraceWriter(place, "r", "m1", 10)
    writer.row("boot")
    writer.flush()
    place.unlink()
    writer.row("boot")
    writer.flush()
    assert len(said) == 1
    assert not place.exists()


PROGRAM = """
import fcntl, logging, os, resource, signal, sys
from pathlib import Path
from migratory import trace_files
logging.basicConfig(level=logging.WARNING, format="%(message)s", stream=sys.stdout)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
trace_files.RETRY = 0.0
path = Path(sys.argv[1]) / "m1.0.jsonl"
if sys.argv[2] == "sealed":
    memory = os.memfd_create("m1", os.MFD_ALLOW_SEALING)
    fcntl.fcntl(memory, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK)
    path.symlink_to(f"/proc/self/fd/{memory}")
writer = trace_files.TraceWriter(path.parent, "r", "m1", 10)
_, most = resource.getrlimit(resource.RLIMIT_FSIZE)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, most))
for _ in range(40):
    writer.row("boot")
for _ in range(3):
    writer.flush()
size = path.stat().st_size
resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))
writer.row("boot")
writer.close()
written = path.read_bytes()
path.unlink()
path.write_bytes(written)
print(size)
"""


@pytest.mark.parametrize("file", ["plain", "sealed"])
def test_a_write_that_is_cut_leaves_whole_lines(tmp_path: Path, file: str) -> None:
    """Where the disk fills in the middle of a row, the torn part is taken back, or else continued.

    A sealed file cannot be made shorter.
    """
    command = [sys.executable, "-c", PROGRAM, str(tmp_path), file]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert told[:2] == [
        "rows are not written: File too large",
        "rows are written again, 0 were lost",
    ]
    (path,) = tmp_path.iterdir()
    lines = path.read_bytes()
    assert lines.endswith(b"\n")
    assert numbers(tmp_path) == list(range(41))
    whole = lines.rfind(b"\n", 0, 1000) + 1
    assert int(told[2]) == (whole if file == "plain" else 1000)
