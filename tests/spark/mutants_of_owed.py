"""Good traces made bad: what subscribers and publishers are owed, and what they are not.

As tests/spark/mutants.py, each with the checks that it must set off.
"""

from __future__ import annotations

from tests.spark.good_trace import SECOND
from tests.spark.mutants import CAUGHT, Mutant, Rows, after, rows_of, told, without
from tests.spark.mutants_of_members import MEMBERS
from tests.spark.mutants_of_silence import SILENCE


def silent_before_it_was_closed(rows: Rows) -> Rows:
    """A subscription gets nothing more, long before its user leaves."""
    row = rows_of(rows, "deliver", topic="/b")[-1]
    rows_of(rows, "sub_close")[0]["t_wall"] += 20 * SECOND
    return without(rows, row)


def silent_before_it_was_cut_off(rows: Rows) -> Rows:
    """A subscription gets nothing more, long before its last connection ends."""
    row = rows_of(rows, "deliver", topic="/a")[-1]
    link = rows_of(rows, "link_down")[-1]
    rows = after(rows, link, conn=row["conn"], t_wall=row["t_wall"] + 11 * SECOND)
    return without(rows, row)


def silent_from_its_beginning(rows: Rows) -> Rows:
    """A subscription is told how it goes on, and never gets a message."""
    status = next(row for row in rows_of(rows, "sub_status") if row["extra"]["outcome"] == "gap")
    return without(rows, *(r for r in rows_of(rows, "deliver", sub="s/a") if r["n"] > status["n"]))


def never_told_of_another_floor(rows: Rows) -> Rows:
    """The history is another one, and a subscription of the old one hears nothing of it."""
    reset = next(row for row in rows_of(rows, "sub_status") if row["extra"]["outcome"] == "reset")
    gone = [row for row in rows_of(rows, "deliver", sub="s/b") if row["n"] > reset["n"]]
    rows_of(rows, "sub_close")[0]["t_wall"] += 20 * SECOND
    told(reset, outcome="resumed")
    reset |= {"epoch": 2, "seq": 8}
    return without(rows, *gone)


def lost_after_the_floor_rose(rows: Rows) -> Rows:
    """A sequence is lost that the subscription had seen under an earlier floor."""
    row = rows_of(rows, "deliver", topic="/b", epoch=3, seq=2)[0]
    return without(rows, row)


def silent_amid_faults(rows: Rows) -> Rows:
    """The user leaves while a fault is there: what is under way may not have come."""
    rows = silent_before_it_was_closed(rows)
    off = rows_of(rows, "fault_off")[0]
    return without(rows, off)


def slow_on_purpose(rows: Rows) -> Rows:
    """A reader that stops on purpose is owed nothing."""
    told(rows_of(rows, "run")[0], slow_clients="sloth")
    for row in rows_of(rows, "sub_open"):
        told(row, client="sloth")
    return silent_before_it_was_closed(rows)


def begun_too_late(rows: Rows) -> Rows:
    """A new subscription does not begin where it was told."""
    return without(rows, rows_of(rows, "deliver", topic="/b")[0])


def acked_and_forgotten(rows: Rows) -> Rows:
    """An acknowledgement without a position is of what was never committed."""
    ack = rows_of(rows, "pub_ack", topic="/a")[1]
    return after(rows, ack, epoch=0, seq=0, mid="d" * 16)


def refused_without_a_number(rows: Rows) -> Rows:
    """Who wants no number is promised nothing: that its message appears is no lie."""
    mid = rows_of(rows, "commit", topic="/b")[-1]["mid"]
    nameless = [row for row in rows if row.get("mid") == mid and row["kind"] != "pub_ack"]
    for row in nameless:
        row |= {"pid": None, "pseq": None}
    nack = rows_of(rows, "pub_nack")[-1]
    nack |= {"topic": "/b", "group": 1, "mid": mid, "pid": None, "pseq": None}
    return without(rows, *rows_of(rows, "pub_ack", mid=mid))


def another_place_at_an_index(rows: Rows) -> Rows:
    """Members agree on the message of an index, not on its sequence."""
    row = rows_of(rows, "commit", node="m2", topic="/a", epoch=2)[-1]
    return after(rows, row, seq=row["seq"] + 1)


def counted_nobody_said_whom(rows: Rows) -> Rows:
    """A coordinator does not say whom it counted."""
    del rows_of(rows, "quorum", group=0)[-1]["extra"]
    return rows


def fault_missed_its_moment(rows: Rows) -> Rows:
    """A fault began, and what it was planned for did not come."""
    told(rows_of(rows, "fault_off")[0], missed="true")
    return rows


# As mutants.CAUGHT.
OWED: dict[Mutant, str] = {
    silent_before_it_was_closed: "NO_LOSS",
    silent_before_it_was_cut_off: "NO_LOSS",
    silent_from_its_beginning: "NO_LOSS",
    never_told_of_another_floor: "NO_LOSS",
    lost_after_the_floor_rose: "NO_GAP NO_LOSS",
    silent_amid_faults: "",
    slow_on_purpose: "",
    begun_too_late: "NO_GAP",
    acked_and_forgotten: "FALSE_ACK",
    refused_without_a_number: "",
    another_place_at_an_index: "AGREE ONCE",
    counted_nobody_said_whom: "COMMIT_BEFORE_SEE",
    fault_missed_its_moment: "NON_VACUOUS",
}
EVERY = CAUGHT | OWED | SILENCE | MEMBERS
