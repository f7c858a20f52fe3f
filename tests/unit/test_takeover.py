"""From a won election to an open epoch, and the ways in which a bid ends without opening."""

from __future__ import annotations

import pytest

from coordinator.events import KeeperAnswer, LinkUp, RecoverWanted
from coordinator.keeper import Elected
from coordinator.replica import Role
from coordinator.takeover import Bid, begin
from migratory.wire.ids import Boot
from migratory.wire.peer import Fetch, Fetched, Preq, Prom
from tests.scenarios.stage import Stage
from tests.unit.decider_stage import entry, hears, hold, item, opened, publish, staged

LIVES = {"a": Boot(1, "a"), "b": Boot(1, "b"), "c": Boot(1, "c")}


def bidding(stage: Stage, name: str = "b", epoch: int = 2) -> Bid:
    """A member that has just won an election; nobody has answered it."""
    hold(stage, f"{name}>*")
    life = stage.lives[name]
    begin(life.replica(), Elected(0, epoch, life.replica().floor, 1, LIVES), None)
    stage._carry_out(life)
    bid = life.replica().bid
    assert bid is not None
    stage.trace.clear()
    return bid


def prom(last: int, *, epoch: int = 2, base: int = 0, commit: int = 1, last_epoch: int = 1) -> Prom:
    """A promise of a NORMAL member."""
    return Prom(0, 1, epoch, True, base, last_epoch, last, commit)


def stepped_down(stage: Stage, name: str, why: str) -> bool:
    """Whether a member gave up for a reason."""
    return any(f"{name} * step_down" in line and why in line for line in stage.trace)


# ---- promises ------------------------------------------------------------------------------------


def test_too_few_promises_end_a_bid_after_a_while() -> None:
    """The epoch stays unopened; someone may stand again."""
    stage = opened()
    bidding(stage)
    stage.run(0.9)
    assert stage.lives["b"].replica().bid is not None
    stage.run(0.3)
    assert stepped_down(stage, "b", "1 promises in time")


def test_promises_of_another_epoch_are_not_counted() -> None:
    """A late answer to an earlier bid opens nothing."""
    stage = opened()
    bid = bidding(stage)
    hears(stage, "b", "c", prom(1, epoch=1))
    assert list(bid.proms) == ["b"]
    hears(stage, "b", "c", prom(1))
    assert stage.lives["b"].replica().leading is not None


def test_a_promise_without_a_bid_is_dropped() -> None:
    """The bid is over, or never was."""
    stage = opened()
    assert hears(stage, "b", "c", prom(1), Fetched(0, 1, 2, 1, [])) == []


def test_who_is_linked_anew_is_asked_again() -> None:
    """The first question may have been lost with the link; who promised is not asked again."""
    stage = opened("abcde", faults=2)
    bid = bidding(stage, "b", epoch=2)
    hears(stage, "b", "c", prom(1))
    assert stage.lives["b"].replica().bid is bid
    told = len(stage.trace)
    for peer in "cd":
        stage.cut("b", peer)
        stage.join("b", peer)
    asked = [line for line in stage.trace[told:] if " Preq " in line]
    assert [line.split()[2] for line in asked] == ["d"]
    bid.ask()
    assert [peer for peer, _ in stage.lives["b"].member.take_ready().sends] == ["a", "d", "e"]


def test_a_promise_of_an_ended_life_counts_no_more() -> None:
    """A later life of the member has forgotten what was promised."""
    stage = opened("abcde", faults=2)
    bid = bidding(stage)
    hears(stage, "b", "c", prom(1))
    stage.lives["b"].member._learn_boots({"c": Boot(2, "x")})
    assert list(bid.proms) == ["b"]


# ---- the best tail -------------------------------------------------------------------------------


def test_the_end_of_whoever_holds_the_best_tail_ends_the_bid() -> None:
    """What was to be fetched is not there any more; the next bid looks again."""
    stage = opened()
    bidding(stage)
    assert hears(stage, "b", "c", prom(3)) == ["b > c Fetch epoch=2 after=1 (held)"]
    stage.lives["b"].member._learn_boots({"c": Boot(2, "x")})
    stage._carry_out(stage.lives["b"])
    assert stepped_down(stage, "b", "the member with the best log has gone")


