"""One run's trace in memory, indexed as the quick checks ask for it.

Rows are the JSON objects of docs/traces.md. Invariant: nothing here compares clocks of members;
within a process order is by `n`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any, NamedTuple

Row = Mapping[str, Any]
Key = tuple[Any, ...]
NEVER = float("inf")
# Members that these hit are there, and count; all others that hit members take them away.
STAYS = ("starve", "reset", "cut-zookeeper", "slow-link", "late-link", "lossy-link", "full-disk")
FORGETS = ("kill", "sleepwalk", "zombie", "clock", "recover")  # a rolling restart waits for them
HITS_CLIENTS = ("cut-clients", "deaf-clients", "recover")
HAPPENINGS = ("takeover", "sync", "gap", "duplicate", "resume")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a run is measured against; the defaults stand in docs/guarantees.md."""

    silence_ms: int = 1500
    lag_ms: int = 2000
    return_ms: int = 4000
    elect_ms: int = 2000
    heal_ms: int = 10_000
    ack_ms: int = 2000
    late_share: float = 0.01
    quiet_acked: float = 0.9
    require: tuple[str, ...] = HAPPENINGS


class Violation(NamedTuple):
    """A check that does not hold, and the least that shows it."""

    run: str
    check: str
    group: int | None
    topic: str | None
    witness: str


class Fault(NamedTuple):
    """A fault that happened; it is over when the cluster had time to heal.

    `hits` are the members that it may take away; of a broken pair, one is enough. `at` are the
    contacts whose clients may have to wait for them.
    """

    name: str
    on_at: int
    off_at: float
    over_at: float
    hits: frozenset[str]
    at: frozenset[str]
    away_until: float = 0  # until when its members count as away; 0: they stay
    keeper_until: float = 0  # until when nobody can be elected; 0: elections go on


class Acked(NamedTuple):
    """An acknowledged publication at a known position."""

    row: Row
    era: int
    at: int


class Told(NamedTuple):
    """A row of a subscription with what was known before it."""

    row: Row
    expected: int | None
    position: Row | None
    begun: Row | None
    part: int


def extra(row: Row, key: str) -> Any:
    """One value of `extra`, or nothing."""
    return (row.get("extra") or {}).get(key)


def flag(row: Row, key: str) -> bool:
    """One value of `extra` as yes or no; absent is no."""
    return str(extra(row, key)).lower() in {"true", "1"}


def number(row: Row, key: str) -> int | None:
    """One value of `extra` as a number, or nothing."""
    value = extra(row, key)
    return None if value is None else int(value)


def publication(row: Row) -> Key:
    """Whose message it is, wherever it is seen."""
    return row["topic"], row.get("pid"), row.get("pseq")


def position(row: Row) -> Key:
    """Where a message is."""
    return row["topic"], row["epoch"], row["seq"]


def life(row: Row) -> Key:
    """A member between two starts."""
    return row["node"], row["boot"]


def forgets(row: Row, elected: int | None) -> bool:
    """Whether a member holds nothing of a group from this row on: a floor that says so.

    Only whoever raised it itself keeps what it held, and was elected for that epoch just before:
    another one that says so is not believed. Rows of older members say neither.
    """
    if row["kind"] != "floor" or extra(row, "normal") is None:
        return False
    return not (flag(row, "normal") and elected == row["epoch"])


