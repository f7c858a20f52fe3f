"""The quick checks of a growing trace: they see what the whole trace shows, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from copy import deepcopy
from itertools import accumulate
from pathlib import Path

import msgspec
import pytest

from chaos import live
from chaos.checker import check
from chaos.live import LIVE, Finding, Follower, LiveCheck
from tests.spark.good_trace import Row, good_trace
from tests.spark.mutants import Mutant, delivery_lost
from tests.spark.mutants_of_owed import EVERY

SEEN_LIVE = [mutant for mutant, checks in EVERY.items() if set(checks.split()) & set(LIVE)]
WHOLE = pytest.mark.parametrize("turns", [1, 2, 7, 40])


def parts(rows: list[Row], count: int) -> list[list[Row]]:
    """The rows as they come in time, those of each process in order."""
    found: list[list[Row]] = [[] for _ in range(count)]
    begin, end = min(row["t_wall"] for row in rows), max(row["t_wall"] for row in rows) + 1
    for proc in {row["proc"] for row in rows}:
        mine = sorted((row for row in rows if row["proc"] == proc), key=lambda row: row["n"])
        for row, at in zip(mine, accumulate((row["t_wall"] for row in mine), max), strict=True):
            found[(at - begin) * count // (end - begin)].append(row)
    return found


def seen(rows: list[Row], turns: int) -> set[str]:
    """The checks that fire while rows come in so many parts."""
    checking = LiveCheck()
    return {violation.check for part in parts(rows, turns) for violation in checking.take(part)}


@WHOLE
def test_a_good_trace_is_good_at_any_time(turns: int) -> None:
    """Nothing is found where nothing is wrong, wherever the rows are cut."""
    assert seen(good_trace("good", 9, 12), turns) == set()


@WHOLE
@pytest.mark.parametrize("mutant", SEEN_LIVE)
def test_what_the_whole_trace_shows_is_seen_while_it_grows(mutant: Mutant, turns: int) -> None:
    """The live checks find in parts exactly what they find in the whole."""
    rows = mutant(deepcopy(good_trace("bad")))
    whole = {violation.check for violation in check(rows, names=LIVE)}
    assert whole
    assert seen(rows, turns) == whole


def test_a_violation_is_told_once() -> None:
    """What was found stays found, and is not found again in every turn."""
    rows = delivery_lost(deepcopy(good_trace("bad")))
    checking = LiveCheck()
    found = [violation for part in parts(rows, 20) for violation in checking.take(part)]
    assert len(found) == len(set(found)) == checking.finding().violations


def _life(*acts: str) -> list[Row]:
    """What one life did in a group: kinds with an epoch, and what a floor or a promise says."""
    rows: list[Row] = []
    for n, act in enumerate(acts):
        kind, epoch, *normal = act.split()
        row = {"run": "r", "node": "m1", "boot": 1, "proc": "m1-1", "n": n, "kind": kind}
        row |= {"t_mono": n, "t_wall": n, "group": 0, "epoch": int(epoch), "idx": n}
        said = {"role": "follower"} if kind == "append" else {}
        rows.append(row | {"extra": {"normal": normal[0]} if normal else said})
    return rows


BEFORE = ("floor 1 false", "promise 1 false", "normal 1", "append 1", "ack 1", "commit 1")
AFTER = (
    "floor 7 false",
    "promise 7 false",
    "install 7",
    "normal 7",
    "append 7",
    "ack 7",
    "commit 7",
)
OWN = ("floor 1 false", "normal 1", "ack 1", "promise 7 true", "elect 7", "floor 7 true", "ack 7")


@pytest.mark.parametrize(
    ("acts", "wrong"),
    [
        ((*BEFORE, *AFTER), set()),
        ((*BEFORE, "floor 5 false", "install 5", *AFTER), set()),
        ((*BEFORE, "floor 5 false", *AFTER[:2], *AFTER[4:]), {"RECOVER_SILENT"}),
        ((*BEFORE, *AFTER, "floor 9 false", "ack 9"), {"RECOVER_SILENT"}),
        (OWN, set()),
        ((*OWN[:4], *OWN[5:]), {"RECOVER_SILENT"}),
        ((*OWN[:5], "elect 8", *OWN[5:]), {"RECOVER_SILENT"}),
    ],
)
@pytest.mark.parametrize("size", [1, 2, 3, 100])
def test_floors_of_a_life_one_after_another(
    acts: tuple[str, ...], wrong: set[str], size: int
) -> None:
    """What a life was between two floors that made it forget stays known, wherever rows are cut."""
    rows, checking = _life(*acts), LiveCheck()
    assert {violation.check for violation in check(rows, names=LIVE)} == wrong
    found = [v for at in range(0, len(rows), size) for v in checking.take(rows[at : at + size])]
    assert {violation.check for violation in found} == wrong


def test_memory_does_not_grow_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the latest entries are kept; a message that comes twice is still seen."""
    monkeypatch.setattr(live, "ENTRIES", 10)
    rows = good_trace("long", 5, 7)
    commit = next(row for row in rows if row["kind"] == "commit" and row.get("topic"))
    checking = LiveCheck()
    whose = {key: commit[key] for key in ("proc", "group")}
    normal = next(r for r in rows if r["kind"] == "normal" and r.items() >= whose.items())
    assert checking.take([normal]) == []
    for n in range(500):
        again = {**commit, "n": 1000 + n, "idx": 1000 + n, "seq": 1000 + n, "pseq": 1000 + n}
        assert checking.take([again]) == []
    assert "of 11 rows" in repr(checking.memory)
    twice = {**commit, "n": 2000, "idx": 1500, "seq": 1500, "pseq": 1495}
    assert {violation.check for violation in checking.take([twice])} == {"ONCE", "PUB_ORDER"}


