"""Good traces made bad: for each check, mutations of a good trace that it must see.

A mutant gets its own deep copy of the rows and changes as little as shows the anomaly.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.spark.good_trace import SECOND, Row

Rows = list[Row]
Mutant = Callable[[Rows], Rows]


def rows_of(rows: Rows, kind: str, **wanted: object) -> Rows:
    """Rows of a kind with these values."""
    return [
        row
        for row in rows
        if row["kind"] == kind and all(row.get(key) == value for key, value in wanted.items())
    ]


def without(rows: Rows, *gone: Row) -> Rows:
    """All rows but these."""
    return [row for row in rows if not any(row is other for other in gone)]


def after(rows: Rows, row: Row, **changed: object) -> Rows:
    """A changed copy right behind a row, as the last of its process so that numbers stay unique."""
    last = max(other["n"] for other in rows if other["proc"] == row["proc"])
    return [*rows, {**row, "n": last + 1, **changed}]


def told(row: Row, **changed: str) -> None:
    """Change what a row says in `extra`."""
    row["extra"] = {**row.get("extra", {}), **changed}


def shifted(rows: Rows, start: int, by: int) -> Rows:
    """Time passes before `start`."""
    for row in rows:
        row["t_wall"] += by if row["t_wall"] >= start else 0
    return rows


# ---- messages ------------------------------------------------------------------------------------


def redelivered_under_another_epoch(rows: Rows) -> Rows:
    """Redelivered under another epoch."""
    rows_of(rows, "deliver", topic="/a")[2]["epoch"] = 2
    return rows


def another_message_at_the_end(rows: Rows) -> Rows:
    """Another message at the end."""
    rows_of(rows, "final_read", topic="/b")[1]["mid"] = "f" * 16
    return rows


def two_entries_at_an_index(rows: Rows) -> Rows:
    """Two entries at an index."""
    rows_of(rows, "commit", node="m2", topic="/b")[1]["idx"] += 1
    return rows


def delivery_lost(rows: Rows) -> Rows:
    """Delivery lost."""
    return without(rows, rows_of(rows, "deliver", topic="/a")[3])


def deliveries_swapped(rows: Rows) -> Rows:
    """Deliveries swapped."""
    one, two = rows_of(rows, "deliver", topic="/b")[1:3]
    one["n"], two["n"] = two["n"], one["n"]
    return rows


def gap_that_goes_on_too_late(rows: Rows) -> Rows:
    """Gap that goes on too late."""
    gap = next(row for row in rows_of(rows, "sub_status") if row["extra"]["outcome"] == "gap")
    first = next(r for r in rows_of(rows, "deliver", topic="/a") if r["n"] > gap["n"])
    return without(rows, first)


def refused_by_a_client(rows: Rows) -> Rows:
    """Refused by a client."""
    told(rows_of(rows, "link_down")[0], why="broken delivery: 1:9 of /a came after 1:4")
    return rows


def invented(rows: Rows) -> Rows:
    """Invented."""
    last = rows_of(rows, "deliver", topic="/a")[-1]
    return after(rows, last, seq=last["seq"] + 1, mid="e" * 16)


def never_applied(rows: Rows) -> Rows:
    """Never applied."""
    mid = rows_of(rows, "deliver", topic="/a")[1]["mid"]
    return without(rows, *rows_of(rows, "commit", mid=mid))


def final_read_lost(rows: Rows) -> Rows:
    """Final read lost."""
    return without(rows, rows_of(rows, "final_read", topic="/a")[1])


def topic_unknown_at_a_member(rows: Rows) -> Rows:
    """Topic unknown at a member."""
    return without(rows, rows_of(rows, "final_head", topic="/a")[0])


def history_cut_too_short(rows: Rows) -> Rows:
    """History cut too short."""
    head = rows_of(rows, "final_head", topic="/a")[0]
    told(head, first=str(head["seq"]))
    return rows


def last_delivery_lost(rows: Rows) -> Rows:
    """Last delivery lost."""
    return without(rows, rows_of(rows, "deliver", topic="/a")[-1])


def acked_elsewhere(rows: Rows) -> Rows:
    """Acked elsewhere."""
    rows_of(rows, "pub_ack", topic="/a")[1]["seq"] = 77
    return rows


def acked_what_another_published(rows: Rows) -> Rows:
    """Acked what another published."""
    rows_of(rows, "pub_ack", topic="/b")[1]["pid"] = "stranger"
    return rows


def publisher_order_turned(rows: Rows) -> Rows:
    """Publisher order turned."""
    swap = {2: 3, 3: 2}
    for row in rows:
        if row.get("topic") == "/a" and row["kind"] in {"pub_send", "pub_ack", "commit"}:
            row["pseq"] = swap.get(row["pseq"], row["pseq"])
    return rows


def retry_made_a_copy(rows: Rows) -> Rows:
    """Retry made a copy."""
    for row in rows_of(rows, "commit", topic="/a", seq=4):
        row["pseq"] = 3
    return rows


def delivered_twice(rows: Rows) -> Rows:
    """Delivered twice."""
    return after(rows, rows_of(rows, "deliver", topic="/b")[-1])


def refused_and_published(rows: Rows) -> Rows:
    """Refused and published."""
    keys = ("topic", "group", "pid", "pseq", "mid")
    known = {key: rows_of(rows, "pub_ack", topic="/a")[0][key] for key in keys}
    return after(rows, rows_of(rows, "pub_nack")[-1], **known)


def gone_from_all_members(rows: Rows) -> Rows:
    """Gone from all members."""
    seq = rows_of(rows, "final_head", topic="/a")[0]["seq"] - 1
    return without(rows, *rows_of(rows, "final_read", topic="/a", seq=seq))


def gap_without_a_window(rows: Rows) -> Rows:
    """Gap without a window."""
    return without(rows, *rows_of(rows, "window"))


def window_that_lies(rows: Rows) -> Rows:
    """Window that lies."""
    told(rows_of(rows, "run")[0], max_messages="1000")
    return rows


def reset_without_a_reason(rows: Rows) -> Rows:
    """Reset without a reason."""
    status = next(
        row for row in rows_of(rows, "sub_status") if row["extra"]["outcome"] == "resumed"
    )
    told(status, outcome="reset", reason="history_lost")
    return rows


def reset_from_a_known_position(rows: Rows) -> Rows:
    """Reset from a known position."""
    reset_without_a_reason(rows)
    status = next(row for row in rows_of(rows, "sub_status") if row["extra"]["outcome"] == "reset")
    told(status, reason="unknown_position")
    return rows


# ---- members -------------------------------------------------------------------------------------


def delivered_epoch_falls(rows: Rows) -> Rows:
    """Delivered epoch falls."""
    rows_of(rows, "deliver", topic="/a")[-1]["epoch"] = 1
    return rows


def promise_falls(rows: Rows) -> Rows:
    """Promise falls."""
    return after(rows, rows_of(rows, "promise", node="m2", group=0)[-1], epoch=1)


def opened_twice(rows: Rows) -> Rows:
    """Opened twice."""
    return after(rows, rows_of(rows, "open", group=0)[-1], node="m3", proc="m3-1", n=10_000)


def made_by_another_life(rows: Rows) -> Rows:
    """Made by another life."""
    made = rows_of(rows, "append", node="m2", topic="/a", epoch=2)[-1]
    return after(rows, made, boot=9, proc="m2-9", n=0)


def acknowledged_below_a_promise(rows: Rows) -> Rows:
    """Acknowledged below a promise."""
    return after(rows, rows_of(rows, "ack", node="m3", group=0)[-1], epoch=1)


def old_coordinator_goes_on(rows: Rows) -> Rows:
    """Old coordinator goes on."""
    made = rows_of(rows, "append", node="m1", topic="/b", epoch=1)[-1]
    promise = rows_of(rows, "promise", node="m1", group=1)[0]
    return [*after(rows, promise, epoch=2, n=20_000), {**made, "n": 20_001}]


def seen_with_one_copy(rows: Rows) -> Rows:
    """Seen with one copy."""
    mid = rows_of(rows, "deliver", topic="/b")[-1]["mid"]
    gone = [r for r in rows if r.get("mid") == mid and r["node"] in {"m1", "m2"}]
    return without(rows, *gone)


def acked_with_one_copy(rows: Rows) -> Rows:
    """Acked with one copy."""
    mid = rows_of(rows, "pub_ack", topic="/a", epoch=2)[-1]["mid"]
    gone = [r for r in rows if r.get("mid") == mid and r["node"] in {"m1", "m3"}]
    return without(rows, *gone)


def acknowledged_while_recovering(rows: Rows) -> Rows:
    """Acknowledged while recovering."""
    ack = rows_of(rows, "ack", proc="m1-2")[0]
    normal = rows_of(rows, "normal", proc="m1-2")[0]
    ack["n"], normal["n"] = normal["n"], ack["n"]
    return rows


def counted_while_recovering(rows: Rows) -> Rows:
    """Counted while recovering."""
    told(rows_of(rows, "promise", proc="m1-2")[0], normal="true")
    return rows


# ---- times and happenings ------------------------------------------------------------------------


def silent_after_the_fault(rows: Rows) -> Rows:
    """Silent after the fault."""
    second = next(row for row in rows_of(rows, "pub_send") if row["extra"]["attempt"] == "2")
    return shifted(rows, second["t_wall"] + 1, 3 * SECOND)


def delivered_late(rows: Rows) -> Rows:
    """Delivered late."""
    for row in rows_of(rows, "deliver", topic="/a")[-3:]:
        row["t_wall"] += 5 * SECOND
    return rows


def acked_late_after_healing(rows: Rows) -> Rows:
    """Acked late after healing."""
    rows_of(rows, "pub_ack", topic="/b")[-1]["t_wall"] += 3 * SECOND
    return rows


def never_acked_after_healing(rows: Rows) -> Rows:
    """Never acked after healing."""
    return without(rows, rows_of(rows, "pub_ack", topic="/b")[-1])


def never_normal(rows: Rows) -> Rows:
    """Never normal."""
    return without(rows, rows_of(rows, "normal", proc="m1-2", group=0)[0])


def ends_differ(rows: Rows) -> Rows:
    """Ends differ."""
    rows_of(rows, "final_head", topic="/b")[1]["seq"] -= 1
    return rows


def fault_never_happened(rows: Rows) -> Rows:
    """Fault never happened."""
    return without(rows, *rows_of(rows, "fault_on"))


def no_sync(rows: Rows) -> Rows:
    """No sync."""
    return without(rows, *rows_of(rows, "install"))


def no_takeover(rows: Rows) -> Rows:
    """No takeover."""
    return without(rows, *(row for row in rows_of(rows, "open") if row["epoch"] > 1))


def no_duplicate(rows: Rows) -> Rows:
    """No duplicate."""
    return without(
        rows, *(r for r in rows_of(rows, "pub_ack") if r["extra"]["duplicate"] == "true")
    )


def nothing_missed(rows: Rows) -> Rows:
    """Nothing missed."""
    for row in rows_of(rows, "sub_status"):
        told(row, missed="0")
    return rows


def no_final_read(rows: Rows) -> Rows:
    """No final read."""
    return without(rows, *rows_of(rows, "final_head"), *rows_of(rows, "final_read"))


def idle_group(rows: Rows) -> Rows:
    """Idle group."""
    told(rows_of(rows, "run")[0], groups="3")
    return rows


def unanswered_in_quiet_times(rows: Rows) -> Rows:
    """Unanswered in quiet times."""
    return without(rows, *rows_of(rows, "pub_ack", epoch=1))


# ---- what looks bad and is not -------------------------------------------------------------------


def _silent_by(rows: Rows, contact: str, welcomed: int) -> Rows:
    """The resend after the fault, answered late, went to this contact."""
    rows = silent_after_the_fault(rows)
    second = next(row for row in rows_of(rows, "pub_send") if row["extra"]["attempt"] == "2")
    second["conn"] = "late"
    link = rows_of(rows, "link_up")[0]
    at = second["t_wall"] + welcomed
    return after(rows, link, conn="late", t_wall=at, extra={"member": contact})


def waited_at_a_contact_that_was_hit(rows: Rows) -> Rows:
    """The contact itself was frozen: the group may have been served all the time."""
    return _silent_by(rows, "m1", 0)


def waited_for_a_connection(rows: Rows) -> Rows:
    """The client was late, not the group: it had no contact before."""
    return _silent_by(rows, "m3", 5 * SECOND // 2)


def what_the_run_does_not_require(rows: Rows) -> Rows:
    """The scenario cannot have duplicates, and its run says so."""
    told(rows_of(rows, "run")[0], require="takeover,sync,gap,resume")
    return no_duplicate(rows)


EXCUSED = (
    waited_at_a_contact_that_was_hit, waited_for_a_connection, what_the_run_does_not_require,
)  # fmt: skip


# ---- all of them ---------------------------------------------------------------------------------


def waited_at_another_contact(rows: Rows) -> Rows:
    """The contact was well, the group was not."""
    return _silent_by(rows, "m3", 0)


def no_takeover_though_required(rows: Rows) -> Rows:
    """What a run requires must happen."""
    told(rows_of(rows, "run")[0], require="takeover")
    return no_takeover(rows)


MUTANTS: dict[str, tuple[Mutant, ...]] = {
    "AGREE": (redelivered_under_another_epoch, another_message_at_the_end, two_entries_at_an_index),
    "NO_GAP": (
        *(delivery_lost, deliveries_swapped, gap_that_goes_on_too_late, delivered_twice),
        refused_by_a_client,
    ),
    "NO_PHANTOM": (invented, never_applied),
    "NO_LOSS": (
        *(final_read_lost, topic_unknown_at_a_member, history_cut_too_short, last_delivery_lost),
        *(delivery_lost, gone_from_all_members, ends_differ),
    ),
    "FALSE_ACK": (acked_elsewhere, acked_what_another_published, never_applied),
    "PUB_ORDER": (publisher_order_turned,),
    "ONCE": (retry_made_a_copy, delivered_twice, acked_elsewhere),
    "EPOCH_MONO": (delivered_epoch_falls, promise_falls),
    "ONE_COORD": (opened_twice, made_by_another_life),
    "NO_BELOW_PROMISE": (acknowledged_below_a_promise, old_coordinator_goes_on),
    "COMMIT_BEFORE_SEE": (seen_with_one_copy, acked_with_one_copy),
    "RECOVER_SILENT": (acknowledged_while_recovering, counted_while_recovering, never_normal),
    "HONEST_GAP": (
        *(gap_without_a_window, window_that_lies),
        *(reset_without_a_reason, reset_from_a_known_position),
    ),
    "ACK_TRUTH": (refused_and_published, gone_from_all_members),
    "UNAVAIL": (silent_after_the_fault, waited_at_another_contact),
    "STALE": (delivered_late,),
    "LIVE": (acked_late_after_healing, never_acked_after_healing, never_normal, ends_differ),
    "NON_VACUOUS": (
        *(fault_never_happened, no_sync, no_takeover, no_duplicate, nothing_missed),
        *(no_final_read, idle_group, unanswered_in_quiet_times, no_takeover_though_required),
    ),
}
