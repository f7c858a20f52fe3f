"""Good traces made bad: members that lose a group and go on, and what is not looked at.

As tests/spark/mutants.py, each with the checks that it must set off.
"""

from __future__ import annotations

from tests.spark.good_trace import SECOND, Row
from tests.spark.mutants import (
    Mutant,
    Rows,
    after,
    at_the_end_of,
    rows_of,
    second_fault,
    swap,
    told,
    window_that_lies,
    without,
)


def _lost(rows: Rows, node: str = "m2") -> Row:
    """The floor with which an operator gave group 1 up."""
    return rows_of(rows, "floor", node=node, group=1)[-1]


def _since(rows: Rows, kind: str, lost: Row) -> Rows:
    """What its life did in the group after it."""
    return [r for r in rows_of(rows, kind, proc=lost["proc"], group=1) if r["n"] > lost["n"]]


def counted_after_a_floor_made_it_forget(rows: Rows) -> Rows:
    """A member loses a group to a new floor, and its promise counts as if it had not."""
    told(_since(rows, "promise", _lost(rows))[0], normal="true")
    return rows


def acknowledged_after_a_floor_made_it_forget(rows: Rows) -> Rows:
    """A member loses a group to a new floor, and acknowledges before it has anything again."""
    return without(rows, *_since(rows, "normal", _lost(rows)))


def keeps_what_it_has_under_a_new_floor(rows: Rows) -> Rows:
    """Whoever gives the history up itself holds what it held, and counts."""
    lost = _lost(rows, "m3")
    told(lost, normal="true")
    return without(rows, *_since(rows, "normal", lost))


def keeps_what_it_has_under_the_floor_of_another(rows: Rows) -> Rows:
    """A member whose floor another one raised says that it holds what it held."""
    lost = _lost(rows)
    told(lost, normal="true")
    return without(rows, *_since(rows, "normal", lost))


def keeps_what_it_has_under_a_floor_of_no_election(rows: Rows) -> Rows:
    """A member says that it raised the floor itself, and was elected for another epoch."""
    lost = _lost(rows, "m3")
    told(lost, normal="true")
    rows_of(rows, "elect", proc=lost["proc"], group=1)[-1]["epoch"] += 1
    return without(rows, *_since(rows, "normal", lost))


def says_nothing_of_what_it_has_under_a_new_floor(rows: Rows) -> Rows:
    """Older members did not say what a floor does to them: then they are taken to hold it."""
    lost = _lost(rows)
    del lost["extra"]
    return without(rows, *_since(rows, "normal", lost))


def lost_in_the_end_by_a_floor(rows: Rows) -> Rows:
    """A floor makes a member forget, it does nothing more, and never is normal again."""
    lost = _lost(rows)
    kinds = ("normal", "ack", "append", "commit")
    gone = [row for kind in kinds for row in _since(rows, kind, lost)]
    for quorum in rows_of(rows, "quorum", group=1, epoch=3):
        told(quorum, by="m1-2")
    return without(rows, *gone)


def acknowledged_what_a_floor_made_it_forget(rows: Rows) -> Rows:
    """A member that is normal again acknowledges as much as its log had only before the floor."""
    lost = _lost(rows)
    swap(_since(rows, "append", lost)[0], _since(rows, "ack", lost)[0])
    return rows


def one_member_was_not_read(rows: Rows) -> Rows:
    """In the end two members are read, the third one is not."""
    read = [*rows_of(rows, "final_head"), *rows_of(rows, "final_read")]
    return without(rows, *(row for row in read if row["extra"]["member"] == "m2"))


def silent_long_before_two_were_away(rows: Rows) -> Rows:
    """Nobody is served for three seconds, then two members are away for a moment."""
    rows = second_fault(rows, fault="pause", target="m2")
    on = rows_of(rows, "fault_on")
    on[1]["t_wall"] = on[0]["t_wall"] + 3 * SECOND
    return rows


def silent_around_two_that_were_away(rows: Rows) -> Rows:
    """Two members are away amid a silence; before and after that it is within the bound."""
    rows = second_fault(rows, fault="pause", target="m2")
    on = rows_of(rows, "fault_on")
    on[1]["t_wall"] = on[0]["t_wall"] + SECOND
    rows_of(rows, "fault_off")[1]["t_wall"] = on[0]["t_wall"] + 5 * SECOND // 2
    return rows


def window_that_lies_before_an_install(rows: Rows) -> Rows:
    """A window does not begin where it must; the state that is taken later is no excuse."""
    rows = window_that_lies(rows)
    last = at_the_end_of(rows, "/a")["quorum"]
    where = {key: last[key] for key in ("group", "epoch", "idx")}
    window = rows_of(rows, "window")[-1]
    who = {key: window[key] for key in ("run", "node", "boot", "proc", "t_mono", "t_wall")}
    return after(rows, {**who, **where, "kind": "install", "n": 0})


def counted_what_nobody_applied(rows: Rows) -> Rows:
    """What clients saw was stored and never applied; a life that did not acknowledge it counts."""
    last = at_the_end_of(rows, "/b")
    commits = rows_of(rows, "commit", mid=last["append"]["mid"])
    told(last["quorum"], by=last["ack"]["proc"])
    return without(rows, last["ack"], *commits)


def delivered_late_during_a_fault_of_another(rows: Rows) -> Rows:
    """A contact that no fault hits leaves a subscriber behind while another member is away."""
    for row in rows_of(rows, "deliver", topic="/b", epoch=2):
        row["t_wall"] += 5 * SECOND
    return rows


def delivered_late_by_a_contact_that_was_hit(rows: Rows) -> Rows:
    """A contact that is frozen itself cannot deliver in time."""
    for row in [*rows_of(rows, "plan"), *rows_of(rows, "fault_on"), *rows_of(rows, "fault_off")]:
        told(row, fault="pause", target="m3")
    return delivered_late_during_a_fault_of_another(rows)


def healed_late(rows: Rows) -> Rows:
    """Members take longer to be well again than they may."""
    told(next(row for row in rows_of(rows, "phase") if "took_ms" in row["extra"]), took_ms="10001")
    return rows


# As mutants.CAUGHT.
MEMBERS: dict[Mutant, str] = {
    counted_after_a_floor_made_it_forget: "RECOVER_SILENT",
    acknowledged_after_a_floor_made_it_forget: "LIVE RECOVER_SILENT",
    keeps_what_it_has_under_a_new_floor: "",
    keeps_what_it_has_under_the_floor_of_another: "LIVE RECOVER_SILENT",
    keeps_what_it_has_under_a_floor_of_no_election: "LIVE RECOVER_SILENT",
    says_nothing_of_what_it_has_under_a_new_floor: "",
    lost_in_the_end_by_a_floor: "LIVE",
    acknowledged_what_a_floor_made_it_forget: "COMMIT_BEFORE_SEE",
    one_member_was_not_read: "NON_VACUOUS",
    silent_long_before_two_were_away: "UNAVAIL",
    silent_around_two_that_were_away: "",
    window_that_lies_before_an_install: "HONEST_GAP NO_LOSS",
    delivered_late_during_a_fault_of_another: "STALE",
    delivered_late_by_a_contact_that_was_hit: "",
    healed_late: "LIVE",
    counted_what_nobody_applied: "COMMIT_BEFORE_SEE FALSE_ACK NO_PHANTOM",
}