@pytest.mark.parametrize("proc", ["client", "m1-3"])
def test_files_are_followed_across_torn_lines_and_new_files(tmp_path: Path, proc: str) -> None:
    """A row is read once, when all of it is there, and files of a process one after another."""
    follower, first = Follower(tmp_path), tmp_path / f"{proc}.0.jsonl"
    first.write_bytes(b'{"n":0}\n{"n"')
    assert list(follower.read()) == [{"n": 0}]
    assert list(follower.read()) == []
    first.write_bytes(b'{"n":0}\n{"n":1}\n')
    (tmp_path / f"{proc}.1.jsonl").write_bytes(b'{"n":2}\n')
    assert [*follower.read(), *follower.read()] == [{"n": 1}, {"n": 2}]
    assert list(follower.read()) == []


def test_members_are_read_after_clients(tmp_path: Path) -> None:
    """What a client saw is never there without what the member had written before."""
    for proc in ("m1-1", "a-2", "workload", "a"):
        (tmp_path / f"{proc}.0.jsonl").write_bytes(b'"%s"\n' % proc.encode())
    rows = [str(row) for row in Follower(tmp_path).read()]
    assert sorted(rows[:2]) == ["a", "workload"]
    assert sorted(rows[2:]) == ["a-2", "m1-1"]


def test_the_process_tells_what_it_finds_while_a_trace_grows(tmp_path: Path) -> None:
    """A planted violation is told while rows still come; SIGTERM ends with the last word."""
    trace = tmp_path / "client.0.jsonl"
    early, late = parts(delivery_lost(deepcopy(good_trace("bad"))), 2)
    trace.write_bytes(b"".join(msgspec.json.encode(row) + b"\n" for row in early))
    command = [sys.executable, "-m", "chaos.live", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        findings = (msgspec.json.decode(line, type=Finding) for line in process.stdout)
        assert next(f for f in findings if f.rows == len(early)).rows < len(early) + len(late)
        with trace.open("ab") as file:
            file.write(b"".join(msgspec.json.encode(row) + b"\n" for row in late))
        told = next(f for f in findings if f.violations)
        assert told.checks.get("NO_GAP")
        assert told.last
        process.terminate()
        *_, last = [told, *findings]
        assert last.rows == len(early) + len(late)
        assert process.wait(30) == 0
