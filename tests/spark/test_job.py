"""The command: exit codes, what is wrong with a trace by file and row, Parquet, the report."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark.__main__ import main
from spark.bounds import HAPPENINGS, Bounds
from spark.faults import TraceError
from spark.job import add_arguments, run
from spark.reading import read_trace
from tests.spark.good_trace import good_trace
from tests.spark.mutants import delivery_lost, idle_group, rows_of, told
from tests.spark.trace_dir import renumbered, write


def check(session: SparkSession, *words: str) -> int:
    """The exit code of a check with these arguments."""
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return run(session, parser.parse_args(words))


def test_a_good_trace_is_valid_and_reported(session: SparkSession, tmp_path: Path) -> None:
    """A good trace ends with 0, and its report stands alone."""
    traces = write(tmp_path / "traces", good_trace("good<script>"))
    assert check(session, str(traces), "--report", str(tmp_path / "out")) == 0
    told = json.loads((tmp_path / "out" / "report.json").read_text())
    assert told["verdict"] == "valid"
    assert told["fault_kinds"] == {"kill": 1}
    assert told["counts"]["takeovers"] == 3
    assert told["counts"]["acked"] == told["counts"]["published"] > 0
    assert told["outcomes"] == {"fresh": 2, "gap": 1, "reset": 1, "resumed": 1}
    assert set(told["latencies"]["publish to ack"]) == {"before", "during", "after"}
    assert told["bounds"] == {**vars(Bounds()), "require": list(HAPPENINGS)}
    page = (tmp_path / "out" / "report.html").read_text()
    assert "<svg" in page
    assert "--scenario good --seed 7" in page
    assert "<script" not in page
    assert "src=" not in page


def test_a_bad_trace_is_invalid(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A violation ends with 1 and names a witness; what was asked for is what it is judged by."""
    traces = write(tmp_path / "traces", renumbered(delivery_lost(good_trace("bad"))))
    bounds = ["--heal-ms", "9000", "--ack-ms", "1999"]
    assert check(session, str(traces), "--report", str(tmp_path / "out"), *bounds) == 1
    judged = json.loads((tmp_path / "out" / "report.json").read_text())["bounds"]
    assert judged == {**vars(Bounds(heal_ms=9000, ack_ms=1999)), "require": list(HAPPENINGS)}
    assert "NO_GAP (1) in bad: s/a expected 4, got 5" in capsys.readouterr().out
    assert "s/a expected 4, got 5" in (tmp_path / "out" / "report.html").read_text()


def test_too_little_happened(session: SparkSession, tmp_path: Path) -> None:
    """A run that proves nothing is neither valid nor invalid."""
    traces = write(tmp_path / "traces", idle_group(good_trace("idle")))
    assert check(session, str(traces)) == 2


