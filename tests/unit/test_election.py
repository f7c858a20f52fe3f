"""When members stand for groups; none of it decides what is safe."""

from __future__ import annotations

import pytest

from coordinator.events import DrainWanted, KeeperAnswer, Publish
from coordinator.keeper import NotElected
from coordinator.replica import Role
from migratory.wire.ids import group_of, rank
from migratory.wire.peer import Publication
from tests.unit.decider_stage import hold, opened, staged


def test_elections_are_bounded_and_all_take_place() -> None:
    """At most 32 are under way; the other groups wait for their turn."""
    stage = staged("a", faults=0, groups=40)
    stage.start("a")
    stage.keeper_away = True
    stage.run(0.2)
    assert stage.lives["a"].member.elections.in_flight == 32
    stage.keeper_away = False
    stage.errands()
    stage.run(0.5)
    assert all(r.role is Role.COORDINATOR for r in stage.lives["a"].member.replicas)


def test_groups_with_waiting_publications_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """Somebody waits for them."""
    monkeypatch.setattr("coordinator.election.ELECTIONS_IN_FLIGHT", 1)
    stage = staged("a", faults=0, groups=8)
    stage.start("a")
    g = group_of("/topic", 8)
    assert g > 0
    stage.give(stage.lives["a"], Publish([Publication("/topic", b"x", 0, "p", 1, 1)]))
    stage.keeper_away = True
    stage.tick(0.1)
    assert [r.g for r in stage.lives["a"].member.replicas if r.standing] == [g]


def test_groups_that_are_wanted_elsewhere_come_first() -> None:
    """Whose clients wait does not matter; the other groups follow a moment later."""
    stage = opened(groups=24)
    b = stage.lives["b"].member
    led = [r.g for r in b.replicas if r.leader == "a"]
    *others, wanted = [g for g in led if rank(g, "bc")[0] == "b"]
    assert others
    topic = next(f"/t/{n}" for n in range(1000) if group_of(f"/t/{n}", 24) == wanted)
    hold(stage, "c>a")
    stage.give(stage.lives["c"], Publish([Publication(topic, b"x", 0, "p", 1, 1)]))
    stage.crash("a")
    stage.keeper_away = True
    stage.run(0.1)
    assert [r.g for r in b.replicas if r.standing] == [wanted]
    stage.run(0.2)
    assert {wanted, *others} <= {r.g for r in b.replicas if r.standing}


def test_an_election_without_a_result_leaves_the_member_free() -> None:
    """A procedure that ended with nothing is over; the member may stand again."""
    stage = opened()
    stage.crash("a")
    stage.keeper_away = True
    stage.run(0.3)
    b = stage.lives["b"]
    assert b.replica().standing
    token = max(b.member.ctx.answers)
    stage.give(b, KeeperAnswer(token, None))
    assert not b.replica().standing
    assert b.member.elections.in_flight == 0


def test_a_lost_election_can_tell_of_a_higher_floor() -> None:
    """The member drops what belongs to the history that is gone."""
    stage = opened()
    stage.crash("a")
    stage.keeper_away = True
    stage.run(0.3)
    b = stage.lives["b"]
    token = max(b.member.ctx.answers)
    stage.give(b, KeeperAnswer(token, NotElected(0, 7, 7, None)))
    assert (b.replica().floor, b.replica().normal) == (7, False)


def test_a_session_that_ended_during_an_election_takes_nothing_away() -> None:
    """The node went with the session that created it: it is put back under the same epoch."""
    stage = opened()
    stage.crash("a")
    stage.keeper_away = True
    stage.run(0.2)
    stage.expire("b")
    stage.keeper_away = False
    stage.errands()
    stage.run(0.2)
    assert "b ZooKeeper reattach: null" in stage.trace
    assert stage.lives["b"].replica().role is Role.COORDINATOR


def test_members_that_leave_stand_when_nobody_else_can() -> None:
    """A cluster of which everybody drains still has coordinators."""
    stage = opened()
    for name in "bc":
        stage.lives[name].member.ctx.draining = True
        stage.give(stage.lives[name], DrainWanted())
    stage.run(0.5)
    stage.crash("a")
    stage.run(1.0)
    assert any(stage.lives[name].replica().leading is not None for name in "bc")


def test_nobody_stands_against_a_coordinator_that_others_hear() -> None:
    """A member that alone does not hear the coordinator waits as long as somebody does."""
    stage = opened()
    stage.cut("a", "c")
    stage.run(5.0)
    assert stage.lives["a"].replica().leading is not None
    assert not any("elect" in line for line in stage.trace)


def test_a_coordinator_that_nobody_hears_is_deposed() -> None:
    """Silence alone is enough when it lasts and nobody else reaches the coordinator."""
    stage = opened()
    hold(stage, "a>*")
    stage.run(2.5)
    assert "b * open g0 epoch=2 idx=2" in stage.trace


def test_nobody_suspects_itself() -> None:
    """Suspicion is about others."""
    ctx = opened().lives["a"].member.ctx
    assert ctx.suspicion("a") == 0
    assert ctx.suspicion("b") == 0
