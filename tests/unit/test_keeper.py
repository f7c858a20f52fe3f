"""Procedures in ZooKeeper: every write is conditional, and an unknown outcome is read back."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.keeper import (
    NEVER,
    CoordNode,
    Create,
    Delete,
    Elected,
    Fault,
    GroupNode,
    Multi,
    Node,
    NotElected,
    Set,
    decode_group,
    elect,
    raise_floor,
    reattach,
    release,
)
from migratory.wire.ids import Boot
from tests.unit.keeper_stage import PATHS, Tree

LOSSES = [(n, how) for n in range(9) for how in ("unsent", "done")]
NOBODY: frozenset[str] = frozenset()


def coord(tree: Tree) -> CoordNode | None:
    """Who coordinates the group."""
    node = tree.node(PATHS.coord(0))
    return None if node is None else msgspec.json.decode(node.value, type=CoordNode)


def group(tree: Tree) -> GroupNode:
    """The epochs of the group."""
    return decode_group(tree.node(PATHS.group(0)) or Fault.NO_NODE)


def won(tree: Tree, who: str, boot: Boot) -> Elected:
    """An election that is won."""
    result = tree.run(who, elect(PATHS, 0, who, boot, NOBODY))
    assert isinstance(result, Elected)
    return result


# ---- elect ---------------------------------------------------------------------------------------


def test_an_election_takes_the_next_epoch_and_tells_who_lives() -> None:
    """The winner holds the next epoch, a node of its own, and the boots of all members."""
    tree = Tree()
    a, b = tree.booted("a"), tree.booted("b")
    result = won(tree, "a", a)
    assert (result.epoch, result.floor, result.boots) == (1, 0, {"a": a, "b": b})
    assert coord(tree) == CoordNode(1, "a", a)
    assert group(tree) == GroupNode(1, 0, "a", a)


def test_a_group_that_zookeeper_does_not_know_has_no_election() -> None:
    """Nothing is created for a group beyond the cluster's."""
    tree = Tree()
    a = tree.booted("a")
    result = tree.run("a", elect(PATHS, 7, "a", a, NOBODY))
    assert result == NotElected(7, 0, 0, None)


@pytest.mark.parametrize(("depose", "epoch"), [(NOBODY, 1), (frozenset({"a"}), 2)])
def test_a_coordinator_is_deposed_only_on_suspicion(depose: frozenset[str], epoch: int) -> None:
    """The node of a coordinator that nobody suspects stays, and its epoch with it."""
    tree = Tree()
    a, b = tree.booted("a"), tree.booted("b")
    won(tree, "a", a)
    result = tree.run("b", elect(PATHS, 0, "b", b, depose))
    assert group(tree).epoch == epoch
    if depose:
        assert isinstance(result, Elected)
    else:
        assert result == NotElected(0, 1, 0, CoordNode(1, "a", a))


def test_a_coordinator_does_not_depose_itself() -> None:
    """Who holds the group already gets no second epoch for it."""
    tree = Tree()
    a = tree.booted("a")
    won(tree, "a", a)
    assert tree.run("a", elect(PATHS, 0, "a", a, NOBODY)) == NotElected(
        0, 1, 0, CoordNode(1, "a", a)
    )


def test_of_two_elections_at_once_one_is_won() -> None:
    """The version of the group's node lets only one of two read epochs be taken."""
    tree = Tree()
    a, b = tree.booted("a"), tree.booted("b")
    result = tree.run("a", elect(PATHS, 0, "a", a, NOBODY), before={1: lambda: won(tree, "b", b)})
    assert result == NotElected(0, 1, 0, None)
    assert coord(tree) == CoordNode(1, "b", b)


@pytest.mark.parametrize(("n", "how"), LOSSES)
def test_an_election_knows_its_outcome_after_a_lost_connection(n: int, how: str) -> None:
    """Whatever operation is lost, won and not won are told apart and no epoch is shared."""
    tree = Tree()
    a = tree.booted("a")
    result = tree.run("a", elect(PATHS, 0, "a", a, NOBODY), lost={n: how})
    if isinstance(result, Elected):
        assert coord(tree) == CoordNode(result.epoch, "a", a)
        assert group(tree).epoch == result.epoch
    else:
        assert (n, how) == (1, "unsent")
        assert coord(tree) is None


@pytest.mark.parametrize("n", range(2, 6))
def test_reading_back_goes_on_through_further_losses(n: int) -> None:
    """Two connections lost in a row change nothing either."""
    tree = Tree()
    a = tree.booted("a")
    result = tree.run("a", elect(PATHS, 0, "a", a, NOBODY), lost={1: "done", n: "unsent"})
    assert isinstance(result, Elected)


def test_a_node_of_an_ended_session_is_no_victory() -> None:
    """A transaction of unknown outcome counts only while the session that made it lives."""
    tree = Tree()
    a = tree.booted("a")
    result = tree.run(
        "a",
        elect(PATHS, 0, "a", a, NOBODY),
        lost={1: "done"},
        before={2: lambda: tree.end_session("a")},
    )
    assert result == NotElected(0, 1, 0, None)


