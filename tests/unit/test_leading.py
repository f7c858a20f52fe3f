"""The coordinator's part: stamping, counting copies, streaming, and its bounds."""

from __future__ import annotations

import pytest

from coordinator.leading import Follower, Leading
from coordinator.replica import Role
from coordinator.transfer import Outgoing
from migratory.wire.peer import Ack, Hint, Preq, SyncPull, SyncReq
from tests.scenarios.stage import Stage
from tests.unit.decider_stage import hears, hold, item, opened, publish


def leading(stage: Stage, name: str = "a") -> Leading:
    """The coordinator's part of a member."""
    found = stage.lives[name].replica().leading
    assert found is not None
    return found


def follower(stage: Stage, name: str) -> Follower:
    """What the coordinator knows of a follower."""
    return leading(stage).followers[name]


# ---- bounds --------------------------------------------------------------------------------------


@pytest.mark.parametrize("bound", ["TAIL_ENTRIES", "TAIL_BYTES", "ALL_TAILS_BYTES"])
def test_a_tail_that_is_too_long_refuses_more(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """BUSY, and the publisher's sequence is not used: the same one is taken later."""
    monkeypatch.setattr(f"coordinator.leading.{bound}", 1)
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item(1, ref=1), item(2, ref=2))
    assert stage.trace[0] == "a refuses #2 BUSY leader=a"
    stage.holds.clear()
    stage.settle()
    publish(stage, "a", item(2, ref=3))
    stage.settle()
    assert "a acks #3 at 1:2" in stage.trace


def test_the_tail_is_counted_in_bytes_and_given_back() -> None:
    """Committed or left behind, it does not count against the member's bound any more."""
    stage = opened()
    ctx = stage.lives["a"].member.ctx
    publish(stage, "a", item())
    assert ctx.tail_bytes > 0
    stage.settle()
    assert ctx.tail_bytes == 0
    hold(stage, "a>*", "App")
    publish(stage, "a", item(2))
    stage.lives["a"].replica().step_down("for the test")
    assert ctx.tail_bytes == 0


def test_too_many_publishers_make_new_ones_wait() -> None:
    """Known ones go on; nobody is forgotten early to make room."""
    stage = opened(publishers_per_group=1)
    publish(stage, "a", item(1, pid="p", ref=1))
    stage.settle()
    assert publish(stage, "a", item(1, pid="q", ref=2)) == ["a refuses #2 BUSY leader=a"]
    publish(stage, "a", item(2, pid="p", ref=3))
    stage.settle()
    assert "a acks #3 at 1:2" in stage.trace


def test_who_does_not_hear_a_quorum_stamps_nothing() -> None:
    """It may be deposed without knowing: what it remembers of publishers may be old."""
    stage = opened()
    hold(stage, "*>a")
    stage.tick(1.1, ["b"])
    assert publish(stage, "a", item()) == ["a refuses #1 RETRY leader=a"]
    assert stage.lives["a"].replica().log.last == 1


# ---- copies --------------------------------------------------------------------------------------


def test_only_acknowledgements_of_the_present_epoch_count() -> None:
    """One of another epoch, or beyond the log, is no copy of anything here."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item())
    hears(stage, "a", "b", Ack(0, 1, 9, 2), Ack(0, 1, 1, 99))
    assert (follower(stage, "b").match, stage.lives["a"].replica().commit) == (1, 1)
    hears(stage, "a", "b", Ack(0, 1, 1, 2))
    hears(stage, "a", "b", Ack(0, 1, 1, 2))
    hears(stage, "a", "b", Ack(0, 1, 1, 1))
    assert (follower(stage, "b").match, stage.lives["a"].replica().commit) == (2, 2)


def test_an_acknowledgement_tells_what_need_not_be_sent_again() -> None:
    """It came while the coordinator was about to repeat everything."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item(1), item(2))
    leading(stage).reset_follower("b")
    assert follower(stage, "b").next == 2
    hears(stage, "a", "b", Ack(0, 1, 1, 3))
    assert follower(stage, "b").next == 4


def test_a_repeated_publication_waits_for_its_first_copy_in_the_tail() -> None:
    """Also when the publisher is new and a later one of it is in the tail already."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item(1, ref=1), item(2, ref=2))
    publish(stage, "a", item(1, ref=3))
    assert stage.lives["a"].replica().log.last == 3
    stage.holds.clear()
    stage.settle()
    acks = [line for line in stage.trace if " acks " in line]
    assert acks == ["a acks #1 at 1:1", "a acks #3 at 1:1", "a acks #2 at 1:2"]


def test_acknowledgements_to_a_follower_are_nobodys() -> None:
    """Only a coordinator counts copies."""
    assert hears(opened(), "b", "c", Ack(0, 1, 1, 1)) == []


def test_entries_of_an_older_epoch_are_not_committed_by_counting() -> None:
    """Copies of the tail of epoch 1 count only with the NOOP of epoch 2 behind it."""
    stage = opened("abcde", faults=2)
    (name,) = (n for n in "abcde" if stage.lives[n].replica().leading is not None)
    others = [n for n in "abcde" if n != name]
    hold(stage, f"{name}>*", "Commit")
    for other in others[1:]:
        hold(stage, f"{name}>{other}", "App")
    publish(stage, name, item())
    stage.settle()
    for other in others:  # it is deposed, and then elected again
        stage.lives[other].replica().promise(2, "")
    r = stage.lives[name].replica()
    r.step_down("for the test")
    r.epoch = 3
    r.leading = Leading(r, {})
    r.role = Role.COORDINATOR
    for other in others:
        r.leading.followers[other].match = 2
    r.leading.count()
    assert r.commit == 1
    r.leading.append_control(1)
    for other in others:
        r.leading.followers[other].match = 3
    r.leading.count()
    assert r.commit == 3


def test_a_hint_says_where_to_go_on() -> None:
    """From its commit, never below what it acknowledged; hints of other epochs are void."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item())
    assert follower(stage, "b").next == 3
    assert hears(stage, "a", "b", Hint(0, 1, 9, 0)) == []
    assert hears(stage, "a", "b", Hint(0, 1, 1, 77)) == []
    told = hears(stage, "a", "b", Hint(0, 1, 1, 0))
    assert told[0].startswith("a > b App epoch=1 prev=1@1")