def test_damage_is_told_by_file_and_line(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Truncated rows, wrong types, lacking columns and holes are named; the verdict is unknown."""
    traces = write(tmp_path / "traces", good_trace("damaged"))
    member, client = traces / "m2-1.0.jsonl", traces / "c1.0.jsonl"
    lines = member.read_text().splitlines()
    lines[-2] = lines[-2][:40]
    lines[6] = lines[6].replace('"epoch": 1', '"epoch": "one"')
    lines[8] = lines[8].replace('"idx"', '"index"')
    member.write_text("\n".join(lines))
    kept = client.read_text().splitlines()
    del kept[10:12]
    client.write_text("\n".join(kept) + "\n")
    assert check(session, str(traces)) == 2
    told = capsys.readouterr().out
    assert f"m2-1.0.jsonl, line {len(lines) - 1}: truncated, or not of the schema" in told
    assert "m2-1.0.jsonl, line 7: truncated, or not of the schema" in told
    assert "m2-1.0.jsonl, line 9: " in told
    assert "without idx" in told
    assert "c1.0.jsonl, line 11: rows after 9 are missing in c1" in told
    assert "verdict: unknown" in told


def test_a_value_that_is_no_number_is_told(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A row whose extra has another word in place of a number is a fault, not a crash."""
    rows = good_trace("damaged")
    told(rows_of(rows, "final_head")[0], first="x")
    assert check(session, str(write(tmp_path / "traces", rows))) == 2
    assert ": final_head: no number is first" in capsys.readouterr().out


def test_a_member_that_was_killed_while_it_wrote_is_whole(
    session: SparkSession, tmp_path: Path
) -> None:
    """A torn end of a life's last file is no fault; of another file or process it is one."""
    traces = write(tmp_path / "traces", good_trace("good"))
    with (traces / "m1-1.0.jsonl").open("a") as life:
        life.write('{"run": "good", "node": "m1", "bo')
    assert check(session, str(traces)) == 0
    (traces / "m1-1.1.jsonl").write_text("")
    assert [fault.file for fault in read_trace(session, str(traces)).faults] == ["m1-1.0.jsonl"]
    (traces / "m1-1.1.jsonl").unlink()
    with (traces / "c1.0.jsonl").open("a") as client:
        client.write('{"run": "good", "node": "c1", "bo')
    assert [fault.file for fault in read_trace(session, str(traces)).faults] == ["c1.0.jsonl"]


def test_processes_without_rows_make_a_verdict_unknown(
    session: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Files that were not brought here are named: nobody broke a promise."""
    rows = good_trace("part")
    some = [row for row in rows if row["node"] != "m3" and row["proc"] != "m1-2"]
    assert check(session, str(write(tmp_path / "traces", some))) == 2
    said = capsys.readouterr().out
    assert "fault: run part, m1-2: no row of it is there" in said
    assert "fault: run part, m3: no row of it is there" in said
    assert "run part, m2" not in said


def test_a_check_that_fails_is_no_verdict(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever ends the check early ends with 2 and a sentence."""

    def full(_traces: str) -> int:
        raise OSError("the disk is full")

    monkeypatch.setattr("spark.__main__.rows_in", full)
    assert main(["check", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("CHECK_FAILED: OSError: the disk is full\n")


def test_parquet_holds_the_same_rows(session: SparkSession, tmp_path: Path) -> None:
    """A converted trace has the same rows; a file that was cut off is told."""
    traces = write(tmp_path / "traces", good_trace("good"))
    rows = read_trace(session, str(traces)).rows
    rows.coalesce(2).write.parquet(str(tmp_path / "tables"))
    again = read_trace(session, str(tmp_path / "tables"))
    assert again.faults == []
    assert again.rows.count() == rows.count() == len(good_trace("good"))
    (tmp_path / "tables" / "part-9.parquet").write_bytes(b"PAR1 and then the disk was full")
    faults = read_trace(session, str(tmp_path / "tables")).faults
    assert [str(fault) for fault in faults] == ["part-9.parquet, whole file: no Parquet file"]


def test_a_report_that_cannot_be_written_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    """It is told before the trace is read, with what to do."""
    (tmp_path / "file").write_text("not a directory")
    with pytest.raises(TraceError, match=r"BAD_REPORT: .*\n  let --report name"):
        check(session, str(tmp_path / "no-trace"), "--report", str(tmp_path / "file" / "out"))


def test_what_is_no_trace_is_an_error(session: SparkSession, tmp_path: Path) -> None:
    """Nothing to read, nothing readable, or other columns: a named error says what to do."""
    with pytest.raises(TraceError, match="NO_TRACE"):
        check(session, str(tmp_path / "nowhere"))
    with pytest.raises(TraceError, match="NO_TRACE"):
        check(session, str(tmp_path))
    (tmp_path / "x.0.jsonl").write_text("noise\n")
    with pytest.raises(TraceError, match=r"NO_ROWS.*\n.*x.0.jsonl, line 1"):
        check(session, str(tmp_path))
    session.range(3).write.parquet(str(tmp_path / "other"))
    with pytest.raises(TraceError, match=r"WRONG_SCHEMA.*run is missing"):
        check(session, str(tmp_path / "other"))
    with pytest.raises(TraceError, match="UNKNOWN_HAPPENING"):
        check(session, str(tmp_path), "--require", "rain")
