"""How the paper's own protocol fails, case by case (P1 to P20), and that this one does not.

The checker of the simulation looks at every step of each story: agreement, loss, order,
duplicates, promises, two coordinators, false acknowledgements.
"""

from __future__ import annotations

import pytest

from migratory.delivery.resume import resume
from migratory.wire.ids import Position
from migratory.wire.peer import Ack, App, Heartbeat, Pub, Refusal
from migratory.wire.shard import Gap, PubAck, Resumed
from tests.simulation.calm import TOPIC, CalmWorld


@pytest.fixture
def world() -> CalmWorld:
    """Three members, one group, somebody coordinates."""
    return CalmWorld()


def test_p1_the_winner_has_what_the_contact_acknowledged(world: CalmWorld) -> None:
    """The contact acked, the coordinator died, the winner never saw the message: it fetches it."""
    leader, contact, winner = world.cast()
    world.lost = lambda _from, to, message: to == winner and isinstance(message, App)
    acked = world.published(contact, 1)
    assert len(world.messages(winner)) == 0
    world.crash(leader)
    world.lost = lambda _from, _to, _message: False
    world.stand(winner, leader)
    world.go(1.0)
    assert world.coordinators() == [winner]
    assert [Position(e.epoch, e.seq) for e in world.messages(winner)] == [acked.position]


def test_p2_an_epoch_has_one_coordinator(world: CalmWorld) -> None:
    """Two members stand at the same moment: ZooKeeper gives the epoch to one of them."""
    leader, one, two = world.cast()
    before = world.replica(leader).epoch
    world.crash(leader)
    world.stand(one, leader)
    world.stand(two, leader)
    world.go(2.0)
    (winner,) = world.coordinators()
    assert world.replica(winner).epoch > before
    world.published(one, 1)


def test_p3_a_paused_coordinator_that_wakes_is_fenced(world: CalmWorld) -> None:
    """It wakes with a publication in its hands: that one goes through the new coordinator."""
    leader, contact, other = world.cast()
    world.published(contact, 1)
    world.pause(leader)
    ref = world.publish(leader, 1, b"late", pid="storyteller-0002")
    world.go(3.0)
    (winner,) = [name for name in world.coordinators() if name != leader]
    world.published(other, 2)
    world.resume(world.processes[leader])
    world.go(3.0)
    assert world.coordinators() == [winner]
    assert isinstance(world.answers[ref], PubAck | Refusal)
    assert [e.payload for e in world.messages(winner)][:2] == [b"1", b"2"]
    assert world.messages(leader) == world.messages(winner)


def test_p4_nothing_is_seen_before_two_hold_it(world: CalmWorld) -> None:
    """A coordinator alone with a message delivers nothing, acknowledges nothing, and may die."""
    leader, one, _ = world.cast()
    world.lost = lambda who, _to, message: who == leader and isinstance(message, App)
    ref = world.publish(leader, 1)
    world.go(0.3)
    assert world.messages(leader) == []
    assert ref not in world.answers
    world.crash(leader)
    world.lost = lambda _from, _to, _message: False
    world.go(3.0)
    assert world.messages(one) == []
    assert ref not in world.answers


def test_p5_sequences_go_on_across_epochs(world: CalmWorld) -> None:
    """A takeover opens an epoch, not a new count: a gap would be seen."""
    leader, one, _ = world.cast()
    for pseq in (1, 2, 3):
        world.published(one, pseq)
    world.crash(leader)
    world.go(3.0)
    for pseq in (4, 5):
        world.published(one, pseq)
    messages = world.messages(one)
    assert [e.seq for e in messages] == [1, 2, 3, 4, 5]
    assert messages[0].epoch < messages[-1].epoch


def test_p6_a_member_that_was_away_misses_nothing_of_any_coordinator(world: CalmWorld) -> None:
    """While it was cut off, the group went from one peer to another: it gets both's messages."""
    leader, heir, away = world.cast()
    world.published(heir, 1)
    world.cut_off(away, leader)
    world.cut_off(away, heir)
    world.go(1.5)
    world.published(heir, 2)
    world.hand_over(leader, heir)
    world.go(1.0)
    assert world.coordinators() == [heir]
    world.published(leader, 3)
    world.join(away, leader)
    world.join(away, heir)
    world.go(3.0)
    assert [e.payload for e in world.messages(away)] == [b"1", b"2", b"3"]


