"""The follower's part: promises, the fence, what an App proves, catching up, floors."""

from __future__ import annotations

import pytest

from coordinator.replica import Role
from migratory.wire.entry import NOOP, Entry
from migratory.wire.peer import App, Catch, CatchReq, Commit, Nack, Preq, SyncReq
from tests.unit.decider_stage import entry, hears, hold, item, opened, publish, staged

NOOP_2 = Entry(2, NOOP, 0, 0)


# ---- promises ------------------------------------------------------------------------------------


def test_an_epoch_is_promised_to_one_member() -> None:
    """The same candidate may ask again; another one with that epoch, or a lower one, may not."""
    stage = opened()
    assert "b > c Prom" in hears(stage, "b", "c", Preq(0, 1, 3))[-1]
    assert "b > c Prom" in hears(stage, "b", "c", Preq(0, 1, 3))[-1]
    assert hears(stage, "b", "a", Preq(0, 1, 3)) == ["b > a Nack floor=1 promised=3"]
    assert hears(stage, "b", "a", Preq(0, 1, 2)) == ["b > a Nack floor=1 promised=3"]


def test_a_promise_never_falls() -> None:
    """To ask for that is a bug, and ends the member."""
    replica = opened().lives["b"].replica()
    with pytest.raises(AssertionError):
        replica.promise(0, "c")


@pytest.mark.parametrize(("promised", "role"), [(1, Role.COORDINATOR), (2, Role.FOLLOWER)])
def test_a_nack_of_a_higher_epoch_ends_a_coordinator(promised: int, role: Role) -> None:
    """One that names the own epoch is old news."""
    stage = opened()
    hears(stage, "a", "b", Nack(0, 1, promised))
    assert stage.lives["a"].replica().role is role


def test_a_higher_floor_ends_a_coordinator() -> None:
    """Its history is void, and everybody is told."""
    stage = opened()
    hears(stage, "a", "b", SyncReq(0, 4, 4))
    replica = stage.lives["a"].replica()
    assert (replica.role, replica.normal, replica.floor) == (Role.FOLLOWER, False, 4)
    assert "a * step_down g0 epoch=1 idx=1 (the floor rose)" in stage.trace
    assert "a replaces the state of g0" in stage.trace


def test_a_lower_floor_is_answered_with_the_present_one() -> None:
    """Members of a void history learn that it is."""
    stage = opened()
    assert hears(stage, "b", "c", Preq(0, 0, 9)) == ["b > c Nack floor=1 promised=1"]


# ---- apps ----------------------------------------------------------------------------------------


def test_an_app_below_the_promise_is_not_stored() -> None:
    """The fence."""
    stage = opened()
    hears(stage, "b", "c", Preq(0, 1, 3))
    assert hears(stage, "b", "a", App(0, 1, 1, 1, 1, 1, [entry(1, 1)])) == [
        "b > a Nack floor=1 promised=3"
    ]
    assert stage.lives["b"].replica().log.last == 1


def test_an_app_that_does_not_fit_is_answered_with_what_is_committed() -> None:
    """Behind the log's end, or behind an entry of another epoch."""
    stage = opened("abcde", faults=2)
    for n in "abcde":
        stage.lives[n].replica().promise(2, "x")
    hint = ["b > a Hint epoch=2 commit=1"]
    assert hears(stage, "b", "a", App(0, 1, 2, 5, 2, 1, [NOOP_2])) == hint
    hears(stage, "b", "a", App(0, 1, 2, 1, 1, 1, [entry(1, 1)]))
    assert hears(stage, "b", "a", App(0, 1, 2, 2, 2, 1, [NOOP_2])) == hint


def test_an_acknowledgement_names_what_the_app_proved() -> None:
    """Not the end of the log, which may hold what another epoch left there."""
    stage = opened("abcde", faults=2)
    replica = stage.lives["b"].replica()
    replica.promise(2, "a")
    hears(stage, "b", "a", App(0, 1, 2, 1, 1, 1, [entry(1, 1), entry(1, 2), entry(1, 3)]))
    replica.promise(3, "c")
    told = hears(stage, "b", "c", App(0, 1, 3, 1, 1, 1, [entry(1, 1)]))
    assert told == ["b > c Ack epoch=3 idx=2"]
    assert replica.log.last == 4
    assert replica.proved(3) == 2
    assert replica.proved(2) == 1
    hears(stage, "b", "c", App(0, 1, 3, 2, 1, 1, [NOOP_2]))
    assert (replica.log.last, replica.log.last_epoch) == (3, 2)


