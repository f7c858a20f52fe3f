"""The command line: exit codes, and errors that a person can act on."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from migratory import cli
from migratory.errors import EnsembleError, MigratoryError


def test_help_lists_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """Each command is there with a summary, without loading any of them."""
    assert cli.main(["--help"]) == 0
    text = capsys.readouterr().out
    for name, (_place, summary) in cli.COMMANDS.items():
        assert name in text
        assert summary in text


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_command_can_be_loaded(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A command's own help comes from its function."""
    assert cli.main([name, "--help"]) == 0
    assert f"migratory {name}" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["nothing"], ["zookeeper", "--servers", "2"], ["serve"]])
def test_wrong_arguments_end_with_two(words: list[str]) -> None:
    """Shells and supervisors tell a wrong call from a failed run."""
    assert cli.main(words) == 2


def test_a_wrong_file_is_told_and_ends_with_two(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The mistakes stand on the error output, with no traceback."""
    file = tmp_path / "wrong.toml"
    file.write_text("[cluster]\nname = 3")
    assert cli.main(["serve", "--config", str(file), "--check"]) == 2
    told = capsys.readouterr().err
    assert "cluster.name" in told
    assert "cluster.zookeeper" in told
    assert "Traceback" not in told


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_an_error_that_nobody_can_be_told_keeps_its_code(tmp_path: Path, unbuffered: str) -> None:
    """A supervisor reads the exit code, also where the disk under the log is full."""
    words = [sys.executable, "-m", "migratory", "serve", str(tmp_path / "missing.toml")]
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(words, stderr=full, check=False, env=environment)
    assert done.returncode == 2


def test_errors_inside_groups_are_told_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A nursery wraps errors; people see the errors, and a bug among them stays a bug."""
    errors: list[Exception] = [
        MigratoryError("ONE", "first", "do this"),
        ExceptionGroup("inner", [EnsembleError("TWO", "second")]),
    ]

    def fail(_words: list[str]) -> None:
        raise ExceptionGroup("outer", errors)

    monkeypatch.setattr(cli, "make_app", lambda called: fail)
    assert cli.main(["anything"]) == 1
    assert capsys.readouterr().err == "migratory: ONE: first\n  do this\nmigratory: TWO: second\n"
    errors.append(ValueError("a bug"))
    with pytest.raises(ExceptionGroup):
        cli.main(["anything"])


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["--server", "1"], "HALF_SAID"),
        (["--server", "1", "--addresses", "127.0.0.1"], "HALF_SAID"),
        (["--server", "4", "--addresses", "127.0.0.1,127.0.0.2", "--dir", "."], "BAD_SERVER"),
    ],
)
def test_one_server_of_an_ensemble_needs_all_that_places_it(
    words: list[str], code: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nothing is started when it is not said which server, of which ones, and where."""
    assert cli.main(["zookeeper", *words]) == 1
    assert f"migratory: {code}: " in capsys.readouterr().err