def test_p7_a_restarted_member_is_rebuilt_by_the_coordinator_alone(world: CalmWorld) -> None:
    """An old coordinator with entries that were never committed gives nothing, and steps down."""
    old, heir, restarted = world.cast()
    world.cut_off(old, heir)
    world.cut_off(old, restarted)
    world.publish(old, 1, b"fenced")
    world.go(4.0)
    (new,) = [name for name in world.coordinators() if name != old]
    world.published(new, 1, b"kept")
    world.crash(restarted if new == heir else heir)
    forgetful = restarted if new == heir else heir
    world.start(forgetful)
    world.go(3.0)
    world.join(old, forgetful)
    world.join(old, new)
    world.go(3.0)
    assert world.coordinators() == [new]
    kept = world.replica(new).state.head(TOPIC)
    assert kept == Position(world.replica(new).epoch, 1)
    assert world.replica(forgetful).state.head(TOPIC) == kept
    assert [e.payload for e in world.messages(old)] == [b"kept"]


def test_p8_a_member_that_forgot_does_not_vote(world: CalmWorld) -> None:
    """Coordinator and restarted member held the message, the third did not: nobody takes over."""
    leader, forgetful, third = world.cast()
    world.lost = lambda _from, to, message: to == third and isinstance(message, App)
    world.published(forgetful, 1)
    world.cut_off(leader, forgetful)
    world.crash(forgetful)
    world.start(forgetful)
    world.go(0.2)
    world.crash(leader)
    world.lost = lambda _from, _to, _message: False
    world.go(10.0)
    assert world.coordinators() == []
    assert world.replica(forgetful).waits_for_operator


def test_p9_a_coordinator_without_peers_lets_go(world: CalmWorld) -> None:
    """It still reaches ZooKeeper, and the group does not hang on it."""
    leader, one, two = world.cast()
    world.cut_off(leader, one)
    world.cut_off(leader, two)
    world.go(4.0)
    assert leader not in world.coordinators()
    world.published(one, 1)


def test_p10_a_coordinator_without_zookeeper_goes_on_alone(world: CalmWorld) -> None:
    """Its session is gone and its node with it; it is heard, so nobody splits the group."""
    leader, one, _ = world.cast()
    epoch = world.replica(leader).epoch
    world.keeper.expire(world.processes[leader])
    world.go(10.0)
    assert world.coordinators() == [leader]
    world.published(one, 1)
    world.reopen(world.processes[leader])
    world.go(2.0)
    assert world.coordinators() == [leader]
    assert world.replica(leader).epoch == epoch
    assert any(path.endswith("/coord") for path in world.keeper.tree)


def test_p11_a_wrong_guess_costs_a_hop(world: CalmWorld) -> None:
    """A contact that believes in the old coordinator is served all the same, once."""
    old, contact, new = world.cast()

    def news(_from: str, to: str, message: object) -> bool:
        return to == contact and isinstance(message, App | Heartbeat)

    world.lost = news
    world.hand_over(old, new)
    world.go(0.5)
    assert world.coordinators() == [new]
    assert world.replica(contact).leader == old
    ref = world.publish(contact, 1)
    world.go(0.1)
    world.lost = lambda _from, _to, _message: False
    world.go(1.0)
    assert isinstance(world.answers[ref], PubAck)
    assert len(world.messages(contact)) == 1


def test_p12_a_resend_across_a_failover_makes_no_second_copy(world: CalmWorld) -> None:
    """The answer was lost with the contact; the retry elsewhere gets the first copy's position."""
    leader, one, two = world.cast()
    first = world.published(leader, 1)
    world.crash(leader)
    world.go(3.0)
    again = world.published(one, 1)
    assert (again.position, again.duplicate) == (first.position, True)
    assert world.published(two, 2).position is not None
    assert [e.pseq for e in world.messages(one)] == [1, 2]


def test_p13_pipelined_messages_keep_their_order(world: CalmWorld) -> None:
    """The first of three is lost on its way: the others are refused, not put before it."""
    _, contact, _ = world.cast()

    def first(_from: str, _to: str, message: object) -> bool:
        return isinstance(message, Pub) and message.items[0].pseq == 1

    world.lost = first
    refs = [world.publish(contact, pseq) for pseq in (1, 2, 3)]
    world.go(0.1)
    assert {world.answers[ref].code for ref in refs[1:]} == {"UNKNOWN_PUBLISHER"}  # type: ignore[union-attr]
    world.lost = lambda _from, _to, _message: False
    for pseq in (1, 2, 3):
        world.publish(contact, pseq)
        world.go(0.01)  # links keep the order; the network of the simulation does not
    world.go(1.5)
    assert [e.pseq for e in world.messages(contact)] == [1, 2, 3]


