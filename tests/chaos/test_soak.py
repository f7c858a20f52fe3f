"""The soak: slices with verdicts, a table, and going on after an interruption."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from chaos.__main__ import main
from chaos.scenarios import SCENARIOS
from chaos.soak import ROTATION, verdict_of
from chaos.soak_table import Asked, Slice
from migratory.errors import MigratoryError

PATIENCE = 280.0
COUNTS = {"takeovers": 7, "published": 1000, "acked": 990, "delivered": 12345}
FAILOVERS = {
    "kill-quick": {"count": 3, "p50_ms": 410, "p99_ms": 900, "max_ms": 900, "ms": [90, 410, 900]},
    "kill-long": {"count": 1, "p50_ms": 500, "p99_ms": 500, "max_ms": 500, "ms": [500]},
}


def finished(out: Path, *verdicts: str, slices: int = 2) -> list[str]:
    """The words of a soak whose slices have these verdicts already."""
    out.mkdir()
    asked = Asked(float(slices), 1.0, 5, "small")
    (out / "soak.json").write_bytes(msgspec.json.encode(asked))
    done = [
        Slice(
            n, 5000 + n, "soak", 1.0, verdict, says="" if verdict == "valid" else "NO_GAP (1): m1",
            fault_kinds={"kill-quick": 3, "cut": 2}, counts=COUNTS, failovers=FAILOVERS, rows=20000,
        )
        for n, verdict in enumerate(verdicts, 1)
    ]  # fmt: skip
    (out / "soak.jsonl").write_bytes(b"".join(msgspec.json.encode(each) + b"\n" for each in done))
    return ["soak", "--minutes", str(slices), "--slice", "1", "--seed", "5", "--load", "small",
            "--out", str(out)]  # fmt: skip


@pytest.mark.parametrize(
    ("verdicts", "code"),
    [
        (("valid", "valid"), 0),
        (("valid", "invalid"), 1),
        (("failed", "invalid"), 1),
        (("valid", "unknown"), 2),
        (("failed", "valid"), 2),
    ],
)
def test_the_exit_code_sums_up_all_slices(
    verdicts: tuple[str, ...], code: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """0 only if everything is valid, 1 if anything is invalid, else 2; nothing is run again."""
    words = finished(tmp_path / "soak", *verdicts)
    assert main(words) == code
    assert "10 faults (6 kill -9 of members" in capsys.readouterr().out
    table = (tmp_path / "soak" / "soak.md").read_text()
    assert "| 2 | 5002 | soak | 1 |" in table
    assert "24690 delivered; 40000 rows" in table
    assert "| 1 | kill-quick | 3 | 410 | 900 | 900 |" in table
    assert "| all | kill-quick | 6 | 410 | 900 | 900 |" in table
    assert "| all | kill -9 | 8 | 410 | 900 | 900 |" in table
    assert ("NO_GAP" in table) == (code > 0)


@pytest.mark.parametrize(
    ("code", "says", "verdict"),
    [(0, "", "valid"), (1, "", "invalid"), (2, "", "unknown"), (3, "", "unknown"),
     (0, "it broke off", "failed"), (1, "it broke off", "invalid"), (2, "it broke off", "failed")],
)  # fmt: skip
def test_a_violation_counts_however_the_run_ended(code: int, says: str, verdict: str) -> None:
    """A run that ends with an error is a failed slice, unless its trace shows a broken promise."""
    assert verdict_of(code, says) == verdict


def test_other_arguments_are_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A soak is gone on with as it was begun, or not at all."""
    words = finished(tmp_path / "soak", "valid", "valid")
    words[words.index("--seed") + 1] = "6"
    assert main(words) == 2
    assert "OTHER_SOAK" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--minutes", "1", "--slice", "10", "--out", "new"], "BAD_LENGTH"),
        (["--minutes", "1", "--slice", "0.01", "--out", "new"], "BAD_LENGTH"),
        (["--minutes", "nan", "--slice", "1", "--out", "new"], "BAD_LENGTH"),
        (["--load", "enormous", "--out", "new"], "UNKNOWN_LOAD"),
        (["--out", "full"], "OUT_TAKEN"),
        (["--out", "file"], "BAD_OUT"),
        (["--out", "torn"], "BAD_OUT"),
    ],
)
def test_bad_input_is_named(
    words: list[str], code: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """What cannot be a soak ends at once, with a code that does not mean invalid."""
    monkeypatch.chdir(tmp_path)
    Path("file").write_text("not a directory")
    for name, file in (("full", "old"), ("torn", "soak.json")):
        Path(name).mkdir()
        Path(name, file).write_text("of something else")
    assert main(["soak", *words]) == 2
    assert f"chaos: {code}: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (OSError(28, "No space left on device"), "SOAK_FAILED: OSError: [Errno 28] No space left"),
        (
            ExceptionGroup("of a nursery", [MigratoryError("OF_A_RUN", "known"), KeyError("m9")]),
            "SOAK_FAILED: KeyError: 'm9'",
        ),
    ],
)
def test_an_error_that_ends_a_soak_is_no_verdict(
    wrong: Exception, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    """A full disk or a bug is told with 2: 1 would say that a slice was invalid."""

    async def broken(*_: object) -> None:
        raise wrong

    monkeypatch.setattr("chaos.soak.start_run", broken)
    assert main(finished(tmp_path / "soak", "valid")) == 2
    told = capsys.readouterr().err
    assert f"chaos: {said}" in told
    assert "same arguments" in told
    assert ("Traceback" in told) == ("KeyError" in said)


def test_scenarios_of_the_rotation_exist() -> None:
    """Two hours have all of them."""
    assert set(ROTATION) <= set(SCENARIOS)
    assert len(ROTATION) == 12


def command(out: Path) -> list[str]:
    """A soak of one short slice."""
    words = ["--minutes", "0.4", "--slice", "0.4", "--load", "small", "--out", str(out)]
    return [sys.executable, "-m", "chaos", "soak", *words]


def test_an_interrupted_slice_is_done_anew(tmp_path: Path) -> None:
    """Ctrl-C ends everything in order and says how to go on; the next call begins it anew."""
    out = tmp_path / "soak"
    runs = []
    for _ in range(2):
        with subprocess.Popen(
            command(out), stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as soaking:
            assert soaking.stdout is not None
            assert any(b"acks" in line for line in soaking.stdout)
            soaking.send_signal(signal.SIGINT)
            _, told = soaking.communicate(timeout=PATIENCE)
        assert soaking.returncode == 2
        assert b"INTERRUPTED" in told
        assert b"same arguments" in told
        runs.append((out / "slice-001" / "run.json").read_bytes())
    assert runs[0] != runs[1]
    assert not (out / "soak.jsonl").exists()


def test_a_slice_has_a_verdict(tmp_path: Path) -> None:
    """A slice is run, judged and written down once; only what is not valid keeps its trace."""
    out = tmp_path / "soak"
    done = subprocess.run(command(out), capture_output=True, timeout=PATIENCE, check=False)
    line = (out / "soak.jsonl").read_bytes()
    made = msgspec.json.decode(line, type=Slice)
    assert made.verdict != "failed", made.says
    assert done.returncode == {"valid": 0, "invalid": 1, "unknown": 2}[made.verdict]
    assert made.counts["delivered"] > 1000
    assert made.rows > 5000
    assert (out / "slice-001" / "traces").exists() == (made.verdict != "valid")
    assert (out / "slice-001" / "report" / "report.html").exists()
    again = subprocess.run(command(out), capture_output=True, timeout=PATIENCE, check=False)
    assert again.returncode == done.returncode
    assert (out / "soak.jsonl").read_bytes() == line


def test_a_run_that_fails_is_a_failed_slice(tmp_path: Path) -> None:
    """A cluster that never gets well is told by name, its trace stays, and the soak ends with 2."""
    out = tmp_path / "soak"
    without_java = {**os.environ, "MIGRATORY_JAVA": "/bin/false"}  # neither ZooKeeper nor Spark
    done = subprocess.run(
        command(out), capture_output=True, timeout=PATIENCE, check=False, env=without_java
    )
    assert done.returncode == 2
    made = msgspec.json.decode((out / "soak.jsonl").read_bytes(), type=Slice)
    assert made.verdict == "failed"
    assert "NOT_NORMAL" in made.says
    assert "spark.log" in made.says
    assert made.rows > 0
    assert list((out / "slice-001" / "traces").iterdir())
    assert "| failed |" in (out / "soak.md").read_text()