class Ledger:
    """The rows of one run, by kind and by what belongs together."""

    def __init__(self, run: str, rows: Iterable[Row], bounds: Bounds) -> None:
        self.run = run
        self.bounds = bounds
        self.rows = sorted(rows, key=lambda row: (row["proc"], row["n"]))
        self.kinds: dict[str, list[Row]] = defaultdict(list)
        for row in self.rows:
            self.kinds[row["kind"]].append(row)

    def of(self, *kinds: str) -> Iterator[Row]:
        """Rows of these kinds, those of a process in order within a kind."""
        return (row for kind in kinds for row in self.kinds.get(kind, ()))

    def lives(self, *kinds: str) -> dict[Key, list[Row]]:
        """Rows of these kinds per group and process, in order."""
        found: dict[Key, list[Row]] = defaultdict(list)
        for row in sorted(self.of(*kinds), key=lambda row: row["n"]):
            found[row["group"], row["proc"]].append(row)
        return found

    @cached_property
    def losses(self) -> set[Key]:
        """Process and number of the rows after which a life holds nothing of a group."""
        found: set[Key] = set()
        for rows in self.lives("elect", "floor").values():
            elected: int | None = None
            for row in rows:
                elected = row["epoch"] if row["kind"] == "elect" else elected
                if forgets(row, elected):
                    found.add((row["proc"], row["n"]))
        return found

    def loses(self, row: Row) -> bool:
        """Whether the row's life holds nothing of its group from here on."""
        return (row["proc"], row["n"]) in self.losses

    @cached_property
    def floors(self) -> dict[int, set[int]]:
        """All floors that each group ever had."""
        found: dict[int, set[int]] = defaultdict(set)
        for row in self.of("open", "normal"):
            found[row["group"]].add(number(row, "floor") or 0)
        for row in self.of("floor"):
            found[row["group"]].add(row["epoch"])
        return found

    def era(self, row: Row) -> int:
        """The floor that a position belongs to."""
        known = self.floors.get(row["group"], ())
        return max((floor for floor in known if floor <= row["epoch"]), default=0)

    def last_floor(self, row: Row) -> int:
        """The highest floor of the row's group."""
        return max(self.floors.get(row["group"], ()), default=0)

    def setting(self, kind: str, key: str, default: int) -> int:
        """The highest number that rows of a kind state."""
        told = (number(row, key) for row in self.of(kind))
        return max((value for value in told if value is not None), default=default)

    def kept(self, key: str, default: int) -> int:
        """What all members keep of a history, also where one keeps more."""
        return min((number(row, key) or default for row in self.of("boot")), default=default)

    @cached_property
    def copies(self) -> int:
        """Q, as the plan or the members state it."""
        planned = max((number(row, "faults") or 0 for row in self.of("run")), default=0) + 1
        return max(planned, self.setting("boot", "copies", 1))

    @cached_property
    def commits(self) -> list[Row]:
        """Messages as they were applied."""
        return [row for row in self.of("commit") if row.get("topic") is not None]

    @cached_property
    def acked(self) -> list[Acked]:
        """Acknowledged publications, each with its first acknowledgement there."""
        first: dict[Key, Acked] = {}
        for row in self.of("pub_ack"):
            key = (*publication(row), row["mid"], row["epoch"], row["seq"])
            if row["epoch"] > 0 and (key not in first or row["t_wall"] < first[key].at):
                first[key] = Acked(row, self.era(row), row["t_wall"])
        return list(first.values())

    @cached_property
    def members(self) -> set[str]:
        """All members that the run has: as it says, or as they say themselves."""
        named = {
            name for row in self.of("run") for name in (extra(row, "members") or "").split(",")
        }
        return (named | {row["node"] for row in self.of("boot")}) - {""}

    @cached_property
    def required(self) -> set[str]:
        """What the run says that it must have seen; everything when it says nothing."""
        told = [extra(row, "require") for row in self.of("run")]
        return set(HAPPENINGS if not told or told[0] is None else told[0].split(","))

    @cached_property
    def links(self) -> dict[str | None, tuple[int, str]]:
        """When each connection was welcomed, and by whom."""
        return {row["conn"]: (row["t_wall"], extra(row, "member")) for row in self.of("link_up")}

    @cached_property
    def lost(self) -> dict[str | None, int]:
        """When each connection ended."""
        return {row["conn"]: row["t_wall"] for row in self.of("link_down")}

    def is_hit(self, conn: str | None, since: int, until: int) -> bool:
        """Whether a fault hits the contact of a connection then, or it may not be back yet."""
        contact = self.links.get(conn, (0, ""))[1]
        until = min(until, self.lost.get(conn, until))
        back = self.bounds.return_ms * 1000
        at = (fault for fault in self.faults.values() if contact in fault.at)
        return any(fault.on_at <= until and fault.off_at + back >= since for fault in at)

    @cached_property
    def publications(self) -> dict[Key, tuple[Row, int | None, int | None]]:
        """The last row of each numbered publication's sends, when it was first sent and acked."""
        sent: dict[Key, int] = {}
        answered: dict[Key, int] = {}
        rows: dict[Key, Row] = {}
        for kind, times in (("pub_send", sent), ("pub_ack", answered)):
            for row in self.of(kind):
                if row.get("pid") is not None:
                    key = publication(row)
                    if kind == "pub_send" or key not in rows:
                        rows[key] = row
                    times[key] = min(row["t_wall"], times.get(key, row["t_wall"]))
        return {key: (row, sent.get(key), answered.get(key)) for key, row in rows.items()}

    @cached_property
    def silences(self) -> list[tuple[int, int, int]]:
        """For each answer: its group, since when somebody waited for one, when it came.

        Nobody waits without a connection, nor at a contact that a fault hits until it may be back.
        """
        by_group: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for row, sent, acked in self.publications.values():
            if sent is not None and acked is not None:
                by_group[row["group"]].append((acked, self._waits(row.get("conn"), sent, acked)))
        found = []
        for group, answers in by_group.items():
            answers.sort()
            waiting = list(accumulate((waits for _, waits in reversed(answers)), min))[::-1]
            before = [0, *(acked for acked, _ in answers)]
            for (acked, _), last, first in zip(answers, before, waiting, strict=False):
                found.append((group, max(last, first), acked))
        return found

    def _waits(self, conn: str | None, sent: int, acked: int) -> int:
        """Since when a publication waits for the group, and not for its own contact."""
        up_at, contact = self.links.get(conn, (0, ""))
        troubles = (f for f in self.faults.values() if contact in f.at and f.on_at <= acked)
        back = max((f.off_at + self.bounds.return_ms * 1000 for f in troubles), default=0)
        return int(min(max(sent, up_at, back), acked))

    @cached_property
    def streams(self) -> dict[Key, list[Told]]:
        """What each subscription was told, in order, with what was known before each row."""
        by_sub: dict[Key, list[Row]] = defaultdict(list)
        for row in self.of("sub_open", "sub_status", "deliver"):
            by_sub[row["topic"], row["proc"], row["sub"]].append(row)
        return {key: list(_told(sorted(rows, key=_n))) for key, rows in by_sub.items()}

    @cached_property
    def faults(self) -> dict[str, Fault]:
        """The faults that happened, by id."""
        members = frozenset(row["node"] for row in self.of("boot"))
        offs = {extra(row, "id"): row["t_wall"] for row in self.of("fault_off")}
        return {
            extra(row, "id"): _fault(row, offs.get(extra(row, "id"), NEVER), members, self.bounds)
            for row in self.of("fault_on")
        }

    def calm_before(self, at: int) -> int:
        """The same moment, or the beginning of the faults and healings amid which it is."""
        for fault in sorted(self.faults.values(), key=lambda fault: -fault.on_at):
            if fault.on_at <= at <= fault.over_at:
                at = fault.on_at
        return at

    @cached_property
    def slow(self) -> set[str]:
        """Subscriptions of clients that read slowly on purpose."""
        asked = (extra(row, "slow_clients") or "" for row in self.of("run"))
        clients = {name for each in asked for name in each.split(",") if name}
        return {row["sub"] for row in self.of("sub_open") if extra(row, "client") in clients}

    @cached_property
    def heads(self) -> dict[str, dict[str, Row]]:
        """Where each topic ended at each member, after healing: by topic, then by member."""
        found: dict[str, dict[str, Row]] = defaultdict(dict)
        for row in self.of("final_head"):
            found[row["topic"]][extra(row, "member")] = row
        return found

    @cached_property
    def reads(self) -> set[Key]:
        """What each member held, after healing."""
        return {
            (row["topic"], extra(row, "member"), row["seq"], row["mid"])
            for row in self.of("final_read")
        }


