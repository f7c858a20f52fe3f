"""Every scenario leaves the trace that its file tells; `--rewrite` writes the present one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.script import Play, read

FILES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path, request: pytest.FixtureRequest) -> None:
    """The members do exactly what the scenario says, step by step."""
    rewrite: bool = request.config.getoption("--rewrite", default=False)
    play, told = Play(), []
    for block in read(path):
        trace = play.perform(block) if block.commands else []
        if not rewrite and block.expected is not None:
            assert "\n".join(trace or ["(nothing)"]) == "\n".join(block.expected), block.lines
        told.append(block.text(trace))
    if rewrite:
        path.write_text("\n\n".join(told) + "\n")


def test_there_are_scenarios() -> None:
    """The folder is found: no scenario is lost by a wrong path."""
    assert len(FILES) >= 8
