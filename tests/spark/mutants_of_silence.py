"""Good traces made bad: groups that are silent too long, and members that end by themselves.

As tests/spark/mutants.py, each with the checks that it must set off.
"""

from __future__ import annotations

from tests.spark.good_trace import SECOND, Row
from tests.spark.mutants import (
    Mutant,
    Rows,
    after,
    rows_of,
    second_fault,
    shifted,
    silent_after_the_fault,
    told,
    waited_at_a_contact_that_was_hit,
    without,
)


def _resent(rows: Rows) -> Row:
    """The message that waits through the silence, as it was sent the second time."""
    return next(row for row in rows_of(rows, "pub_send") if row["extra"]["attempt"] == "2")


def _of_the_next(rows: Rows) -> tuple[Row, Row]:
    """The message after that one: when it was sent and acknowledged."""
    first = _resent(rows)
    who = {"topic": first["topic"], "pid": first["pid"], "pseq": first["pseq"] + 1}
    return rows_of(rows, "pub_send", **who)[0], rows_of(rows, "pub_ack", **who)[0]


def fresh_message_is_answered_first(rows: Rows) -> Rows:
    """After a long silence the first answer is for what was sent a moment ago."""
    rows = silent_after_the_fault(rows)
    first = _resent(rows)
    who = {key: first[key] for key in ("topic", "pid", "pseq")}
    ended = rows_of(rows, "pub_ack", **who)[0]["t_wall"]
    sent, acked = _of_the_next(rows)
    sent["t_wall"], acked["t_wall"] = ended - 50_000, ended - 1000
    return rows


def another_waited_at_a_sound_contact(rows: Rows) -> Rows:
    """One client waits at a contact that was hit; another one waits for the group as long."""
    rows = waited_at_a_contact_that_was_hit(rows)
    sent, _ = _of_the_next(rows)
    sent["t_wall"] = _resent(rows)["t_wall"] + 1000
    return rows


def silent_under_faults_one_after_another(rows: Rows) -> Rows:
    """Two members are away, but never at once."""
    rows = second_fault(rows, fault="pause", target="m2")
    on, second_on = rows_of(rows, "fault_on")
    off = rows_of(rows, "fault_off")[0]
    told(on, fault="pause")
    told(off, fault="pause")
    off["t_wall"] = on["t_wall"] + SECOND // 10
    second_on["t_wall"] = on["t_wall"] + SECOND // 5
    return rows


def silent_though_the_other_is_only_slow(rows: Rows) -> Rows:
    """One member is away, another one is slow, and there."""
    return second_fault(rows, fault="slow-link", target="m2")


def silent_after_two_were_away(rows: Rows) -> Rows:
    """Two members were away at once; one is back, and the group stays silent for long."""
    rows = second_fault(rows, fault="pause", target="m2")
    off = rows_of(rows, "fault_off")[1]
    off["t_wall"] = rows_of(rows, "fault_on")[1]["t_wall"] + SECOND
    return rows


def silent_long_after_a_server_of_zookeeper_died(rows: Rows) -> Rows:
    """ZooKeeper elects another leader in two seconds; after that somebody must be elected."""
    rows = second_fault(rows, fault="zookeeper-leader", target="leader")
    return shifted(rows, _resent(rows)["t_wall"] + 1, 2 * SECOND)


def silent_until_a_server_of_zookeeper_was_replaced(rows: Rows) -> Rows:
    """For these two seconds nobody can be elected."""
    rows = second_fault(rows, fault="zookeeper-leader", target="leader")
    rows_of(rows, "fault_on")[1]["t_wall"] += SECOND // 2
    return rows


def silent_while_clients_are_cut_off(rows: Rows) -> Rows:
    """Whoever is cut off waits for the network, not for the group."""
    rows = second_fault(rows, fault="cut-clients", target="all", hit="all")
    second = _resent(rows)
    second["conn"] = "cut"
    at = second["t_wall"]
    return after(rows, rows_of(rows, "link_up")[0], conn="cut", t_wall=at, extra={"member": "m3"})


def silent_while_members_restart_in_turn(rows: Rows) -> Rows:
    """A rolling restart takes one member away at a time: no excuse."""
    for row in [*rows_of(rows, "plan"), *rows_of(rows, "fault_on"), *rows_of(rows, "fault_off")]:
        told(row, fault="rolling-restart", target="all", hit="all")
    return second_fault(rows, fault="rolling-restart", target="all", hit="m1")


def silent_without_any_fault(rows: Rows) -> Rows:
    """Nothing is broken, nothing was planned, and the group is silent."""
    faults = [row for kind in ("plan", "fault_on", "fault_off") for row in rows_of(rows, kind)]
    return silent_after_the_fault(without(rows, *faults))


def ended_by_itself(rows: Rows) -> Rows:
    """A member crashed, and the runner started it again."""
    extra = {"member": "m2", "code": "1", "when": "by itself"}
    return after(rows, rows_of(rows, "phase")[-1], kind="ended", extra=extra)


SILENCE: dict[Mutant, str] = {
    fresh_message_is_answered_first: "UNAVAIL",
    another_waited_at_a_sound_contact: "UNAVAIL",
    silent_under_faults_one_after_another: "UNAVAIL",
    silent_though_the_other_is_only_slow: "UNAVAIL",
    silent_after_two_were_away: "UNAVAIL",
    silent_long_after_a_server_of_zookeeper_died: "UNAVAIL",
    silent_until_a_server_of_zookeeper_was_replaced: "",
    silent_while_clients_are_cut_off: "",
    silent_while_members_restart_in_turn: "UNAVAIL",
    silent_without_any_fault: "UNAVAIL",
    ended_by_itself: "LIVE",
}