def _fault(row: Row, off: float, members: frozenset[str], bounds: Bounds) -> Fault:
    name, on = extra(row, "fault") or "", row["t_wall"]
    hit = extra(row, "hit") or extra(row, "target") or ""
    named = [node for node in re.split("[,|>]", hit) if node in members]
    hits = frozenset(named[:1] if re.search("[|>]", hit) else named)
    hits = members if name == "recover" else hits
    at = members if name in HITS_CLIENTS else frozenset(named)
    back = off + bounds.return_ms * 1000 if name.startswith(FORGETS) else off
    away = 0 if name in STAYS or not hits else back
    begins = on if name == "zookeeper-leader" else off
    keeper = begins + bounds.elect_ms * 1000 if name.startswith("zookeeper") else 0
    return Fault(name, on, off, off + bounds.heal_ms * 1000, hits, at, away, keeper)


def _n(row: Row) -> int:
    return int(row["n"])


def _told(rows: list[Row]) -> Iterator[Told]:
    expected: int | None = None
    held: Row | None = None
    begun: Row | None = None
    part = 0
    for row in rows:
        kind, outcome, seq = row["kind"], extra(row, "outcome"), row.get("seq")
        part += kind == "sub_open" or (
            kind == "sub_status" and outcome in {"gap", "reset", "fresh"}
        )
        yield Told(row, expected, held, begun, part)
        if kind == "sub_status":
            begun = row
            if outcome == "gap":
                expected = number(row, "first")
            elif outcome in {"reset", "fresh"}:
                expected = -1 if seq is None else seq + 1
            continue
        expected = -1 if seq is None else seq + 1
        held = row if seq is not None else held
