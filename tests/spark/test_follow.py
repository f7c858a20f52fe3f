"""Following a trace that grows: every row once, violations while it goes on, the same verdict."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from argparse import ArgumentParser, Namespace
from copy import deepcopy
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from chaos import checker as quick
from spark.__main__ import follow_and_judge
from spark.bounds import Bounds
from spark.faults import TraceError, TraceFault
from spark.follow import LASTING, Cutter, Follower, follow
from spark.job import add_arguments, run
from spark.schemas import TRACE
from tests.chaos.test_live import SEEN_LIVE, parts
from tests.spark.good_trace import Row, good_trace
from tests.spark.mutants import delivery_lost
from tests.spark.trace_dir import end_of, grow, renumbered, write

PATIENCE = 240.0  # seconds for a Spark that starts on a busy machine
LONGEST = 900  # seconds that a run waits to be caught


def new(directory: Path) -> Path:
    """A directory that was just made."""
    directory.mkdir()
    return directory


def given(traces: Path, out: Path) -> Namespace:
    """The arguments of a check that follows."""
    parser = ArgumentParser()
    add_arguments(parser)
    words = parser.parse_args([str(traces), "--report", str(out)])
    return Namespace(**vars(words), follow=True, patience=PATIENCE)


def report(out: Path) -> dict[str, Any]:
    """What a report says, apart from how long the check took."""
    told: dict[str, Any] = json.loads((out / "report.json").read_text())
    del told["seconds"]
    return told


def ended(rows: list[Row]) -> list[Row]:
    """A run with its last row."""
    return [*rows, end_of(rows)]


def test_pieces_hold_every_line_once(tmp_path: Path) -> None:
    """Pieces end with whole lines whenever they are cut, and the last one has the rest."""
    traces, pieces = tmp_path / "traces", new(tmp_path / "pieces")
    cutter = Cutter(traces, pieces)
    assert cutter.cut() == 0  # not even a directory
    grow(traces, ended(good_trace("good")), cutter.cut, every=7)
    with (traces / "c1.0.jsonl").open("a") as client:
        client.write('{"run": "torn by a ki')
    cutter.cut()
    assert "torn by a ki" not in _text(pieces)
    cutter.cut(last=True)
    assert len(list(pieces.glob("*.txt"))) > 20
    told: dict[str, list[str]] = {}
    for line in _text(pieces).splitlines():
        name, _, row = line.partition("\t")
        told.setdefault(name, []).append(row)
    assert told == {path.name: path.read_text().splitlines() for path in traces.iterdir()}
    assert cutter.cut(last=True) == 0


def _text(pieces: Path) -> str:
    return "".join(piece.read_text() for piece in sorted(pieces.glob("*.txt")))


def test_what_the_whole_trace_shows_is_seen_while_it_grows(
    session: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looks find in 1 to 7 batches what the whole shows to these checks, and nothing else."""
    monkeypatch.setattr("spark.follow.TOLD", 10_000)
    monkeypatch.setattr("spark.follow.RECENT", 2)  # most of the trace is then what was carried on
    wanted: dict[str, set[str]] = {}
    batches: list[list[Row]] = [[] for _ in range(8)]  # what comes last is told by the next look
    for count, (name, trace) in product((1, 2, 7), _followed().items()):
        rows = [{**row, "run": f"{name} in {count}"} for row in trace]
        wanted[f"{name} in {count}"] = {found.check for found in quick.check(rows, names=LASTING)}
        for batch, part in zip(batches, parts(rows, count), strict=False):
            batch += part
    follower = Follower(session, tmp_path, new(tmp_path / "work"), Bounds())
    for number, batch in enumerate(batches):
        values = [tuple(row.get(column) for column in TRACE.fieldNames()) for row in batch]
        follower.take(session.createDataFrame(values, TRACE), number)
    told: dict[str, set[str]] = {run_name: set() for run_name in wanted}
    for run_name, check, *_ in follower.told:
        told[str(run_name)].add(str(check))
    assert told == wanted


def _followed() -> dict[str, list[Row]]:
    """Good traces, and all mutants that a look may find."""
    good = {"good": good_trace("good"), "long": good_trace("long", 9, 12)}
    return good | {m.__name__: m(deepcopy(good["good"])) for m in SEEN_LIVE}