def test_a_tail_arrives_in_parts_and_is_swapped_in_one_step() -> None:
    """Parts of others, repeated and empty ones are not taken; the own log stands until then."""
    stage = opened()
    bidding(stage)
    replica = stage.lives["b"].replica()
    hears(stage, "b", "c", prom(3))
    hears(stage, "b", "a", Fetched(0, 1, 2, 1, [entry(1, 1)]))
    hears(stage, "b", "c", Fetched(0, 1, 1, 1, [entry(1, 1)]), Fetched(0, 1, 2, 1, []))
    assert hears(stage, "b", "c", Fetched(0, 1, 2, 1, [entry(1, 1)])) == [
        "b > c Fetch epoch=2 after=2 (held)"
    ]
    assert hears(stage, "b", "c", Fetched(0, 1, 2, 1, [entry(1, 1)])) == []
    assert replica.log.last == 1
    hears(stage, "b", "a", prom(9))  # too late to be considered
    hears(stage, "b", "c", Fetched(0, 1, 2, 2, [entry(1, 2)]))
    assert replica.leading is not None
    assert replica.log.last == 4


@pytest.mark.parametrize("entries", [[entry(1, 1), entry(1, 2), entry(1, 3)], [entry(2, 1)] * 2])
def test_a_tail_that_is_not_the_promised_one_opens_nothing(entries: list[object]) -> None:
    """Its length and its last epoch must be what the promise said."""
    stage = opened()
    bidding(stage)
    hears(stage, "b", "c", prom(3))
    hears(stage, "b", "c", Fetched(0, 1, 2, 1, entries))  # type: ignore[arg-type]
    assert stepped_down(stage, "b", "not the promised one")
    assert stage.lives["b"].replica().log.last == 1


def test_a_fetch_that_stops_ends_the_bid() -> None:
    """The timer stands while the fetch progresses, and only then."""
    stage = opened()
    bidding(stage)
    stage.run(0.8)
    hears(stage, "b", "c", prom(3))
    stage.run(0.8)
    hears(stage, "b", "c", Fetched(0, 1, 2, 1, [entry(1, 1)]))
    stage.run(0.8)
    assert stage.lives["b"].replica().bid is not None
    stage.run(0.3)
    assert stepped_down(stage, "b", "promises in time")


def test_what_was_asked_on_a_link_that_is_gone_is_asked_again() -> None:
    """A fetch that a new link finds under way goes on at once, not when the bid loses patience."""
    stage = opened()
    bid = bidding(stage)
    assert hears(stage, "b", "c", prom(3)) == ["b > c Fetch epoch=2 after=1 (held)"]
    stage.give(stage.lives["b"], LinkUp("c", stage.lives["c"].member.ctx.boot))
    assert stage.trace.count("b > c Fetch epoch=2 after=1 (held)") == 2
    assert bid.best == "c"


def test_who_holds_what_cannot_be_fetched_is_invited() -> None:
    """Its log begins behind this member's commit: it coordinates instead."""
    stage = opened()
    bidding(stage)
    told = hears(stage, "b", "c", prom(9, base=5, commit=9))
    assert told[0] == "b * step_down g0 epoch=2 idx=1 (c holds more)"
    assert "b > c Invite epoch=2 (held)" in told


def test_a_tail_is_given_only_to_whom_it_was_promised() -> None:
    """Whoever was promised a higher epoch meanwhile alone may have it."""
    stage = opened()
    hears(stage, "b", "c", Preq(0, 1, 4))
    assert hears(stage, "b", "c", Fetch(0, 1, 4, 0)) == ["b > c Fetched epoch=4 [1@1 NOOP]"]
    assert hears(stage, "b", "c", Fetch(0, 1, 4, 1)) == []
    assert hears(stage, "b", "a", Fetch(0, 1, 4, 0)) == ["b > a Nack floor=1 promised=4"]
    assert hears(stage, "b", "c", Fetch(0, 1, 3, 0)) == ["b > c Nack floor=1 promised=4"]


# ---- late elections ------------------------------------------------------------------------------


def test_an_election_below_the_promise_is_not_used() -> None:
    """In the meantime this member promised a later epoch to somebody else."""
    stage = opened()
    b = stage.lives["b"]
    hears(stage, "b", "c", Preq(0, 1, 5))
    begin(b.replica(), Elected(0, 2, 1, 1, LIVES), None)
    stage._carry_out(b)
    assert b.replica().role is Role.FOLLOWER
    assert "b ZooKeeper release: null" in stage.trace


def test_an_election_above_another_floor_is_not_used() -> None:
    """The history that this member holds is void: it has to recover first."""
    stage = opened()
    b = stage.lives["b"]
    begin(b.replica(), Elected(0, 6, 4, 1, LIVES), None)
    stage._carry_out(b)
    assert (b.replica().floor, b.replica().normal) == (4, False)
    assert b.replica().role is Role.FOLLOWER


# ---- cold starts and the operator ----------------------------------------------------------------


