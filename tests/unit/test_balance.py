"""Giving groups away on purpose: hand-over, draining, rebalancing."""

from __future__ import annotations

import pytest

from coordinator.events import DrainWanted
from tests.scenarios.stage import Stage
from tests.unit.decider_stage import hold, item, opened, publish, staged


def led(stage: Stage, name: str) -> int:
    """How many groups a member coordinates."""
    return len(stage.lives[name].member.balance.led)


def late_comer() -> Stage:
    """A cluster of which c joined late, so that it coordinates nothing yet."""
    stage = staged(groups=12)
    stage.start("a")
    stage.start("b")
    stage.run(1.0)
    stage.start("c")
    stage.run(5.0)
    return stage


def test_a_hand_over_under_way_is_not_begun_again() -> None:
    """A second order, or one for a group that is led elsewhere, changes nothing."""
    stage = opened()
    a, b = stage.lives["a"], stage.lives["b"]
    b.member.balance.hand_over(b.replica(), "c")
    a.member.balance.hand_over(a.replica(), "b")
    a.member.balance.hand_over(a.replica(), "c")
    leading = a.replica().leading
    assert leading is not None
    assert leading.handing_to == "b"
    assert b.replica().leading is None


def test_a_tail_that_does_not_commit_ends_a_hand_over() -> None:
    """The coordinator accepts again, and what it held is stamped."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item(1))
    a = stage.lives["a"]
    a.member.balance.hand_over(a.replica(), "b")
    publish(stage, "a", item(2, ref=2))
    assert a.replica().log.last == 2
    stage.run(1.2)
    assert "a * hand_over_failed g0 epoch=1 idx=0 (b)" in stage.trace
    assert a.replica().log.last == 3
    assert a.replica().leading is not None


def test_draining_waits_until_the_others_can_take_over() -> None:
    """While another member is not NORMAL everywhere nothing moves, and that is said once."""
    stage = opened()
    stage.crash("c")
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(1.0)
    assert stage.trace.count("a * drain_waits (another member is not NORMAL in all groups)") == 1
    assert led(stage, "a") == 1
    stage.give(stage.lives["a"], DrainWanted(now=True))
    stage.run(1.0)
    assert "a is drained" in stage.trace
    assert led(stage, "b") == 1


def test_draining_keeps_what_nobody_can_take() -> None:
    """Without a member that could coordinate instead, the group stays."""
    stage = opened()
    stage.crash("b")
    stage.crash("c")
    stage.give(stage.lives["a"], DrainWanted(now=True))
    stage.run(0.5)
    assert led(stage, "a") == 1
    assert "a is drained" not in stage.trace


def test_draining_prefers_members_that_stay() -> None:
    """A member that drains itself is never a target."""
    stage = opened()
    stage.give(stage.lives["b"], DrainWanted())
    stage.run(0.5)
    stage.give(stage.lives["a"], DrainWanted(now=True))
    stage.run(0.5)
    assert led(stage, "c") == 1


@pytest.mark.parametrize("apart", [0.0, 0.3, 1.0])
def test_members_leave_in_turn(apart: float) -> None:
    """Who was first, or else the lower id, goes first; the other one waits until it is back."""
    stage = opened()
    stage.give(stage.lives["b"], DrainWanted())
    stage.run(apart)
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(3.0)
    first, second = ("b", "a") if apart > 0.5 else ("a", "b")
    assert f"{first} is drained" in stage.trace
    assert f"{second} * drain_waits (another member leaves first)" in stage.trace
    assert f"{second} is drained" not in stage.trace
    stage.crash(first)
    stage.start(first)
    stage.run(3.0)
    assert f"{second} is drained" in stage.trace


def test_a_second_order_to_drain_does_not_begin_the_notice_again() -> None:
    """An operator who is impatient does not make it take longer."""
    stage = opened()
    a = stage.lives["a"]
    stage.give(a, DrainWanted())
    stage.run(0.4)
    stage.give(a, DrainWanted())
    stage.run(0.3)
    assert "a is drained" in stage.trace


def test_draining_moves_a_few_groups_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hand-overs are bounded like elections."""
    monkeypatch.setattr("coordinator.balance.HANDOVERS_IN_FLIGHT", 1)
    stage = opened(groups=6)
    many = led(stage, "a")
    assert many > 1
    hold(stage, "a>*", "Invite")
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(0.6)
    assert sum(" hand_over " in line for line in stage.trace) == 1
    stage.holds.clear()
    stage.run(5.0)
    assert led(stage, "a") == 0
    assert "a is drained" in stage.trace


