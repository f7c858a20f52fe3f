"""A member as a whole: lives, links, heartbeats, the operator, what people see."""

from __future__ import annotations

import pytest

from coordinator.events import KeeperAnswer, LinkUp, Publish, RecoverWanted, SessionOpened, Tick
from coordinator.keeper import GroupNode
from coordinator.replica import Role
from migratory.wire.ids import Boot
from migratory.wire.peer import Ack, App, Goodbye, Heartbeat, Invite, Nack, Preq, Publication
from tests.unit.decider_stage import hears, hears_life, hold, item, opened, publish, staged


def test_people_can_read_a_member() -> None:
    """One line says who it is, how much of it is NORMAL and what it coordinates."""
    stage = opened()
    a = stage.lives["a"].member
    assert repr(a) == "a(1-a) NORMAL in 1/1 coordinates 1"
    assert [repr(peer) for peer in a.ctx.peers.values()] == ["b(1-b) reached", "c(1-c) reached"]
    stage.cut("a", "b")
    stage.crash("c")
    a.ctx.peers["c"].draining = True
    assert [repr(peer) for peer in a.ctx.peers.values()] == [
        "b(1-b) unlinked",
        "c(1-c) suspected draining",
    ]


def test_the_snapshot_tells_the_state_of_groups_and_peers() -> None:
    """Status pages show what the member knows, and nothing is changed by looking."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    shown = stage.lives["a"].member.snapshot()
    assert shown["normal"]
    assert shown["peers"]["b"]["reached"]
    (group,) = shown["groups"]
    assert (group["role"], group["coordinator"], group["commit"]) == ("coordinator", "a", 2)
    assert group["followers"] == {"b": 2, "c": 2}
    assert stage.lives["b"].member.snapshot()["groups"][0]["followers"] == {}


def test_a_later_life_of_this_member_ends_this_one() -> None:
    """Two processes with one id never go on side by side."""
    stage = opened()
    stage.lives["b"].member._learn_boots({"b": Boot(9, "x")})
    assert stage.lives["b"].member.take_ready().exit == "SUPERSEDED"


def test_an_election_tells_an_earlier_life_that_it_is_over() -> None:
    """The winner reads who is registered; that may be a later life of itself."""
    stage = opened()
    stage.crash("a")
    old = stage.lives["b"]
    stage.keeper_away = True
    stage.run(0.3)
    stage.keeper_away = False
    stage.keeper.open_session("twin")
    path = f"/migratory/{stage.cluster.name}/members/b"
    node = stage.keeper.tree[path]
    stage.keeper.tree[path] = type(node)(node.value.replace(b"[1,", b"[2,"), 1, node.owner)
    stage.errands()
    assert "b exits: SUPERSEDED" in stage.trace
    assert old.dead


def test_strangers_and_earlier_lives_are_not_heard() -> None:
    """What a life said that is over, or somebody outside of the cluster, changes nothing."""
    stage = opened()
    stage.crash("b")
    stage.start("b")
    stage.run(0.5)
    stage.trace.clear()
    assert hears_life(stage, "a", "b", Boot(1, "b"), Preq(0, 1, 9)) == []
    assert hears_life(stage, "a", "z", Boot(1, "z"), Preq(0, 1, 9)) == []
    stage.give(stage.lives["a"], LinkUp("b", Boot(1, "b")))
    assert stage.trace == []
    assert stage.lives["a"].replica().promised == 1


def test_a_frame_can_tell_of_a_later_life() -> None:
    """What the earlier life acknowledged is not counted from then on."""
    stage = opened()
    leading = stage.lives["a"].replica().leading
    assert leading is not None
    assert leading.followers["b"].match == 1
    hears_life(stage, "a", "b", Boot(2, "later"))
    assert leading.followers["b"].match == 0


def test_messages_of_no_group_of_this_cluster_are_dropped() -> None:
    """A group number beyond the cluster's and a message of the link itself change nothing."""
    stage = opened()
    assert hears(stage, "a", "b", Ack(9, 1, 1, 1), Ack(-1, 1, 1, 1), Goodbye("X", "")) == []


