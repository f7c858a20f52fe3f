"""Real runs: a cluster is broken and healed, its rows are complete, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos.__main__ import main
from chaos.network import NamespaceNetwork, open_network
from chaos.runner import RunFile

PATIENCE = 150.0


def rows(out: Path, kind: str) -> list[dict[str, Any]]:
    """All rows of a kind, in order of each process."""
    found = []
    for path in sorted((out / "traces").glob("r*.jsonl")):
        mine = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
        assert [row["n"] for row in mine] == list(range(len(mine)))
        found += [row for row in mine if row["kind"] == kind]
    return found


def processes_of(out: Path) -> list[Path]:
    """Processes that have something to do with a run."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if str(out).encode() in (process / "cmdline").read_bytes():
                found.append(process)
    return [process for process in found if process.name != str(os.getpid())]


def namespaces(processes: Iterable[Path]) -> set[str]:
    """The network namespaces that these processes are in."""
    found: set[str] = set()
    for process in processes:
        with suppress(OSError):
            found.add(str((process / "ns/net").readlink()))
    return found


class Running:
    """A run in a process of its own, and the namespaces that its processes are in meanwhile."""

    def __init__(self, out: Path, *words: str) -> None:
        self.out = out
        command = [sys.executable, "-m", "chaos", "run", *words, "--out", str(out)]
        self.runner = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.told = b""
        assert self.runner.stdout is not None
        for line in self.runner.stdout:
            self.told += line
            if b"acks" in line:  # everything runs
                break
        self.processes = processes_of(out)
        self.spaces = namespaces(self.processes) - namespaces([Path("/proc/self")])

    def finish(self) -> int:
        """Wait for its end; how it ended."""
        self.told += self.runner.communicate(timeout=PATIENCE)[0]
        return self.runner.returncode

    def is_gone(self) -> bool:
        """Whether nothing of it is left; the kernel has a moment to end what was killed."""
        deadline = time.monotonic() + 10
        while processes_of(self.out) or namespaces(Path("/proc").glob("[0-9]*")) & self.spaces:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True


@pytest.fixture
def scenario() -> str:
    """Cuts and a stampede where there are namespaces, else pauses."""
    network, _ = open_network()
    network.close()
    return "p14" if isinstance(network, NamespaceNetwork) else "p3"


def test_a_run_breaks_heals_and_reads_everything(tmp_path: Path, scenario: str) -> None:
    """Every planned fault is on and off, members end NORMAL and equal, and nothing is left."""
    out = tmp_path / "run"
    run = Running(out, "--scenario", scenario, "--minutes", "0.4", "--seed", "3")
    assert run.finish() == 0, run.told.decode()
    told = msgspec.json.decode((out / "run.json").read_bytes(), type=RunFile)
    planned = [fault.id for fault in told.plan.faults]
    for kind in ("plan", "fault_on", "fault_off"):
        assert sorted(row["extra"]["id"] for row in rows(out, kind)) == sorted(planned)
    assert [row["extra"]["phase"] for row in rows(out, "phase")] == [
        "quiet", "storm", "quiet", "healed", "end",
    ]  # fmt: skip
    (ended,) = rows(out, "end")
    assert ended["t_wall"] >= max(row["t_wall"] for row in rows(out, "final_head"))
    heads: dict[str, set[tuple[int, int]]] = {}
    for row in rows(out, "final_head"):
        heads.setdefault(row["topic"], set()).add((row["epoch"], row["seq"]))
    assert {len(each) for each in heads.values()} == {1}
    assert {row["extra"]["member"] for row in rows(out, "final_read")} == {"m1", "m2", "m3"}
    assert run.is_gone()


def test_a_run_that_is_killed_leaves_nothing(tmp_path: Path) -> None:
    """Processes and namespaces are gone with the runner, even by kill -9."""
    run = Running(tmp_path / "run")
    assert len(run.processes) > 6, run.told.decode()
    run.runner.kill()
    run.finish()
    assert run.is_gone()


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["run", "--scenario", "nonsense", "--out", "new"], "UNKNOWN_SCENARIO"),
        (["run", "--scenario", "p1", "--minutes", "0", "--out", "new"], "BAD_LENGTH"),
        (["run", "--scenario", "p1", "--out", "file"], "BAD_OUT"),
        (["run", "--scenario", "p1", "--out", "full"], "OUT_TAKEN"),
        (["replay", "new", "--out", "other"], "NO_SUCH_RUN"),
    ],
)
def test_bad_input_is_named(
    words: list[str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A run that cannot be carried out ends with a named error and a code that is not 0."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not a directory")
    Path("full").mkdir()
    Path("full", "old").write_text("of an earlier run")
    assert main(words) == 1
    assert f"chaos: {code}: " in capsys.readouterr().err


def test_scenarios_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    """Each scenario has a name and a sentence."""
    assert main(["list"]) == 0
    assert main(["list", "--kinds"]) == 0
    shown = capsys.readouterr().out
    assert "p20 " in shown
    assert "kill-storm " in shown
    assert "cut-one-way " in shown