def test_a_followed_trace_gets_the_verdict_of_a_whole_one(
    session: SparkSession, tmp_path: Path
) -> None:
    """A trace that grew, with files that rotate and lines that are torn, is reported alike."""
    traces, pause = tmp_path / "traces", threading.Event()
    rows = ended(good_trace("good"))
    writer = threading.Thread(target=grow, args=(traces, rows, lambda: pause.wait(0.5), 60))
    writer.start()
    try:
        code = follow_and_judge(session, given(traces, tmp_path / "followed"))
    finally:
        pause.set()
        writer.join()
    words = given(traces, tmp_path / "whole")
    assert code == run(session, words) == 0
    assert report(tmp_path / "followed") == report(tmp_path / "whole")
    assert report(tmp_path / "whole")["counts"]["rows"] == len(rows)


def test_a_violation_is_told_while_the_run_goes_on(tmp_path: Path) -> None:
    """The command names it before the run's last row is written, and ends with 1."""
    traces, out = tmp_path / "traces", tmp_path / "out"
    rows = renumbered(delivery_lost(good_trace("bad")))
    seen = threading.Event()
    words = [str(traces), "--follow", "--report", str(out), "--patience", str(PATIENCE)]
    with subprocess.Popen(
        [sys.executable, "-m", "spark", "check", *words], stdout=subprocess.PIPE, text=True
    ) as follower:
        tail = threading.Thread(target=_write_until, args=(traces, rows, seen))
        tail.start()
        assert follower.stdout is not None
        told = []
        for line in follower.stdout:
            told.append(line.strip())
            if line.startswith("seen: NO_GAP in bad: s/a expected 4, got 5"):
                seen.set()
        seen.set()
        tail.join()
    live = [line for line in told if line.startswith("seen: ")]
    assert live == ["seen: NO_GAP in bad: s/a expected 4, got 5 at c1 row 16 — /a"]
    assert told[-1] == "verdict: invalid"
    assert follower.returncode == 1
    assert {found["check"] for found in report(out)["violations"]} == {"NO_GAP", "NO_LOSS"}


def _write_until(traces: Path, rows: list[Row], seen: threading.Event) -> None:
    """A run that ends when its violation was told; meanwhile links come and go."""
    grow(traces, rows, lambda: None, every=1000)
    link, last = {**rows[-1], "kind": "link_up", "proc": "c2", "node": "c2", "conn": "k"}, 0
    while not seen.wait(1.0) and last < LONGEST:
        grow(traces, [{**link, "n": last, "extra": {"member": "m1"}}], lambda: None, every=1000)
        last += 1
    grow(traces, [end_of(rows)], lambda: None, every=1000)


def test_a_run_that_stops_is_judged(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without its last row a run is over when nothing comes for a while; all is taken."""
    rows = good_trace("good")
    traces = write(tmp_path / "traces", rows)
    reading = follow(session, traces, new(tmp_path / "work"), Bounds(), patience=0.5)
    assert "nothing came for 0.5 s: the run is over" in capsys.readouterr().out
    assert (reading.rows.count(), reading.faults) == (len(rows), [])


def test_a_signal_ends_it_early(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """After SIGTERM what came is taken; a line that cannot be read is told by the trace's file."""
    rows = good_trace("good")
    traces = write(tmp_path / "traces", rows)
    member = traces / "m2-1.0.jsonl"
    lines = member.read_text().splitlines()
    member.write_text("\n".join([*lines[:-1], lines[-1][:40]]) + "\n")
    handler = signal.getsignal(signal.SIGTERM)
    work = new(tmp_path / "work")
    threading.Thread(target=_stop_when_it_runs, args=(work / "pieces",)).start()
    reading = follow(session, traces, work, Bounds(), PATIENCE)
    assert "stopped: what came so far is judged" in capsys.readouterr().out
    assert signal.getsignal(signal.SIGTERM) == handler
    wrong = "truncated, or not of the schema"
    assert reading.faults == [TraceFault(member.name, f"line {len(lines)}", wrong)]
    assert reading.rows.count() == len(rows) - 1


def _stop_when_it_runs(pieces: Path) -> None:
    """SIGTERM to this process, once something was cut off."""
    while not any(pieces.glob("*.txt")):
        time.sleep(0.05)
    os.kill(os.getpid(), signal.SIGTERM)


def test_nothing_to_follow_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    """A directory that gets no rows is named after the time that was given."""
    with pytest.raises(TraceError, match=r"NOTHING_CAME: no row came to .*nowhere"):
        follow(session, tmp_path / "nowhere", new(tmp_path / "work"), Bounds(), patience=0.5)