# ---- release -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "how"), LOSSES)
def test_a_release_takes_the_node_away_whatever_is_lost(n: int, how: str) -> None:
    """The node of the epoch is gone in the end."""
    tree = Tree()
    a = tree.booted("a")
    won(tree, "a", a)
    tree.run("a", release(PATHS, 0, a, 1), lost={n: how})
    assert coord(tree) is None


def test_a_release_spares_the_node_of_another_epoch() -> None:
    """A late release of an old epoch does not touch the present coordinator, not even oneself."""
    tree = Tree()
    a = tree.booted("a")
    won(tree, "a", a)
    tree.run("a", release(PATHS, 0, a, 1))
    won(tree, "a", a)
    tree.run("a", release(PATHS, 0, a, 1))
    assert coord(tree) == CoordNode(2, "a", a)


def test_a_release_loses_the_race_against_the_next_epoch() -> None:
    """The node of a later epoch has the same version 0; the group's version tells them apart."""
    tree = Tree()
    a, b = tree.booted("a"), tree.booted("b")
    won(tree, "a", a)
    deposing = elect(PATHS, 0, "b", b, frozenset({"a"}))
    tree.run("a", release(PATHS, 0, a, 1), before={2: lambda: tree.run("b", deposing)})
    assert coord(tree) == CoordNode(2, "b", b)


def test_a_release_without_a_node_does_nothing() -> None:
    """Nothing there, nothing to do."""
    tree = Tree()
    a = tree.booted("a")
    tree.run("a", release(PATHS, 0, a, 1))
    assert not any(isinstance(op, Multi) for op in tree.ops)


# ---- reattach ------------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "how"), LOSSES)
def test_a_coordinator_puts_its_node_back_under_the_same_epoch(n: int, how: str) -> None:
    """A new session takes nothing away from an epoch, whatever connection is lost."""
    tree = Tree()
    a = tree.booted("a")
    won(tree, "a", a)
    tree.end_session("a")
    assert tree.run("a", reattach(PATHS, 0, "a", a, 1), lost={n: how}) is None
    node = tree.node(PATHS.coord(0))
    assert node is not None
    assert node.owner == tree.keeper.sessions["a"]
    assert group(tree).epoch == 1


def test_a_node_of_the_old_session_is_replaced() -> None:
    """Left there, it would vanish with the old session, and the coordinator with it."""
    tree = Tree()
    a = tree.booted("a")
    won(tree, "a", a)
    old = tree.node(PATHS.coord(0))
    tree.keeper.open_session("a")  # the old one has not expired yet
    assert tree.run("a", reattach(PATHS, 0, "a", a, 1)) is None
    new = tree.node(PATHS.coord(0))
    assert old is not None
    assert new is not None
    assert new.owner != old.owner


def test_who_was_replaced_is_told_so() -> None:
    """Another epoch was given out: the state of the group comes back, and nothing is written."""
    tree = Tree()
    a, b = tree.booted("a"), tree.booted("b")
    won(tree, "a", a)
    tree.end_session("a")
    won(tree, "b", b)
    assert tree.run("a", reattach(PATHS, 0, "a", a, 1)) == GroupNode(2, 0, "b", b)
    assert coord(tree) == CoordNode(2, "b", b)


def test_a_group_that_is_gone_cannot_be_held() -> None:
    """Without the group's node there is nothing to attach to."""
    assert Tree().run("a", reattach(PATHS, 0, "a", Boot(1, "x"), 1)) == NEVER


# ---- the floor -----------------------------------------------------------------------------------


@pytest.mark.parametrize(("n", "how"), LOSSES)
def test_the_floor_rises_once_whatever_is_lost(n: int, how: str) -> None:
    """The floor is the epoch in the end, and the epoch is the same."""
    tree = Tree()
    a = tree.booted("a")
    won(tree, "a", a)
    assert tree.run("a", raise_floor(PATHS, 0, "a", a, 1), lost={n: how, 2: "unsent"}) is True
    assert group(tree) == GroupNode(1, 1, "a", a)


def test_the_floor_does_not_rise_below_a_later_epoch() -> None:
    """Whoever was deposed meanwhile cannot throw history away."""
    tree = Tree()
    a, b = tree.booted("a"), tree.booted("b")
    won(tree, "a", a)
    deposing = elect(PATHS, 0, "b", b, frozenset({"a"}))
    race = {1: lambda: tree.run("b", deposing)}
    assert tree.run("a", raise_floor(PATHS, 0, "a", a, 1), before=race) is False
    assert group(tree) == GroupNode(2, 0, "b", b)


def test_writes_are_conditional() -> None:
    """No procedure changes or deletes a node without naming its version."""
    tree = Tree()
    a = tree.booted("a")
    for procedure in (
        elect(PATHS, 0, "a", a, NOBODY),
        raise_floor(PATHS, 0, "a", a, 1),
        release(PATHS, 0, a, 1),
    ):
        tree.run("a", procedure)
        writes = [op for multi in tree.ops if isinstance(multi, Multi) for op in multi.ops]
        assert writes
        assert all(isinstance(op, Create) or op.version >= 0 for op in writes)
        assert all(isinstance(op, Create | Set | Delete) or op.version >= 0 for op in writes)


def test_an_empty_node_is_a_group_that_was_never_touched() -> None:
    """A group begins with epoch 0."""
    assert decode_group(Node(b"", 0)) == NEVER
    assert decode_group(Fault.NO_NODE) == NEVER
