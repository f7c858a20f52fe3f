"""How a member enters the cluster and leaves it."""

from __future__ import annotations

import msgspec
import pytest

from coordinator.boot import boot, leave, register
from coordinator.cluster import Cluster
from coordinator.keeper import Booted, BootRefused, CoordNode, GroupNode, MemberNode, elect
from migratory.wire.ids import Boot
from tests.unit.keeper_stage import CFG, PATHS, Tree


def registered(tree: Tree, who: str) -> Boot | None:
    """Which life of a member is registered."""
    node = tree.node(PATHS.member(who))
    return None if node is None else msgspec.json.decode(node.value, type=MemberNode).boot


def test_a_member_counts_its_lives() -> None:
    """Every start has a higher number than the ones before."""
    tree = Tree()
    lives = [tree.booted("a") for _ in range(3)]
    assert [life.n for life in lives] == [1, 2, 3]
    assert registered(tree, "a") == lives[-1]


def test_a_member_learns_who_lives_and_which_epochs_were_given_out() -> None:
    """What it reads is what was written before it was visible."""
    tree = Tree()
    a = tree.booted("a", groups=2)
    tree.run("a", elect(PATHS, 1, "a", a, frozenset()))
    result = tree.boot("b", groups=2)
    assert isinstance(result, Booted)
    assert [node.epoch for node in result.groups] == [0, 1]
    assert result.boots == {"a": a, "b": result.boot}


@pytest.mark.parametrize("how", ["unsent", "done"])
@pytest.mark.parametrize("n", range(25))
def test_a_lost_connection_does_not_keep_a_member_out(n: int, how: str) -> None:
    """Whatever operation is lost, the member enters; a number may be skipped, never used twice."""
    tree = Tree()
    tree.booted("a")
    result = tree.boot("a", lost={n: how})
    assert isinstance(result, Booted)
    assert result.boot.n >= 2
    assert registered(tree, "a") == result.boot


def test_a_file_that_differs_from_the_clusters_is_refused() -> None:
    """The first member wrote the membership: another one with other ideas must not run."""
    tree = Tree()
    tree.booted("a")
    result = tree.run("b", boot(PATHS, "b", "uuid", b'{"members": 5}', 1, "p", "c"))
    assert isinstance(result, BootRefused)
    assert result.code == "CONFIG_MISMATCH"
    assert CFG.decode() in result.detail
    assert registered(tree, "b") is None


@pytest.mark.parametrize("n", range(14))
def test_of_two_processes_with_one_id_the_later_lives(n: int) -> None:
    """Whenever another start of the same member overtakes one, the higher number is registered."""
    tree = Tree()
    tree.booted("a")
    lives: list[Boot] = []
    race = {n: lambda: lives.append(tree.booted("a"))}
    result = tree.run("a", boot(PATHS, "a", "other", CFG, 1, "p", "c"), before=race)
    if 4 <= n <= 10:  # it had a number of its own, and was not seen as registered yet
        assert isinstance(result, BootRefused)
        assert result.code == "ID_IN_USE"
    else:
        assert isinstance(result, Booted)
        assert result.boot != lives[0]
        lives.append(result.boot)
    assert registered(tree, "a") == max(lives)


def test_coordinator_nodes_of_an_earlier_life_go_away() -> None:
    """Others need not wait for the session of a process that is known to be dead."""
    tree = Tree()
    a, b = tree.booted("a", groups=2), tree.booted("b", groups=2)
    tree.run("a", elect(PATHS, 0, "a", a, frozenset()))
    tree.run("b", elect(PATHS, 1, "b", b, frozenset()))
    tree.keeper.open_session("a")
    tree.booted("a", groups=2)
    assert tree.node(PATHS.coord(0)) is None
    held = tree.node(PATHS.coord(1))
    assert held is not None
    assert msgspec.json.decode(held.value, type=CoordNode).owner == "b"
    group = tree.node(PATHS.group(0))
    assert group is not None
    assert msgspec.json.decode(group.value, type=GroupNode).epoch == 1


def test_a_registration_comes_back_in_a_new_session() -> None:
    """After a lost session the same life registers again."""
    tree = Tree()
    a = tree.booted("a")
    tree.end_session("a")
    assert registered(tree, "a") is None
    assert tree.run("a", register(PATHS, "a", MemberNode(a, "p", "c"))) is True
    assert registered(tree, "a") == a


def test_a_superseded_life_does_not_register_again() -> None:
    """Nothing of the later life is overwritten."""
    tree = Tree()
    old = tree.booted("a")
    new = tree.booted("a")
    assert tree.run("a", register(PATHS, "a", MemberNode(old, "p", "c"))) is False
    assert registered(tree, "a") == new


def test_who_leaves_takes_its_registration_away() -> None:
    """Nobody has to wait for the session to end; that of another life stays."""
    tree = Tree()
    old = tree.booted("a")
    new = tree.booted("a")
    tree.run("a", leave(PATHS, "a", old))
    assert registered(tree, "a") == new
    tree.run("a", leave(PATHS, "a", new))
    assert registered(tree, "a") is None
    tree.run("a", leave(PATHS, "a", new))


def test_too_few_members_for_the_faults_are_refused() -> None:
    """N >= 2f + 1, or two quorums need not meet."""
    with pytest.raises(ValueError, match="cannot survive"):
        Cluster("x", ("a", "b"), 1)