def test_a_normal_answer_ends_a_cold_start() -> None:
    """Somebody has the history: it must not begin anew."""
    stage = staged()
    for name in "abc":
        stage.start(name)
    bidding(stage, "a", epoch=1)
    hears(stage, "a", "b", Prom(0, 0, 1, True, 0, 0, 0, 0))
    assert stepped_down(stage, "a", "a NORMAL member answered a cold start")


def test_a_group_that_was_open_once_needs_everybody_for_a_cold_start() -> None:
    """Who is missing may hold what was acknowledged."""
    stage = opened()
    for name in "abc":
        stage.crash(name)
        stage.expire(name)
    for name in "abc":
        stage.start(name)
    bid = bidding(stage, "a")
    recovering = Prom(0, 1, 2, False, 0, 0, 0, 0)
    hears(stage, "a", "b", recovering)
    assert not bid.raising
    hears(stage, "a", "c", recovering)
    assert bid.raising


def test_a_floor_that_could_not_be_raised_opens_nothing() -> None:
    """Another epoch was given out: this one must not begin a history."""
    stage = staged()
    for name in "abc":
        stage.start(name)
    stage.keeper_away = True
    bid = bidding(stage, "a", epoch=1)
    hears(stage, "a", "b", Prom(0, 0, 1, False, 0, 0, 0, 0))
    assert bid.raising
    token = max(stage.lives["a"].member.ctx.answers)
    hears(stage, "a", "c", Prom(0, 0, 1, False, 0, 0, 0, 0))  # it changes nothing now
    a = stage.lives["a"]
    stage.run(1.5)  # nor does time
    assert a.replica().bid is bid
    stage.give(a, KeeperAnswer(token, False))
    assert stepped_down(stage, "a", "before the floor rose")
    assert not a.replica().normal


def test_a_floor_that_rises_for_a_bid_that_is_over_is_nobodys() -> None:
    """The member has promised a later epoch while ZooKeeper raised the floor."""
    stage = staged()
    for name in "abc":
        stage.start(name)
    stage.keeper_away = True
    bidding(stage, "a", epoch=1)
    hears(stage, "a", "b", Prom(0, 0, 1, False, 0, 0, 0, 0))
    a = stage.lives["a"]
    token = max(a.member.ctx.answers)
    hears(stage, "a", "b", Preq(0, 0, 3))
    stage.give(a, KeeperAnswer(token, True))
    assert (a.replica().normal, a.replica().floor) == (False, 0)


def test_an_operators_order_loses_nothing_when_nothing_is_lost() -> None:
    """With a quorum of NORMAL members it is an ordinary takeover: the floor stays."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    stage.crash("a")
    stage.expire("a")
    stage.lives["b"].replica().forget_leader()
    stage.give(stage.lives["b"], RecoverWanted([0]))
    assert not any("refused" in line and "recover" in line for line in stage.trace)
    stage.run(0.3)
    b = stage.lives["b"].replica()
    assert (b.leading is not None, b.floor, b.commit) == (True, 1, 3)


def test_an_operators_order_goes_to_the_best_copy() -> None:
    """A NORMAL survivor with less than another one gives up in its favour."""
    stage = opened("abcde", faults=2)
    (name,) = (n for n in "abcde" if stage.lives[n].replica().leading is not None)
    worse, better, *rest = [n for n in "abcde" if n != name]
    hold(stage, f"{name}>{worse}", "App")
    hold(stage, "*>*", "CatchReq")
    publish(stage, name, item())
    stage.settle()
    for gone in (name, *rest):
        stage.crash(gone)
        stage.expire(gone)
    stage.run(2.5)
    stage.give(stage.lives[worse], RecoverWanted([0], without_quorum=True))
    stage.run(0.3)
    assert stepped_down(stage, worse, f"{better} has a better copy: recover there")
    stage.run(1.0)
    stage.give(stage.lives[better], RecoverWanted([0], without_quorum=True))
    stage.run(0.3)
    chosen = stage.lives[better].replica()
    assert chosen.leading is not None
    assert chosen.floor == chosen.epoch


def test_an_operator_can_give_up_everything() -> None:
    """Nobody who is left has anything: the group opens empty above a new floor."""
    stage = opened()
    for name in "abc":
        stage.crash(name)
        stage.expire(name)
    stage.start("a")
    stage.start("b")
    stage.run(1.0)
    stage.give(stage.lives["b"], RecoverWanted([0]))
    stage.run(0.3)
    b = stage.lives["b"].replica()
    assert (b.floor, b.normal, b.log.last) == (2, True, 1)