def test_p14_a_subscriber_ahead_of_its_new_member_waits_for_it(world: CalmWorld) -> None:
    """It is not told that its position is unknown: a barrier shows that the member was behind."""
    _, fast, slow = world.cast()
    world.lost = lambda _from, to, message: to == slow and isinstance(message, App)
    position = world.published(fast, 1).position
    assert position is not None
    assert resume(world.view(slow), TOPIC, position, confirmed=False) is None
    world.lost = lambda _from, _to, _message: False
    ref = world.barrier(slow)
    world.go(0.9)
    assert [(done.ref, done.ok) for done in world.barriers] == [(ref, True)]
    start = resume(world.view(slow), TOPIC, position, confirmed=True)
    assert start is not None
    assert start.outcome == Resumed(0)


def test_p15_a_position_older_than_the_history_is_told_so(world: CalmWorld) -> None:
    """What is gone is named: delivery does not just start late."""
    _, contact, _ = world.cast()
    for pseq in range(1, 21):
        world.published(contact, pseq)
    start = resume(world.view(contact), TOPIC, Position(1, 1), confirmed=False)
    assert start is not None
    assert start.outcome == Gap(2, 13, 20)


def test_p16_a_quick_restart_is_another_life(world: CalmWorld) -> None:
    """The coordinator is killed and back at once with the same id: it has forgotten, and waits."""
    leader, one, _ = world.cast()
    world.published(one, 1)
    world.crash(leader)
    world.start(leader)
    world.go(4.0)
    world.published(leader, 2)
    head = world.replica(leader).state.head(TOPIC)
    assert head is not None
    assert head.sequence == 2


def test_p16_a_process_that_wakes_beside_its_replacement_counts_no_more(world: CalmWorld) -> None:
    """Only the latest life of a member is listened to; the earlier one changes nothing."""
    leader, sleeper, other = world.cast()
    old = world.processes[sleeper]
    world.pause(sleeper)
    world.start(sleeper)
    world.go(4.0)
    world.lost = lambda _from, to, message: to == other and isinstance(message, App)
    world.resume(old)
    world.published(leader, 1)
    world.go(2.0)
    assert world.processes[sleeper] is not old
    assert len(world.messages(sleeper)) == 1


def test_p17_a_session_lost_in_silence_changes_nothing(world: CalmWorld) -> None:
    """Nobody tells the members of their sessions' ends for ten seconds: they serve as before."""
    leader, one, _ = world.cast()
    for process in world.processes.values():
        world.keeper.expire(process)
    for pseq in range(1, 11):
        world.published(one, pseq)
        world.go(1.0)
    assert world.coordinators() == [leader]


def test_p18_all_sessions_end_at_once(world: CalmWorld) -> None:
    """The whole ensemble stalled: coordinators put their nodes back, under the same epochs."""
    leader, one, _ = world.cast()
    epoch = world.replica(leader).epoch
    world.keeper.stalled_until = world.now + 8.0
    for process in world.processes.values():
        world.keeper.expire(process)
    world.go(5.0)
    world.published(one, 1)
    world.go(4.0)
    for process in world.processes.values():
        world.reopen(process)
    world.go(3.0)
    assert world.coordinators() == [leader]
    assert world.replica(leader).epoch == epoch
    world.published(one, 2)


@pytest.mark.parametrize("seed", range(8))
def test_p19_an_election_of_unknown_outcome_is_read_back(seed: int) -> None:
    """Half of all answers of ZooKeeper are lost: one coordinator comes out of it, and its node."""
    world = CalmWorld(seed=seed)
    leader, one, _ = world.cast()
    world.keeper.loss = 0.5
    world.crash(leader)
    world.go(6.0)
    world.keeper.loss = 0.0
    world.go(4.0)
    (winner,) = world.coordinators()
    assert winner != leader
    world.published(one, 1)


def test_p20_wall_clocks_decide_nothing(world: CalmWorld) -> None:
    """Two coordinators whose wall clocks are two hours apart: nothing expires, nothing doubles."""
    leader, one, two = world.cast()
    world.processes[leader].clock.skew = 3_600_000
    world.processes[one].clock.skew = world.processes[two].clock.skew = -3_600_000
    world.published(one, 1)
    world.crash(leader)
    world.go(1.5)
    assert world.published(one, 1).duplicate
    world.published(two, 2)
    first, second = world.messages(one)
    assert first.ts > second.ts
    assert first.gt <= second.gt
    assert len(world.replica(one).state.topics[TOPIC].history) == 2


def test_acknowledgements_of_a_dead_coordinator_count_for_nobody(world: CalmWorld) -> None:
    """An Ack that arrives after its epoch is over is void."""
    leader, one, two = world.cast()
    world.lost = lambda _from, to, message: to == leader and isinstance(message, Ack)
    world.publish(leader, 1)
    world.go(0.2)
    world.hand_over(leader, one)
    world.go(0.2)
    world.lost = lambda _from, _to, _message: False
    world.go(3.0)
    assert [e.payload for e in world.messages(two)] == [b"1"]