# ---- streams and transfers -----------------------------------------------------------------------


def test_a_silent_follower_is_sent_the_same_again() -> None:
    """Only one that can be reached, and only after a while."""
    stage = opened()
    hold(stage, "a>b", "App")
    publish(stage, "a", item())
    stage.run(0.4)
    assert sum("a > b App" in line for line in stage.trace) == 1
    stage.run(0.3)
    assert sum("a > b App" in line for line in stage.trace) == 2


def test_who_coordinates_below_a_recovering_members_promise_steps_down() -> None:
    """A restarted member read a higher epoch in ZooKeeper: this one is over."""
    stage = opened()
    hears(stage, "a", "b", SyncReq(0, 1, 4))
    assert stage.lives["a"].replica().role is Role.FOLLOWER
    assert "a * step_down g0 epoch=1 idx=1 (b knows epoch 4)" in stage.trace


def test_pulls_of_another_transfer_are_not_answered() -> None:
    """Nor those of a chunk whose predecessor was never asked for."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    assert hears(stage, "a", "b", SyncPull(0, 1, 1, 1, 0)) == []
    hears(stage, "a", "b", SyncReq(0, 1, 1))
    assert hears(stage, "a", "b", SyncPull(0, 1, 1, 9, 0)) == []
    assert hears(stage, "a", "b", SyncPull(0, 1, 2, 1, 0)) == []
    assert hears(stage, "a", "b", SyncPull(0, 1, 1, 1, 5)) == []
    assert "SyncChunk" in hears(stage, "a", "b", SyncPull(0, 1, 1, 1, 0))[0]


def test_a_transfer_that_has_not_begun_is_not_begun_twice() -> None:
    """Two requests in a row are answered with the same head; after a pull it is another one."""
    stage = opened()
    hold(stage, "a>b")
    for number in (1, 1):
        told = hears(stage, "a", "b", SyncReq(0, 1, 1))
        assert f"transfer={number} " in told[0]
    hears(stage, "a", "b", SyncPull(0, 1, 1, 1, 0))
    assert "transfer=2 " in hears(stage, "a", "b", SyncReq(0, 1, 1))[0]


def test_a_transfer_nobody_pulls_is_given_up() -> None:
    """The log is not pinned for a member that went silent."""
    stage = opened()
    hold(stage, "*>b")
    hold(stage, "b>*", "SyncReq", "SyncPull")
    hears(stage, "a", "b", SyncReq(0, 1, 1))
    stage.run(4.5)
    assert follower(stage, "b").outgoing is not None
    stage.run(1.0)
    assert follower(stage, "b").outgoing is None


def test_a_transfer_pins_the_log_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the member will need is kept; beyond the bound the transfer is given up instead."""
    stage = opened(log_entries=1)
    hold(stage, "a>b")
    hears(stage, "a", "b", SyncReq(0, 1, 1))
    base = stage.lives["a"].replica().commit
    for n in range(1, 6):
        publish(stage, "a", item(n))
        stage.settle()
    assert stage.lives["a"].replica().log.base == base
    monkeypatch.setattr("coordinator.leading.PIN_BYTES", 1)
    publish(stage, "a", item(6))
    stage.settle()
    assert stage.lives["a"].replica().log.base == stage.lives["a"].replica().commit - 1
    assert follower(stage, "b").outgoing is None


def test_an_acknowledgement_behind_a_transfers_base_ends_it() -> None:
    """The member has what the transfer would have brought."""
    stage = opened()
    replica = stage.lives["a"].replica()
    publish(stage, "a", item())
    stage.settle()
    publish(stage, "a", item(2))
    follower(stage, "b").outgoing = Outgoing(replica, 9)
    hears(stage, "a", "b", Ack(0, 1, 1, 3))
    assert follower(stage, "b").outgoing is None


def test_a_deposed_coordinator_has_nothing_to_send() -> None:
    """What waited for a peer when the epoch ended is not sent any more."""
    stage = opened()
    a = stage.lives["a"]
    a.member.ctx.waiting_for_peer["b"][0] = None
    hears(stage, "a", "b", Preq(0, 1, 5))
    assert a.member.collect("b", 1 << 20) == []
