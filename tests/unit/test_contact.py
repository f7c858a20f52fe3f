"""The contact's part: every publication is answered once, by what became of it."""

from __future__ import annotations

from coordinator.events import BarrierWanted
from migratory.wire.ids import Position
from migratory.wire.peer import (
    Barrier,
    BarrierReq,
    Heartbeat,
    Nack,
    Pub,
    PubResult,
    Refused,
    Settled,
)
from tests.unit.decider_stage import hears, hold, item, opened, publish, staged


def result(
    contact: str, refused: list[Refused] | None = None, settled: list[Settled] | None = None
) -> PubResult:
    """An answer of the coordinator."""
    return PubResult(0, 1, contact, "a", refused or [], settled or [])


# ---- publications --------------------------------------------------------------------------------


def test_two_copies_of_a_publication_get_one_answer_each() -> None:
    """A client that asks again while the first copy is under way hears of both."""
    stage = opened()
    hold(stage, "a>c", "App")
    publish(stage, "c", item(ref=1))
    publish(stage, "c", item(ref=2))
    stage.settle()
    stage.holds.clear()
    stage.settle()
    assert {"c acks #1 at 1:1", "c acks #2 at 1:1"} <= set(stage.trace)


def test_of_two_messages_under_one_identity_only_one_goes_on() -> None:
    """The others in the same batch are not held up by it."""
    stage = opened()
    told = publish(stage, "c", item(1, "x", ref=1), item(1, "y", ref=2), item(2, "z", ref=3))
    assert told == [
        "c refuses #2 PSEQ_REUSED",
        'c > a Pub contact=c [#1 /t p/1 "x", #3 /t p/2 "z"]',
    ]


def test_a_message_without_a_publisher_is_refused_while_nobody_coordinates() -> None:
    """It cannot be sent again without a second copy, so it does not wait either."""
    stage = staged()
    stage.start("a")
    assert publish(stage, "a", item(pid="", ref=4)) == ["a refuses #4 RETRY"]
    assert publish(stage, "a", item(ref=5)) == []


def test_a_publication_waits_for_its_time_when_nobody_leads_to_the_coordinator() -> None:
    """Without a way to the coordinator its client is told to retry, and by whom it is led."""
    stage = opened()
    hold(stage, "*>c")
    stage.cut("a", "c")
    stage.cut("b", "c")
    assert publish(stage, "c", item()) == []
    stage.run(0.9)
    assert not any("refuses" in line for line in stage.trace)
    stage.run(0.2)
    assert "c refuses #1 RETRY leader=a" in stage.trace


def test_a_group_that_waits_for_the_operator_is_unavailable() -> None:
    """Clients are told that retrying will not help soon."""
    stage = opened()
    stage.lives["a"].replica().step_down("for the test")
    stage.holds.clear()
    b = stage.lives["b"].replica()
    b.forget_leader()
    b.waits_for_operator = True
    publish(stage, "b", item())
    stage.tick(1.1, ["b"])
    assert "b refuses #1 UNAVAILABLE" in stage.trace


def test_the_way_to_the_coordinator_leads_through_who_reaches_it() -> None:
    """Of the members that are heard, one that hears the coordinator passes things on."""
    stage = opened("abcde", faults=2)
    coordinator, contact, _, reaching = "d", "a", "b", "c"
    assert stage.lives[coordinator].replica().leading is not None
    peers = stage.lives[contact].member.ctx.peers
    peers[coordinator].suspected = True
    for name, peer in peers.items():
        peer.reaches = frozenset({coordinator}) if name == reaching else frozenset()
    assert publish(stage, contact, item()) == ['a > c Pub contact=a [#1 /t p/1 "x"]']


def test_a_wrong_guess_costs_one_hop() -> None:
    """A member that is not the coordinator says whom it knows; the contact forgets its guess."""
    stage = opened()
    told = hears(stage, "b", "c", Pub(0, 1, "a", [item()]))
    assert told == ["b > c PubResult contact=a leader=a []"]
    c = stage.lives["c"].replica()
    hears(stage, "c", "b", result("c"))
    assert c.leader == "a"  # b was not the guess
    hears(stage, "c", "a", result("c"))
    assert c.leader == ""


