"""What people see of a run, on a terminal and elsewhere."""

from __future__ import annotations

import pytest

from chaos.live import Finding
from chaos.view import Scene, View
from chaos.workload import Tally

TALLY = Tally(sent=120, acked=100, duplicates=3, delivered=4000, resumed=7, gaps=2, resets=1)
CALM = Scene(12.3, 60, "storm", ("cut-pair m1|m2", "[red]"), 65.4, 812.5, TALLY, 5, None)
BAD = Finding(1000, 3, {"NO_GAP": 2, "ONCE": 1}, "NO_GAP: s1 expected 4, got 6")


def with_finding(finding: Finding) -> Scene:
    """The scene with what the quick checks found."""
    return Scene(12.3, 60, "storm", ("cut m1",), 65.4, 812.5, TALLY, 5, finding)


def test_elsewhere_it_is_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal each moment is one line with everything that counts."""
    with View() as view:
        view.show(CALM)
        view.show(with_finding(BAD))
    first, second = capsys.readouterr().out.splitlines()
    for word in ("12.3s storm", "acks    65/s", "deliveries    812/s", "takeovers    5", "[red]"):
        assert word in first
    assert "violations -" in first
    assert "violations 3" in second


def test_on_a_terminal_it_is_a_table(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On a terminal the table names the faults that are on, and violations with a witness."""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("COLUMNS", "100")
    with View() as view:
        view.show(CALM)
        view.show(with_finding(BAD))
    shown = capsys.readouterr().out
    for word in ("100 of 120, 3 resent", "cut-pair m1|m2", "[red]", "NO_GAP 2, ONCE 1", "got 6"):
        assert word in shown
    assert "nothing checked yet" in shown


def test_no_violation_is_not_yet_a_verdict() -> None:
    """The view does not promise more than was checked."""
    assert "none in 1000 rows, as far as" in with_finding(Finding(1000, 0)).rows()["violations"]