def test_a_member_that_came_late_is_given_its_share() -> None:
    """Some time after the last takeover groups move to the member that coordinates the fewest."""
    stage = late_comer()
    assert led(stage, "c") == 0
    stage.run(12.0)
    assert led(stage, "c") > 0
    stage.run(15.0)
    # Nobody holds more than one above its share of four, and nobody moves groups for less.
    assert max(led(stage, name) for name in "abc") <= 5
    assert sum(led(stage, name) for name in "abc") == 12


def test_nothing_is_handed_over_while_zookeeper_is_away() -> None:
    """Nobody could stand, and the group would stop for nothing: the member drains later."""
    stage = opened()
    stage.keeper_away = True
    stage.run(3.0)  # until the last answers count no more
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(2.0)
    assert not any("hand_over" in line for line in stage.trace)
    assert sum("drain_waits" in line and "ZooKeeper" in line for line in stage.trace) == 1
    assert not stage.lives["a"].member.ctx.leaving  # others may go first
    publish(stage, "a", item(1))
    stage.settle()
    assert "a acks #1 at 1:1" in stage.trace
    stage.keeper_away = False
    stage.errands()
    stage.run(0.5)
    assert "a is drained" in stage.trace


def without_zookeeper(stage: Stage, *names: str) -> None:
    """These members ask ZooKeeper in vain from now on, and all others have heard of it."""
    for name in names:
        stage.lives[name].member.balance._asking = True
    stage.run(3.0)


def test_a_member_that_alone_lacks_zookeeper_can_be_drained() -> None:
    """Who takes a group must reach ZooKeeper; who gives it need not."""
    stage = opened()
    without_zookeeper(stage, "a")
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(1.5)
    assert "a is drained" in stage.trace


def test_groups_go_to_members_that_reach_zookeeper() -> None:
    """A member that could not stand is not invited, whatever its rank."""
    stage = opened(groups=8)
    without_zookeeper(stage, "b")
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(1.5)
    assert "a is drained" in stage.trace
    assert not any(line.startswith("a > b Invite") for line in stage.trace)


def test_who_did_not_take_a_group_gets_a_rest_and_the_next_one_is_asked() -> None:
    """A drain does not stop the same group again and again for one member that does not stand."""
    stage = opened(groups=8)
    hold(stage, "a>b", "Invite")
    stage.give(stage.lives["a"], DrainWanted())
    stage.run(2.5)
    assert "a is drained" in stage.trace
    invited = [line for line in stage.trace if line.startswith("a > b Invite")]
    assert len(invited) == len(set(invited))


def test_balancing_waits_for_zookeeper() -> None:
    """Groups that are spread unevenly stay where they are until somebody else could stand."""
    stage = late_comer()
    stage.keeper_away = True
    stage.run(20.0)
    assert led(stage, "c") == 0
    assert not any("hand_over" in line for line in stage.trace)
    stage.keeper_away = False
    stage.errands()
    stage.run(5.0)
    assert led(stage, "c") > 0


def test_a_hand_over_that_failed_is_not_tried_again_soon() -> None:
    """Its target may be without ZooKeeper, and each try costs publishers half a second."""
    stage = late_comer()
    hold(stage, "*>c", "Invite")
    stage.run(15.0)
    for name in "ab":
        assert sum(line.startswith(f"{name} * hand_over g") for line in stage.trace) <= 1
