"""The trace of a real run made bad, as tests/spark/mutants.py does with a small one.

Each mutation is one that any trace has room for: a row is lost, doubled, or swapped with the next
one, says another epoch or another message. Each is made in a topic of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable

from tests.spark.good_trace import Row
from tests.spark.mutants import after, swap, without

Rows = list[Row]
Change = Callable[[Rows, str], Rows]


def amid(rows: Rows, kind: str, topic: str) -> Row:
    """A row from the middle of those of a kind in a topic."""
    found = sorted((r for r in rows if r["kind"] == kind and r["topic"] == topic), key=_order)
    return found[len(found) // 2]


def _order(row: Row) -> tuple[str, str, int]:
    return row["proc"], row.get("sub", ""), row["n"]


def _stream(rows: Rows, topic: str) -> Rows:
    """The longest run of deliveries of one subscription on one connection, in order."""
    found: dict[tuple[str, str, str], Rows] = defaultdict(list)
    for row in rows:
        if row["kind"] == "deliver" and row["topic"] == topic:
            found[row["proc"], row["sub"], row["conn"]].append(row)
    longest = max(found.values(), key=len)
    return sorted(longest, key=_order)


def delivery_lost(rows: Rows, topic: str) -> Rows:
    """A subscriber misses a message amid others."""
    stream = _stream(rows, topic)
    return without(rows, stream[len(stream) // 2])


def delivery_doubled(rows: Rows, topic: str) -> Rows:
    """A subscriber gets an old message once more."""
    stream = _stream(rows, topic)
    return after(rows, stream[len(stream) // 2])


def deliveries_swapped(rows: Rows, topic: str) -> Rows:
    """A subscriber gets two messages in the wrong order."""
    stream = _stream(rows, topic)
    swap(*stream[len(stream) // 2 :][:2])
    return rows


def delivered_under_another_epoch(rows: Rows, topic: str) -> Rows:
    """A subscriber is told another epoch than everybody else."""
    stream = _stream(rows, topic)
    stream[len(stream) // 2]["epoch"] += 1000
    return rows


def forged(rows: Rows, topic: str) -> Rows:
    """A publisher is told that something else was stored at the position of its message."""
    amid(rows, "pub_ack", topic)["mid"] = "f" * 16
    return rows


def final_read_lost(rows: Rows, topic: str) -> Rows:
    """A member does not hold a message amid others in the end."""
    return without(rows, amid(rows, "final_read", topic))


CHANGES: dict[Change, str] = {
    delivery_lost: "NO_GAP NO_LOSS",
    final_read_lost: "NO_LOSS",
    deliveries_swapped: "NO_GAP",
    forged: "FALSE_ACK",
    delivery_doubled: "ONCE",
    delivered_under_another_epoch: "AGREE",
}


def mutant_of(rows: Rows) -> tuple[Rows, set[str]]:
    """A trace with all changes, and the checks that must fire on it at least."""
    topics = sorted({row["topic"] for row in rows if row["kind"] == "final_read"})
    for topic, change in zip(topics, CHANGES, strict=False):
        rows = change(rows, topic)
    return rows, {check for told in CHANGES.values() for check in told.split()}