def test_a_publication_is_passed_on_once() -> None:
    """What came from another than its contact is not passed on again."""
    stage = opened()
    assert hears(stage, "b", "c", Pub(0, 1, "c", [item()])) == [
        'b > a Pub contact=c [#1 /t p/1 "x"]'
    ]
    assert hears(stage, "b", "a", Pub(0, 1, "a", [item()])) == [
        "b > a PubResult contact=a leader=a []"
    ]
    stage.lives["b"].member.ctx.peers["a"].suspected = True
    assert hears(stage, "b", "c", Pub(0, 1, "c", [item()])) == [
        "b > c PubResult contact=c leader=a []"
    ]


def test_answers_for_another_contact_are_passed_on() -> None:
    """To a member of the cluster, and not back to where they came from."""
    stage = opened()
    assert hears(stage, "b", "a", result("c")) == ["b > c PubResult contact=c leader=a []"]
    assert hears(stage, "b", "a", result("a")) == []
    assert hears(stage, "b", "a", result("nobody")) == []


def test_a_refusal_answers_the_copy_that_was_refused() -> None:
    """A later copy of the same publication may still be under way."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "c", item(ref=1))
    publish(stage, "c", item(ref=2))
    assert hears(stage, "c", "a", result("c", [Refused(item(ref=1), "BUSY")])) == [
        "c refuses #1 BUSY leader=a"
    ]
    assert hears(stage, "c", "a", result("c", [Refused(item(ref=1), "BUSY")])) == []
    assert hears(stage, "c", "a", result("c", [Refused(item(ref=2), "BUSY")])) == [
        "c refuses #2 BUSY leader=a"
    ]
    assert hears(stage, "c", "a", result("c", [Refused(item(ref=2), "BUSY")])) == []
    assert hears(stage, "c", "a", result("c", [Refused(item(pid="", ref=3), "BUSY")])) == [
        "c refuses #3 BUSY leader=a"
    ]


def test_an_answer_to_an_earlier_copy_is_not_taken_for_a_later_one() -> None:
    """Only who waits under that very number is acknowledged."""
    stage = opened()
    hold(stage, "a>*", "App")
    publish(stage, "c", item(ref=2))
    assert hears(stage, "c", "a", result("c", None, [Settled(item(ref=1), Position(1, 1))])) == []
    assert hears(stage, "c", "a", result("c", None, [Settled(item(ref=2), None)])) == [
        "c acks #2 at None duplicate"
    ]


def test_a_state_that_was_replaced_answers_what_it_shows() -> None:
    """Done, done before, reused and unknown are told apart; what is unknown waits on."""
    stage = opened(log_entries=1)
    publish(stage, "a", item(1, "one"), item(2, "two"))
    stage.settle()
    stage.trace.clear()
    hold(stage, "a>c", "App")
    hold(stage, "b>c")
    publish(stage, "a", item(3, "three"), item(4, "four"))
    stage.settle()
    contact = stage.lives["c"].replica().contact
    publish(stage, "c", item(3, "three", ref=13), item(4, "four", ref=14))
    publish(stage, "c", item(5, "five", ref=15))
    publish(stage, "c", item(1, "new", pid="q", ref=21))
    stage.drop("a>c", ["App"])
    stage.drop("c>a", ["Pub"])
    stage.holds.clear()
    stage.run(0.9)
    assert any("c replaces the state" in line for line in stage.trace)
    assert "c acks #13 at None duplicate" in stage.trace
    assert "c acks #14 at 1:4 duplicate" in stage.trace
    assert [wait.item.pseq for wait in contact.waiting.values()] == [5, 1]


def test_a_replaced_state_shows_a_reused_sequence() -> None:
    """The message that waits here is not the one that was committed."""
    stage = opened(log_entries=1)
    hold(stage, "a>c", "App")
    publish(stage, "a", item(1, "one"), item(2, "two"))
    stage.settle()
    publish(stage, "c", item(2, "TWO", ref=12))
    stage.drop("a>c", ["App"])
    stage.drop("c>a", ["Pub"])
    stage.holds.clear()
    stage.run(0.9)
    assert "c refuses #12 PSEQ_REUSED" in stage.trace


def test_waiting_publications_go_to_a_coordinator_that_is_trusted_again() -> None:
    """In the order of their publisher's sequence."""
    stage = opened()
    stage.cut("a", "c")
    stage.cut("b", "c")
    stage.run(1.2)
    publish(stage, "c", item(2, ref=2))
    publish(stage, "c", item(1, ref=1))
    stage.trace.clear()
    stage.join("a", "c")
    sent = [line for line in stage.trace if " Pub " in line]
    assert sent[0] == 'c > a Pub contact=c [#1 /t p/1 "x", #2 /t p/2 "x"]'