@pytest.mark.parametrize(
    "heartbeat",
    [
        Heartbeat([], [], ["a"], [], True),
        Heartbeat([], [1], ["a"], [], True, [(5, 1, 0)]),
        Heartbeat([], [1], ["a"], [], True, [(0, 1, 7)]),
    ],
)
def test_a_heartbeat_of_another_cluster_is_not_taken_in(heartbeat: Heartbeat) -> None:
    """One that does not fit the number of groups or members says nothing."""
    stage = opened()
    hears(stage, "a", "b", heartbeat)
    assert not stage.lives["a"].member.ctx.peers["b"].draining


def test_a_claim_of_a_void_history_is_not_believed() -> None:
    """A coordinator below the floor of a group, or of a group that does not exist, is none."""
    stage = opened()
    hears(stage, "b", "c", Heartbeat([(0, 9, 0), (4, 9, 1)], [1], ["a", "b"], [], False))
    assert stage.lives["b"].replica().leader == "a"


def test_a_coordinator_that_leads_no_more_is_forgotten() -> None:
    """Its next heartbeat says so; one that leads again is believed again."""
    stage = opened()
    b = stage.lives["b"]
    hears(stage, "b", "a", Heartbeat([], [1], ["b", "c"], [], False))
    assert b.replica().leader == ""
    hears(stage, "b", "a", Heartbeat([(0, 1, 1)], [1], ["b", "c"], [], False))
    assert b.replica().leader == "a"


def test_a_coordinator_behind_a_cut_is_known_through_others() -> None:
    """A member that cannot hear a coordinator believes one that does."""
    stage = opened()
    stage.cut("a", "c")
    stage.crash("a")
    c = stage.lives["c"]
    c.replica().forget_leader()
    hears(
        stage,
        "c",
        "b",
        Heartbeat(
            [],
            [
                1,
            ],
            ["a", "c"],
            [],
            False,
            [(0, 5, 0)],
        ),
    )
    assert (c.replica().leader, c.replica().leader_epoch) == ("a", 5)


def test_a_late_invitation_is_recognised() -> None:
    """One of an epoch below the promise, or of a void history, is not followed."""
    stage = opened()
    publish(stage, "a", item())
    stage.settle()
    stage.lives["b"].replica().promise(3, "c")
    assert hears(stage, "b", "a", Invite(0, 1, 1)) == []
    assert hears(stage, "b", "a", Invite(0, 0, 5)) == ["b > a Nack floor=1 promised=3"]
    assert any("Elected" in line for line in hears(stage, "b", "a", Invite(0, 1, 3)))


def test_who_coordinates_does_not_follow_an_invitation() -> None:
    """The group has a coordinator already: this member."""
    stage = opened()
    assert hears(stage, "a", "b", Invite(0, 1, 1)) == []


def test_a_process_that_was_paused_suspects_nobody_at_once() -> None:
    """What it did not hear while it slept says nothing of the others."""
    stage = opened()
    hold(stage, "*>a")
    stage.tick(7.0, ["a"])
    assert stage.trace[0].startswith("a * paused")
    assert not any("suspect" in line for line in stage.trace)


def test_a_silent_peer_is_suspected_to_the_moment() -> None:
    """The member wakes when the silence is long enough, also between two heartbeats."""
    stage = opened()
    hold(stage, "b>a")
    a = stage.lives["a"].member
    silent = a.ctx.peers["b"].heard
    while not a.ctx.peers["b"].suspected:
        stage.now = a.next_wake()
        stage.give(stage.lives["a"], Tick())
        stage.settle()
    assert stage.now == silent + 1.0


def test_an_answer_nobody_waits_for_is_dropped() -> None:
    """ZooKeeper's answer to a question that was never asked changes nothing."""
    stage = opened()
    stage.give(stage.lives["a"], KeeperAnswer(999, None))
    assert stage.trace == []


def test_the_operator_cannot_recover_a_group_that_has_a_coordinator() -> None:
    """Nothing is lost there, so nothing may be thrown away."""
    stage = opened()
    stage.give(stage.lives["b"], RecoverWanted([0]))
    assert stage.trace == ["b * recover_refused g0 epoch=1 idx=0 (it is not leaderless)"]


def test_who_was_replaced_while_its_session_was_lost_steps_down() -> None:
    """The new session shows a higher epoch: the own one is over."""
    stage = opened()
    stage.keeper_away = True
    a = stage.lives["a"]
    stage.give(a, SessionOpened())
    token = max(a.member.ctx.answers)
    stage.give(a, KeeperAnswer(token, GroupNode(5, 1, "b", Boot(1, "b"))))
    assert a.replica().role is Role.FOLLOWER
    assert any("epoch 5 was given out" in line for line in stage.trace)


