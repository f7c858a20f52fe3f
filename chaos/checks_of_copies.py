"""Quick checks of how copies are counted: nobody sees what Q members do not hold.

The dumb twin of spark/checks/commit_before_see.py; docs/guarantees.md says what it means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator

from chaos.checks_of_messages import found
from chaos.ledger import Key, Ledger, Row, Violation, extra, position

CHECK = "COMMIT_BEFORE_SEE"


def commit_before_see(ledger: Ledger) -> Iterator[Violation]:
    """Q members held what was delivered or acked, and had been counted when it was applied."""
    yield from _few_copies(ledger)
    yield from _lives(ledger)
    yield from _never_acknowledged(ledger)
    yield from _rumours(ledger)


def _few_copies(ledger: Ledger) -> Iterator[Violation]:
    stored: dict[Key, set[str]] = defaultdict(set)
    for row in ledger.of("append", "commit"):
        if row.get("topic") is not None:
            stored[position(row)].add(row["node"])
    index = _index(ledger)
    installs = list(ledger.of("install"))
    seen = {position(row): row for row in ledger.of("deliver")}
    seen |= {position(acked.row): acked.row for acked in ledger.acked}
    for key, row in seen.items():
        holders = stored.get(key, set()) | {
            state["node"]
            for state in installs
            if key in stored
            and state["group"] == row["group"]
            and state["idx"] >= index[key]
            and ledger.era(state) == ledger.era(row)
        }
        if len(holders) < ledger.copies:
            witness = f"{row['seq']} of epoch {row['epoch']}: {len(holders)} copies"
            yield found(ledger, CHECK, row, witness)


def _index(ledger: Ledger) -> dict[Key, int]:
    """Where messages lie in the log of their group, as whoever stored or applied them says."""
    index: dict[Key, int] = {}
    for row in ledger.of("append", "commit"):
        if row.get("topic") is not None:
            index[position(row)] = max(index.get(position(row), 0), row["idx"])
    return index


def _mark(ledger: Ledger, row: Row) -> Key:
    """An index across eras."""
    return ledger.era(row), row["idx"]


def _counted(row: Row) -> set[str]:
    """The lives that a coordinator counted beside itself."""
    return {name for name in (extra(row, "by") or "").split(",") if name}


def _grant(ledger: Ledger, row: Row, opened: dict[Key, int]) -> Key | None:
    """Up to where a row lets its life apply entries."""
    of_epoch = row["idx"] >= opened.get((row["group"], row["epoch"]), 0)
    enough = len(_counted(row)) >= ledger.copies - 1
    if (
        row["kind"] in {"install", "told"}
        or (row["kind"] == "quorum" and enough and of_epoch)
        or (row["kind"] == "ack" and ledger.copies == 2 and of_epoch)
    ):
        return _mark(ledger, row)
    return None


def _opened(ledger: Ledger) -> dict[Key, int]:
    found_at: dict[Key, int] = {}
    for row in ledger.of("open"):
        key = (row["group"], row["epoch"])
        found_at[key] = min(row["idx"], found_at.get(key, row["idx"]))
    return found_at


def _lives(ledger: Ledger) -> Iterator[Violation]:
    """Each life in a group, row by row: what it may apply, and where its log ends."""
    opened, whole = _opened(ledger), ledger.setting("boot", "sample", 1) == 1
    kinds = ("append", "install", "ack", "quorum", "told", "commit", "floor")
    for rows in ledger.lives(*kinds).values():
        granted: Key = (-1, -1)
        end = 0
        for row in rows:
            kind = row["kind"]
            if kind == "floor":
                end = 0 if ledger.loses(row) else end
                continue
            place = f"{row['proc']} row {row['n']}: index {row['idx']}"
            grant = _grant(ledger, row, opened)
            if kind == "commit" and ledger.copies > 1 and _mark(ledger, row) > granted:
                yield found(ledger, CHECK, row, f"{place} was applied and not counted")
            elif kind == "quorum" and grant is None:
                yield found(ledger, CHECK, row, f"{place} has too few copies, or is of the past")
            elif kind == "ack" and whole and row["idx"] > end:
                yield found(ledger, CHECK, row, f"{place} is not held, the log ends at {end}")
            end = row["idx"] if kind in {"append", "install"} else end
            granted = max(granted, grant or granted)


def _ends(ledger: Ledger) -> dict[int, dict[int, int]]:
    """By group and era: up to which index clients saw messages.

    Behind that the files of members may have been copied at different moments.
    """
    index = _index(ledger)
    seen = [*ledger.of("deliver"), *(acked.row for acked in ledger.acked)]
    ends: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(lambda: -1))
    for row in seen:
        of_group, era = ends[row["group"]], ledger.era(row)
        of_group[era] = max(of_group[era], index.get(position(row), -1))
    return ends


def _before_the_run(ledger: Ledger) -> Callable[[str], bool]:
    """Whether a life began before its member took the name of this run."""
    began: dict[str, int] = {}
    for row in ledger.of("boot"):
        began[row["node"]] = min(row["boot"], began.get(row["node"], row["boot"]))

    def is_older(life: str) -> bool:
        node, _, boot = life.rpartition("-")
        return boot.isdecimal() and int(boot) < began.get(node, 0)

    return is_older


def _never_acknowledged(ledger: Ledger) -> Iterator[Violation]:
    """Lives that were counted and never said so; of a life before the run nothing is known."""
    ends, is_older = _ends(ledger), _before_the_run(ledger)
    said: dict[Key, int] = {}
    for row in ledger.of("ack"):
        key = (row["group"], row["epoch"], row["proc"])
        said[key] = max(row["idx"], said.get(key, -1))
    for row in ledger.of("quorum"):
        end = min(row["idx"], ends[row["group"]][ledger.era(row)])
        for name in _counted(row):
            known = said.get((row["group"], row["epoch"], name), -1)
            if end > known and not is_older(name):
                yield found(ledger, CHECK, row, f"{name} never acknowledged {row['idx']}")


def _rumours(ledger: Ledger) -> Iterator[Violation]:
    """Told to be committed, though nobody had counted it."""
    opened, ends = _opened(ledger), _ends(ledger)
    best: dict[int, Key] = {}
    for row in ledger.of("quorum", "ack"):
        grant = _grant(ledger, row, opened)
        best[row["group"]] = max(grant or (-1, -1), best.get(row["group"], (-1, -1)))
    for row in ledger.of("told"):
        end = max(ends[row["group"]].items(), default=(-1, -1))
        if min(_mark(ledger, row), end) > best.get(row["group"], (-1, -1)):
            yield found(ledger, CHECK, row, f"index {row['idx']} was counted by nobody")