# ---- barriers ------------------------------------------------------------------------------------


def test_a_barrier_nobody_can_give_fails_in_its_time() -> None:
    """Whoever asked is not left waiting."""
    stage = staged()
    stage.start("a")
    stage.give(stage.lives["a"], BarrierWanted(0, 3))
    stage.tick(0.5)
    assert not any("barrier" in line for line in stage.trace)
    stage.tick(0.6)
    assert "a barrier #3 not passed" in stage.trace


def test_a_coordinator_gives_itself_a_barrier() -> None:
    """It is passed when the entry behind everything has been committed."""
    stage = opened()
    stage.give(stage.lives["a"], BarrierWanted(0, 3))
    assert "a barrier #3 passed" not in stage.trace
    stage.settle()
    assert "a barrier #3 passed" in stage.trace


def test_one_barrier_is_under_way_at_a_time() -> None:
    """Who comes meanwhile waits for the next one: the present one may be too early for it."""
    stage = opened()
    hold(stage, "a>*", "App")
    stage.give(stage.lives["a"], BarrierWanted(0, 3))
    stage.give(stage.lives["a"], BarrierWanted(0, 4))
    assert stage.lives["a"].replica().log.last == 2
    stage.holds.clear()
    stage.settle()
    assert [line for line in stage.trace if "barrier" in line] == [
        "a barrier #3 passed",
        "a barrier #4 passed",
    ]
    assert stage.lives["a"].replica().log.last == 3


def test_requests_for_barriers_go_through_one_member() -> None:
    """One hop towards the coordinator, and back to who asked; never further."""
    stage = opened()
    assert hears(stage, "b", "c", BarrierReq(0, 1, "c", 5)) == ["b > a BarrierReq contact=c ref=5"]
    assert hears(stage, "b", "c", BarrierReq(0, 1, "a", 5)) == []
    assert hears(stage, "b", "a", Barrier(0, 1, "c", 5, 1, 2)) == [
        "b > c Barrier contact=c ref=5 epoch=1 idx=2"
    ]
    assert hears(stage, "b", "a", Barrier(0, 1, "nobody", 5, 1, 2)) == []
    assert hears(stage, "b", "a", Barrier(0, 1, "b", 5, 1, 1)) == []  # nobody asked


def test_another_entry_at_the_barriers_index_proves_nothing() -> None:
    """A barrier of an epoch that was replaced is not passed."""
    stage = opened()
    stage.give(stage.lives["b"], BarrierWanted(0, 9))
    assert hears(stage, "b", "a", Barrier(0, 1, "b", 9, 7, 1)) == ["b barrier #9 not passed"]


def test_a_barrier_without_a_way_to_the_coordinator_waits() -> None:
    """It fails in its time, unless somebody leads there before."""
    stage = opened()
    b = stage.lives["b"]
    b.replica().forget_leader()
    stage.give(b, BarrierWanted(0, 9))
    assert stage.trace == []


def test_entries_that_nobody_waits_for_are_no_answers() -> None:
    """A contact acknowledges its own clients' publications and no others."""
    stage = opened()
    hold(stage, "a>c", "App")
    publish(stage, "c", item(1, pid="mine", ref=8))
    publish(stage, "a", item(1, pid="other", ref=9))
    stage.settle()
    stage.holds.clear()
    stage.settle()
    assert [line for line in stage.trace if " acks " in line and line.startswith("c")] == [
        "c acks #8 at 1:2"
    ]


def test_a_leader_that_is_told_by_a_heartbeat_gets_what_waits() -> None:
    """A new coordinator is told of everything unanswered, once."""
    stage = opened()
    c = stage.lives["c"]
    c.replica().forget_leader()
    publish(stage, "c", item())
    told = hears(stage, "c", "b", Heartbeat([(0, 4, 1)], [1], ["a", "c"], [], False))
    assert told == ['c > b Pub contact=c [#1 /t p/1 "x"]']
    assert hears(stage, "c", "b", Nack(0, 1, 4)) == []