def test_a_group_state_that_is_not_newer_changes_nothing() -> None:
    """A read that shows the own epoch under another owner is no reason to step down."""
    stage = opened()
    stage.keeper_away = True
    a = stage.lives["a"]
    stage.give(a, SessionOpened())
    token = max(a.member.ctx.answers)
    stage.give(a, KeeperAnswer(token, GroupNode(1, 1, "a", Boot(1, "a"))))
    assert a.replica().role is Role.COORDINATOR


def test_a_node_put_back_too_late_is_taken_away_again() -> None:
    """Whoever stepped down meanwhile holds no node."""
    stage = opened()
    stage.keeper_away = True
    stage.expire("a")
    hears(stage, "a", "b", Nack(0, 1, 4))
    assert stage.lives["a"].replica().role is Role.FOLLOWER
    stage.keeper_away = False
    stage.errands()
    assert f"/migratory/{stage.cluster.name}/g/0/coord" not in stage.keeper.tree


def test_room_on_a_link_bounds_what_is_sent_at_a_time() -> None:
    """The rest is sent when there is room again."""
    stage = opened()
    a = stage.lives["a"].member
    a.step(Publish([Publication("/t", b"x" * 5000) for _ in range(4)]), stage.now)
    assert len(a.collect("b", 6000)) == 2
    assert a.ctx.waiting_for_peer["b"] == {0: None}
    assert len(a.collect("b", 60000)) == 1
    assert a.ctx.waiting_for_peer["b"] == {}


def test_a_coordinator_that_never_said_that_it_leads_is_forgotten() -> None:
    """An App made it known; its heartbeats do not speak of it, and no App comes any more."""
    stage = opened()
    b = stage.lives["b"]
    hears(stage, "b", "c", App(0, 1, 5, 1, 1, 1, []))
    quiet = Heartbeat([], [1], ["a", "b"], [], False)
    hears(stage, "b", "c", quiet)
    assert b.replica().leader == "c"  # an App may have come just now
    stage.tick(0.5, ["a"])
    hears(stage, "b", "c", quiet)
    assert b.replica().leader == ""


def test_clients_leave_a_member_that_stays_behind() -> None:
    """They find a better one, and may come back when it has caught up."""
    stage = opened()
    hold(stage, "a>c", "App")
    hold(stage, "c>*", "CatchReq")
    publish(stage, "a", item())
    stage.run(4.0)
    assert stage.trace.count("c closes its clients: BEHIND") == 0
    stage.run(2.0)
    assert stage.trace.count("c closes its clients: BEHIND") == 1
    assert not stage.lives["c"].member.serving
    stage.holds.clear()
    stage.run(1.0)
    assert stage.trace[-1] == "c * serving"


def test_a_follower_that_is_streamed_to_asks_nobody_else() -> None:
    """It is behind only as long as what is on the way takes."""
    stage = opened()
    hold(stage, "a>c", "App")
    for n in range(1, 12):
        publish(stage, "a", item(n))
        stage.run(0.1)
        hears(stage, "c", "a", App(0, 1, 1, 1, 1, 1, []))
    assert not any("CatchReq" in line for line in stage.trace)


def test_a_follower_has_no_quorum_to_keep() -> None:
    """Only coordinators let groups go."""
    stage = opened()
    b = stage.lives["b"]
    b.member.upkeep.keep_quorum(b.replica())
    assert stage.trace == []


def test_a_cluster_of_one_needs_nobody() -> None:
    """Without faults to survive, one copy is a commit."""
    stage = staged("a", faults=0)
    stage.start("a")
    stage.run(0.2)
    stage.trace.clear()
    assert "a acks #1 at 1:1" in publish(stage, "a", item())


def test_a_member_wakes_soon_while_something_is_under_way() -> None:
    """And otherwise for its heartbeat only."""
    stage = opened()
    b = stage.lives["b"].member
    assert b.next_wake() == pytest.approx(stage.now + 0.2, abs=0.21)
    publish(stage, "b", item())
    stage.tick(0.0)
    assert b.next_wake() <= stage.now + 0.021
