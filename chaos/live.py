"""The quick checks while a run goes on: a process that follows the trace and says what it finds.

    python -m chaos.live TRACES

Rows are checked as they come, by the functions of `chaos.checker`, together with what has to be
remembered of earlier rows: for each subscription where it is, for each life of a member what it
promised and became, for each group its latest entries, epochs and floors. Those are rows again, so
no sentence is written twice. Only checks whose violations stay violations whatever comes later are
made; the others need the end of a run.

Invariant: memory and the cost of a turn are bounded by the number of subscriptions, groups and
members and by the rows that came since the last turn, not by the length of the run. What is
forgotten makes a check see less, never more.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import trio
from cyclopts import App

from chaos.checker import Violation, check
from chaos.ledger import Key, Row, extra, forgets, number

OF_LIVES = ("RECOVER_SILENT",)  # what is remembered of a life for other checks is no measure here
OF_ALL = (
    "AGREE", "NO_GAP", "ONCE", "PUB_ORDER", "EPOCH_MONO", "ONE_COORD", "NO_BELOW_PROMISE",
)  # fmt: skip
LIVE = (*OF_ALL, *OF_LIVES)
ENTRIES = 300  # of a group, that are remembered
EPOCHS = 50  # of a group
LIVES = 6  # of a member: a process that wakes is not far behind its replacement
SUBSCRIPTIONS = 20_000  # that are open
CLOSED = 500  # that nothing may come to any more
TURN = 2.0  # seconds between two looks at the files
VIOLATIONS = 1000  # are counted, then the verdict is clear
NICE = 10  # a view must not disturb what it shows
PART = 8 << 20  # bytes of a file that are taken in one turn
ANEW = {"gap", "reset", "fresh"}
STATES = ("normal", "install")


class Finding(msgspec.Struct, frozen=True):
    """What the runner is told after each turn."""

    rows: int
    violations: int
    checks: dict[str, int] = {}
    last: str = ""  # the latest one, with its witness


# ---- what is remembered -------------------------------------------------------------------------


class Memory:
    """The rows that later rows are checked against."""

    def __init__(self) -> None:
        self._floors: dict[Key, Row] = {}
        self._streams: dict[Key, dict[str, Row]] = {}
        self._closed: dict[Key, dict[str, Row]] = {}
        self._lives: dict[str, dict[Key, Row]] = {}  # by process: by kind and group
        self._boots: dict[str, list[int]] = defaultdict(list)
        self._entries: dict[int, dict[int, Row]] = defaultdict(dict)  # by group and index
        self._ends: dict[int, int] = {}  # the highest index of each group
        self._epochs: dict[int, dict[int, Row]] = defaultdict(dict)

    def __repr__(self) -> str:
        return f"<Memory of {len(self.rows())} rows>"

    def rows(self) -> list[Row]:
        """Everything remembered, each row once."""
        kept = [
            *self._floors.values(),
            *(row for told in self._streams.values() for row in told.values()),
            *(row for told in self._closed.values() for row in told.values()),
            *self.lives(),
            *(row for entries in self._entries.values() for row in entries.values()),
            *(row for owners in self._epochs.values() for row in owners.values()),
        ]
        return list({(row["proc"], row["n"]): row for row in kept}.values())

    def lives(self) -> list[Row]:
        """What is remembered of each life as a whole."""
        return [row for acts in self._lives.values() for row in acts.values()]

    def forgotten(self, row: Row) -> bool:
        """Whether the row is of a life that nothing is known of any more."""
        known = self._boots[row["node"]]
        return len(known) == LIVES and 0 < row["boot"] < known[0]

    def add(self, row: Row) -> None:
        """Remember what matters of a row, in place of what it makes superfluous."""
        match row["kind"]:
            case "sub_open" | "sub_status" | "deliver" | "sub_close":
                self._add_told(row)
            case "promise" | "ack" | "normal" | "commit" | "elect" | "open" | "append" | "floor":
                self._add_act(row)
            case "install":
                self._add_life(row)
            case _:
                pass

    def _add_told(self, row: Row) -> None:
        """Where a subscription is: its last message, or how it goes on if that came later."""
        kind, key = row["kind"], (row["topic"], row["proc"], row["sub"])
        if kind == "sub_close":
            self._closed[key] = self._streams.pop(key, {})
            _limit(self._closed, CLOSED)
        elif kind != "sub_status":
            self._streams[key] = {kind: row}
            _limit(self._streams, SUBSCRIPTIONS)
        elif extra(row, "outcome") in ANEW:
            self._streams.setdefault(key, {})[kind] = row

    def _add_act(self, row: Row) -> None:
        kind, group, epoch = row["kind"], row["group"], row["epoch"]
        floor = epoch if kind == "floor" else number(row, "floor")
        if kind == "floor":  # what was before it is no measure for what comes
            self._entries.pop(group, None)
            self._ends.pop(group, None)
        if floor is not None:
            self._floors.setdefault((group, floor), row)
        if kind in {"elect", "open"} or extra(row, "role") == "coordinator":
            self._epochs[group].setdefault(epoch, row)
            _limit(self._epochs[group], EPOCHS)
        if kind == "commit":
            self._add_entry(row)
        if kind == "elect":  # the latest one, which says whether a floor is this life's own
            self._life(row)[kind, group] = row
        elif kind == "floor":
            self._add_floor(row)
        elif kind != "append":
            self._add_life(row)

    def _add_entry(self, row: Row) -> None:
        """The latest entries; a member that catches up has nothing new."""
        group, idx = int(row["group"]), int(row["idx"])
        entries, end = self._entries[group], self._ends.get(group, idx)
        if idx > end - ENTRIES:
            entries.setdefault(idx, row)
        for old in range(end - ENTRIES + 1, idx - ENTRIES + 1):
            entries.pop(old, None)
        self._ends[group] = max(idx, end)

    def _add_life(self, row: Row) -> None:
        """The highest epoch of each kind of act; when the life first had a state and was normal.

        And when again, after it lost all of the group.
        """
        kept = self._life(row)
        key = (row["kind"], row["group"])
        if row["kind"] in STATES:
            time = "again" if ("loss", row["group"]) in kept else "first"
            kept.setdefault((time, *key), row)
        if key not in kept or kept[key]["epoch"] <= row["epoch"]:
            kept[key] = row

    def _add_floor(self, row: Row) -> None:
        """The latest loss replaces earlier ones, and what the life became between them.

        Acts between them stay known: they need a state before them, the first that there was.
        """
        kept, group = self._life(row), row["group"]
        elect = kept.get(("elect", group))
        if not forgets(row, elect["epoch"] if elect else None):
            return
        kept["loss", group] = row
        for kind in STATES:
            if again := kept.pop(("again", kind, group), None):
                kept.setdefault(("first", kind, group), again)

    def _life(self, row: Row) -> dict[Key, Row]:
        boots, node, boot = self._boots[row["node"]], row["node"], row["boot"]
        if boot not in boots:
            boots.append(boot)
            boots.sort()
            if len(boots) > LIVES:
                self._lives.pop(f"{node}-{boots.pop(0)}", None)
        return self._lives.setdefault(row["proc"], {})


def _limit(kept: dict[Any, Any], most: int) -> None:
    """Forget what was remembered first."""
    while len(kept) > most:
        del kept[next(iter(kept))]


# ---- checking -----------------------------------------------------------------------------------


class LiveCheck:
    """Takes rows as they come, and knows the violations so far."""

    def __init__(self) -> None:
        self.rows = 0
        self.found: dict[Violation, None] = {}
        self.memory = Memory()

    def take(self, rows: Iterable[Row]) -> list[Violation]:
        """Check these rows, those of a process in order; violations that were not known before."""
        fresh = [row for row in rows if not self.memory.forgotten(row)]
        self.rows += len(fresh)
        found = [
            *check([*self.memory.rows(), *fresh], names=OF_ALL),
            *check([*self.memory.lives(), *fresh], names=OF_LIVES),
        ]
        new = [violation for violation in found if violation not in self.found]
        if len(self.found) < VIOLATIONS:
            self.found.update(dict.fromkeys(new))
        for row in fresh:
            self.memory.add(row)
        return new

    def finding(self) -> Finding:
        """How it is now."""
        last = next(reversed(self.found), None)
        told = f"{last.check}: {last.witness}" if last else ""
        counts = Counter(violation.check for violation in self.found)
        return Finding(self.rows, len(self.found), dict(counts), told)


class Follower:
    """Reads what is new in the files of a trace, each process's in order.

    Clients come first and members after them: whatever a member wrote before a client heard of it
    is then there, such as the floor that explains a sequence which begins anew.
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._places: dict[str, tuple[int, int]] = {}  # by process: file and offset

    def read(self) -> Iterator[Row]:
        """All whole rows since the last time; of a client up to a bound."""
        procs = [path.name.removesuffix(".0.jsonl") for path in self._directory.glob("*.0.jsonl")]
        for proc in sorted(procs, key=_is_member):
            while part := self._read(proc):
                for line in part.splitlines():
                    with contextlib.suppress(msgspec.DecodeError):  # Spark tells of torn rows
                        yield msgspec.json.decode(line)
                if not _is_member(proc):
                    break

    def _read(self, proc: str) -> bytes:
        """The next part of a process's rows; empty when there are no more."""
        k, offset = self._places.get(proc, (0, 0))
        following = self._directory / f"{proc}.{k + 1}.jsonl"
        ended = following.exists()  # asked first: then nothing is added to this file any more
        with (self._directory / f"{proc}.{k}.jsonl").open("rb") as file:
            file.seek(offset)
            part = file.read(PART)
        whole = part[: part.rfind(b"\n") + 1]
        self._places[proc] = (k, offset + len(whole))
        if whole or not ended:
            return whole
        self._places[proc] = (k + 1, 0)
        return self._read(proc)


def _is_member(proc: str) -> bool:
    """Whether a process is a life of a member, whose number is part of its name."""
    return re.search(r"-[0-9]+$", proc) is not None


app = App(name="chaos.live", backend="trio", result_action="return_value")


@app.default
async def live(traces: Path, /) -> None:
    """Check a growing trace until SIGTERM, and tell on stdout after each turn."""
    os.nice(NICE)
    follower, checking = Follower(traces), LiveCheck()
    ended = trio.Event()

    async def listen() -> None:
        with trio.open_signal_receiver(signal.SIGTERM) as signals:
            await anext(signals)
            ended.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(listen)
        last = False
        while not last:
            with trio.move_on_after(TURN):
                await ended.wait()
            rows = list(follower.read())
            last = ended.is_set() and not rows  # the last word is about all rows
            checking.take(rows)
            print(msgspec.json.encode(checking.finding()).decode(), flush=True)


if __name__ == "__main__":
    sys.exit(app())