def test_committed_entries_are_not_compared() -> None:
    """An App that begins before the commit index proves its end all the same."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    replica = stage.lives["b"].replica()
    noop = replica.log.entry(1)
    told = hears(stage, "b", "a", App(0, 1, 1, 0, 0, 2, [noop, replica.log.entry(2)]))
    assert told == ["b > a Ack epoch=1 idx=2"]
    assert hears(stage, "b", "a", App(0, 1, 1, 2, 1, 2, [])) == ["b > a Ack epoch=1 idx=2"]


def test_a_committed_entry_is_never_dropped() -> None:
    """To ask for that is a bug, and ends the member."""
    replica = opened().lives["b"].replica()
    with pytest.raises(AssertionError):
        replica.truncate(0)


def test_a_restarted_member_does_not_begin_from_nothing_twice() -> None:
    """An epoch that an earlier life may have voted in needs a transfer, also where it began."""
    stage = opened()
    stage.crash("c")
    stage.start("c")
    assert hears(stage, "c", "a", App(0, 1, 1, 0, 0, 0, [Entry(1, NOOP, 0, 0)])) == []
    assert not stage.lives["c"].replica().normal


@pytest.mark.parametrize(
    ("message", "commit"),
    [
        (Commit(0, 1, 2, 3), 3),
        (Commit(0, 1, 2, 9), 3),  # only what was proved
        (Commit(0, 1, 2, 1), 1),
        (Commit(0, 1, 3, 3), 1),  # an epoch that proved nothing here
    ],
)
def test_a_commit_reaches_what_its_epoch_proved(message: Commit, commit: int) -> None:
    """A coordinator's word counts for what is known to be its own."""
    stage = opened("abcde", faults=2)
    replica = stage.lives["b"].replica()
    hears(stage, "b", "a", App(0, 1, 2, 1, 1, 1, [entry(2, 1), NOOP_2]))
    hears(stage, "b", "a", message)
    assert replica.commit == commit


def test_a_commit_below_the_promise_meets_the_fence() -> None:
    """As an App would."""
    stage = opened()
    hears(stage, "b", "c", Preq(0, 1, 3))
    assert hears(stage, "b", "a", Commit(0, 1, 1, 1)) == ["b > a Nack floor=1 promised=3"]


# ---- catching up ---------------------------------------------------------------------------------


def test_only_committed_entries_are_handed_out() -> None:
    """Nothing below the log's base, nothing that is not committed, nothing by who has nothing."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "a", item())
    assert hears(stage, "a", "b", CatchReq(0, 1, 0)) == ["a > b Catch after=0@0 [1@1 NOOP]"]
    assert hears(stage, "a", "b", CatchReq(0, 1, 1)) == []
    fresh = staged()
    fresh.start("a")
    fresh.start("b")
    assert hears(fresh, "a", "b", CatchReq(0, 0, 0)) == []


def test_what_is_caught_up_with_raises_the_promise() -> None:
    """An App of an older epoch must not be stored behind it."""
    stage = opened()
    replica = stage.lives["b"].replica()
    told = hears(stage, "b", "c", Catch(0, 1, 1, 1, [entry(2, 1), NOOP_2]))
    assert told[-1] == "b > c CatchReq after=3"
    assert (replica.commit, replica.promised, replica.promised_to) == (3, 2, "")
    assert hears(stage, "b", "a", App(0, 1, 1, 3, 2, 1, [entry(1, 2)])) == [
        "b > a Nack floor=1 promised=2"
    ]


def test_catching_up_replaces_an_uncommitted_tail() -> None:
    """What is committed elsewhere stands in its place."""
    stage = opened("abcde", faults=2)
    replica = stage.lives["b"].replica()
    hears(stage, "b", "a", App(0, 1, 2, 1, 1, 1, [entry(2, 1), entry(2, 2)]))
    hears(stage, "b", "c", Catch(0, 1, 1, 1, [entry(2, 1), Entry(3, NOOP, 0, 0)]))
    assert (replica.log.last, replica.log.last_epoch, replica.commit) == (3, 3, 3)


def test_catching_up_with_what_is_stored_only_commits_it() -> None:
    """Entries that are there already are not stored again."""
    stage = opened("abcde", faults=2)
    replica = stage.lives["b"].replica()
    hears(stage, "b", "a", App(0, 1, 2, 1, 1, 1, [entry(2, 1), NOOP_2]))
    hears(stage, "b", "c", Catch(0, 1, 0, 0, [Entry(1, NOOP, 0, 0), entry(2, 1)]))
    assert (replica.log.last, replica.commit) == (3, 2)


@pytest.mark.parametrize(
    "message",
    [
        Catch(0, 1, 5, 1, [entry(1, 1)]),  # behind a hole
        Catch(0, 1, 0, 0, [Entry(1, NOOP, 0, 0)]),  # known
    ],
)
def test_what_does_not_continue_the_committed_is_not_taken(message: Catch) -> None:
    """A hole stays a hole; what is committed stays as it is."""
    stage = opened()
    assert hears(stage, "b", "c", message) == []
    assert stage.lives["b"].replica().commit == 1


def test_a_coordinator_catches_up_with_nobody() -> None:
    """What it holds is what others follow."""
    stage = opened()
    assert hears(stage, "a", "c", Catch(0, 1, 1, 1, [entry(1, 1)])) == []
    assert stage.lives["a"].replica().log.last == 1


# ---- the log -------------------------------------------------------------------------------------


def test_the_log_is_bounded_in_bytes() -> None:
    """Committed entries beyond the bound are let go; uncommitted ones never are."""
    stage = opened(log_bytes=500)
    replica = stage.lives["a"].replica()
    for n in range(1, 5):
        publish(stage, "a", item(n, "x" * 150))
        stage.settle()
    assert replica.log.bytes <= 500
    assert replica.log.base > 0
    hold(stage, "a>*", "App")
    publish(stage, "a", *(item(n, "x" * 150) for n in range(5, 9)))
    assert replica.log.bytes > 500
    assert replica.log.last - replica.commit == 4
