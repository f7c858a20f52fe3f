"""Clusters that others started: the guide's example as it stands, and files that do not fit."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from chaos.checker import Bounds, check, verdict
from chaos.runner import RunFile
from tests.chaos.guide import block

PATIENCE = 150.0
# Safety is checked here: how long a machine under test is silent says nothing of it.
BOUNDS = Bounds(
    silence_ms=20_000, lag_ms=20_000, ack_ms=4000, require=("takeover", "sync", "gap", "resume")
)  # fmt: skip


class Example:
    """The guide's files in a directory, and its commands on addresses of this test."""

    def __init__(self, place: Path) -> None:
        me = os.getpid()
        self.place = place
        self.last = ""  # the command that breaks
        self.hosts = f"127.{177 + me // 250 % 70}.{1 + me % 250}."
        for name in ("machine.sh", "start.sh", "own.toml"):
            self.write(name, block(f"`{name}`"))

    def write(self, name: str, text: str) -> None:
        """Put a file of the guide here."""
        (self.place / name).write_text(text.replace("127.0.0.", self.hosts))

    def start(self, command: str) -> subprocess.Popen[str]:
        """Start a command of the guide."""
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.Popen(
            ["sh", "-ec", command.replace("127.0.0.", self.hosts)],
            cwd=self.place, env={**os.environ, "PATH": path}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def run(self, command: str) -> tuple[int, str]:
        """Run a command to its end: its code and what it said."""
        with self.start(command) as started:
            said, _ = started.communicate(timeout=PATIENCE)
        return started.returncode, said

    def rename(self, old: str, new: str) -> None:
        """Give the run another name, and restart the members with it, one after another."""
        for name in ("m1", "m2", "m3", "own"):
            file = self.place / f"{name}.toml"
            file.write_text(file.read_text().replace(f'"{old}"', f'"{new}"'))
        for n in (1, 2, 3):
            ready = f"until migratory status --admin 127.0.0.{n}:9000; do sleep 0.2; done"
            code, said = self.run(f"sh machine.sh stop m{n}; sh machine.sh start m{n}; {ready}")
            assert code == 0, said

    def state(self, name: str) -> str:
        """The letter of a process: T is frozen."""
        pid = (self.place / f"{name}.pid").read_text().strip()
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Example]:
    """The guide's cluster, up as the guide says; its last command is left for a test."""
    made = Example(tmp_path_factory.mktemp("drill"))
    try:
        up, _, made.last = block("Then:").strip().rpartition("\n")
        code, said = made.run(f"exec > up.log; {up}")
        assert code == 0, said
        yield made
    finally:
        for pid in made.place.glob("*.pid"):
            made.run(f"sh machine.sh kill {pid.stem}")


def rows(out: Path) -> list[dict[str, Any]]:
    """All rows of a run."""
    files = (out / "traces").glob("*.jsonl")
    return [msgspec.json.decode(line) for path in files for line in path.read_bytes().splitlines()]


def test_the_guides_example_is_broken_healed_and_valid(example: Example) -> None:
    """Hooks do what was planned, the members' rows are brought, and the cluster was right."""
    code, said = example.run(example.last)
    assert code == 0, said
    out = example.place / "run-1"
    plan = msgspec.json.decode((out / "run.json").read_bytes(), type=RunFile).plan
    assert f"carried out: {len(plan.faults)} of {len(plan.faults)} faults" in said
    assert "has no hooks for: " in said
    done = set(re.findall(r"machine\.sh (\w+) ([mz])", (out / "hooks.log").read_text()))
    assert done >= {("kill", "m"), ("start", "m"), ("pause", "m"), ("resume", "m"), ("pause", "z")}
    assert (out / "heal.sh").read_text().count("\n") == 1  # nothing is broken any more
    found = rows(out)
    assert {row["run"] for row in found} == {"drill-1"}
    assert verdict(check(found, BOUNDS)) == "valid", check(found, BOUNDS)


def test_a_name_is_used_for_one_run(example: Example) -> None:
    """Rows of an earlier run under the same name would be judged as well: it is refused."""
    code, said = example.run(example.last.replace("run-1", "again"))
    assert (code, "chaos: RUN_USED: " in said) == (1, True), said
    assert not (example.place / "again").exists()


@pytest.mark.parametrize(
    ("old", "new", "error"),
    [
        ('"drill-1"', '"drill-x"', "NO_TRACE: m1 writes no rows of run drill-x"),
        ("groups = 8", "groups = 9", "OTHER_CLUSTER: m1 has 8 groups"),
        ('id = "m1"', 'id = "m9"', "OTHER_CLUSTER: "),
        ('directory = "traces"', 'directory = "nowhere"', "NO_TRACE: "),
    ],
)
def test_nothing_is_broken_on_a_cluster_that_does_not_fit(
    example: Example, old: str, new: str, error: str
) -> None:
    """A file that describes another cluster, or a run that is not traced, is refused at once."""
    text = (example.place / "own.toml").read_text()
    (example.place / "unfit.toml").write_text(text.replace(old, new, 1))
    code, said = example.run("python -m chaos run --cluster unfit.toml --scenario p3 --out unfit")
    assert (code, f"chaos: {error}" in said) == (1, True), said
    assert not (example.place / "unfit").exists()


def test_an_interrupted_run_heals_or_says_what_it_could_not(example: Example) -> None:
    """Ctrl-C heals by the hooks; if one fails, its command is left for a person."""
    example.rename("drill-1", "drill-2")  # with the history of the first run still there
    place, own = example.place, (example.place / "own.toml").read_text()
    resume = '["sh", "-c", "test ! -e locked && sh machine.sh resume {member}"]'
    (place / "locked.toml").write_text(re.sub("(?m)^resume = .*$", f"resume = {resume}", own))
    (place / "locked").touch()
    command = (
        "exec python -m chaos run --cluster locked.toml --scenario p3 --minutes 1 --out stopped"
    )
    with example.start(command) as running:
        assert running.stdout is not None
        hit = next(
            match[1]
            for line in running.stdout
            if (match := re.search(r"broken: pause (m\d)", line))
        )
        until = time.monotonic() + PATIENCE
        while example.state(hit) != "T" and time.monotonic() < until:
            time.sleep(0.05)  # its hook is at work
        assert example.state(hit) == "T"
        running.send_signal(signal.SIGINT)
        said, _ = running.communicate(timeout=PATIENCE)
    assert running.returncode == 1
    assert f"chaos: NOT_HEALED: still broken: hook resume {hit} ended with 1" in said, said
    written = {row["node"] for row in rows(place / "stopped") if row["kind"] == "boot"}
    assert written == {"m1", "m2", "m3"}  # what members wrote was brought all the same
    (place / "locked").unlink()
    assert example.run("sh stopped/heal.sh")[0] == 0
    assert example.state(hit) != "T"
