"""What a soak has done so far: a line per slice, and a table for people."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

FAILOVER = ("count", "p50_ms", "p99_ms", "max_ms")
KILLS = ("kill-quick", "kill-long", "kill-recovering")


class Asked(msgspec.Struct, frozen=True):
    """`soak.json`: what a soak was asked for."""

    minutes: float
    slice: float
    seed: int
    load: str

    @property
    def slices(self) -> int:
        """How many there are."""
        return round(self.minutes / self.slice)


class Slice(msgspec.Struct, frozen=True):
    """A line of `soak.jsonl`: one run and its verdict."""

    number: int
    seed: int
    scenario: str
    minutes: float
    verdict: str
    says: str = ""  # why it is not valid
    fault_kinds: dict[str, int] = {}
    counts: dict[str, int] = {}
    outcomes: dict[str, int] = {}
    failovers: dict[str, Any] = {}
    rows: int = 0
    run_seconds: float = 0.0
    check_seconds: float = 0.0

    @property
    def faults(self) -> int:
        """How many happened."""
        return sum(self.fault_kinds.values())

    @property
    def kills(self) -> int:
        """Members that were killed."""
        return sum(self.fault_kinds.get(kind, 0) for kind in KILLS)


HEADINGS = (
    "slice", "seed", "scenario", "minutes", "verdict", "faults", "kill -9", "takeovers",
    "published", "acked", "delivered", "resumes", "gaps", "rows", "check s",
)  # fmt: skip


def write_table(asked: Asked, done: list[Slice], out: Path) -> None:
    """Write soak.md anew; it is whole at any time."""
    lines = [
        f"# Soak of {asked.minutes:g} minutes, seed {asked.seed}, load {asked.load}",
        "", f"{len(done)} of {asked.slices} slices are done.", "",
        _line(HEADINGS), _line(["---"] * len(HEADINGS)),
        *(_line(_cells(each)) for each in done), "", total(done), "",
        *(f"- slice {each.number}: {each.verdict}: {each.says}" for each in done if each.says),
    ]  # fmt: skip
    lines += _failovers(done)
    new = out / "soak.md.new"
    new.write_text("\n".join(lines).rstrip() + "\n")
    new.rename(out / "soak.md")


def _line(cells: Sequence[object]) -> str:
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def _cells(each: Slice) -> list[object]:
    return [
        each.number, each.seed, each.scenario, f"{each.minutes:g}", each.verdict, each.faults,
        each.kills, *(each.counts.get(n, 0) for n in ("takeovers", "published", "acked")),
        each.counts.get("delivered", 0), each.outcomes.get("resumed", 0),
        each.outcomes.get("gap", 0), each.rows, f"{each.check_seconds:.0f}",
    ]  # fmt: skip


def total(done: list[Slice]) -> str:
    """All slices in one sentence."""
    verdicts = Counter(each.verdict for each in done)
    kinds: Counter[str] = Counter()
    counts: Counter[str] = Counter()
    for each in done:
        kinds.update(each.fault_kinds)
        counts.update(each.counts)
    minutes = sum(each.minutes for each in done)
    return (
        f"Total: {minutes:g} minutes, {', '.join(f'{n} {v}' for v, n in verdicts.items())}; "
        f"{sum(kinds.values())} faults ({sum(kinds[kind] for kind in KILLS)} kill -9 of members, "
        f"{kinds['zookeeper-leader']} of ZooKeeper), {counts['takeovers']} takeovers; "
        f"{counts['published']} published, {counts['acked']} acked, "
        f"{counts['delivered']} delivered; {sum(each.rows for each in done)} rows checked."
    )


def _failovers(done: list[Slice]) -> list[str]:
    """Times until groups answer again, per kind of fault and slice, as the reports have them."""
    told = [(each, kind, times) for each in done for kind, times in each.failovers.items()]
    if not told:
        return []
    lines = ["", "## Failovers", "", _line(["slice", "fault", *FAILOVER])]
    lines.append(_line(["---"] * (len(FAILOVER) + 2)))
    lines += [_line(["all", *cells]) for cells in pooled(done)]
    for each, kind, times in told:
        lines.append(_line([each.number, kind, *(times.get(name, "") for name in FAILOVER)]))
    return lines


def pooled(done: list[Slice]) -> list[list[object]]:
    """The same of all slices together, and of all kinds of kill -9 together."""
    by_kind: dict[str, list[int]] = defaultdict(list)
    for each in done:
        for kind, times in each.failovers.items():
            by_kind[kind] += times.get("ms", [])
    killed = [ms for kind in KILLS for ms in by_kind.get(kind, [])]
    rows = [("kill -9", killed), *sorted(by_kind.items())]
    return [[kind, *_points(sorted(times))] for kind, times in rows if times]


def _points(times: list[int]) -> list[int]:
    """How many, the middle one, the one that one in a hundred exceeds, and the longest."""
    count = len(times)
    return [count, times[(count - 1) // 2], times[(count * 99 - 1) // 100], times[-1]]
