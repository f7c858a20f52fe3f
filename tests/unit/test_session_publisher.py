"""The publisher's half of a session, by scripted frames."""

from __future__ import annotations

import pytest

from client_sdk.errors import NotPublished, OutcomeUnknown
from migratory.wire import client as wire
from migratory.wire.ids import Position
from tests.unit.session_stage import Bench, ack, nack, numbers


def connected(**config: object) -> Bench:
    """A bench whose session is welcomed."""
    bench = Bench(**config)
    bench.connect()
    return bench


def test_waiting_messages_go_out_in_one_frame() -> None:
    """Whatever waits when the sender wakes travels together, numbered per topic."""
    bench = connected()
    bench.publish("/a", "1", "2")
    bench.publish("/b", "3")
    (frame,) = bench.sent(wire.Publish)
    assert numbers([frame]) == [("/a", 1, "1"), ("/a", 2, "2"), ("/b", 1, "3")]
    assert bench.send() == []


def test_an_ack_settles_with_the_position() -> None:
    """Answers find their messages by frame and index, in any order."""
    bench = connected()
    one, two = bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (1, 3, 42)))
    assert bench.session.take_settled() == [two]
    bench.hear(wire.Ack([wire.Acked(frame.id, 0, 3, 41, duplicate=True)]))
    assert bench.session.take_settled() == [one]
    assert (one.position, one.duplicate, one.error) == (Position(3, 41), True, None)
    assert (two.position, two.duplicate) == (Position(3, 42), False)
    assert bench.session.pending == 0


def test_nothing_is_published_before_the_welcome() -> None:
    """The limits of a contact are known before anything is measured by them."""
    bench = Bench()
    bench.publish("/a", "1")
    bench.session.opened(bench.now)
    assert [type(frame) for frame in bench.send()] == [wire.Connect]


def test_a_lost_connection_resends_in_order_under_the_same_numbers() -> None:
    """What was not answered goes out again first; what was, does not; new ones follow."""
    bench = connected()
    bench.publish("/a", "1", "2", "3")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (1, 3, 42)))
    bench.drop()
    bench.publish("/a", "4")
    _, again = bench.connect()
    assert isinstance(again, wire.Publish)
    assert again.pid == frame.pid
    assert numbers([again]) == [("/a", 1, "1"), ("/a", 3, "3"), ("/a", 4, "4")]
    assert bench.session.pending == 3


def test_answers_of_a_lost_connection_are_void() -> None:
    """Frame ids are never used twice, so an old answer settles nothing."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    bench.drop()
    _, again = bench.connect()
    bench.hear(ack(frame, (0, 1, 1)))
    assert bench.session.take_settled() == []
    bench.hear(ack(again, (0, 1, 1)))  # type: ignore[arg-type]
    assert len(bench.session.take_settled()) == 1


def test_nonsense_answers_are_void() -> None:
    """An index out of the frame, or one answered already, settles nothing twice."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (7, 1, 1)), ack(frame, (0, 1, 1)), ack(frame, (0, 1, 1)))
    assert len(bench.session.take_settled()) == 1
    assert bench.session.pending == 1


def test_a_gap_is_one_rewind() -> None:
    """Refusals of everything after a missing message send it all again once, from the gap."""
    bench = connected()
    bench.publish("/a", "1", "2", "3")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (0, 1, 1)))
    bench.hear(nack(frame, 1, "OUT_OF_ORDER", expected=2))
    bench.hear(nack(frame, 2, "OUT_OF_ORDER", expected=2))
    (again,) = bench.sent(wire.Publish)
    assert numbers([again]) == [("/a", 2, "2"), ("/a", 3, "3")]
    assert [m.rewind for m in again.messages] == [1, 1]
    assert bench.send() == []


def test_a_rewind_goes_back_to_the_expected_message() -> None:
    """The gap is where the coordinator says, though that message itself has no answer yet."""
    bench = connected()
    bench.publish("/a", "1", "2", "3")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 2, "OUT_OF_ORDER", expected=2))
    assert numbers(bench.sent(wire.Publish)) == [("/a", 2, "2"), ("/a", 3, "3")]


def test_messages_before_the_expected_one_wait_for_their_own_answers() -> None:
    """They are stored already; a later refusal of theirs is still heeded."""
    bench = connected()
    bench.publish("/a", "1", "2", "3")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 2, "OUT_OF_ORDER", expected=3))
    (again,) = bench.sent(wire.Publish)
    assert numbers([again]) == [("/a", 3, "3")]
    bench.hear(nack(frame, 0, "RETRY", retry_after=100))
    bench.now += 0.1
    assert numbers(bench.sent(wire.Publish)) == [("/a", 1, "1"), ("/a", 2, "2"), ("/a", 3, "3")]


@pytest.mark.parametrize("expected", [0, 1, 9])
def test_an_impossible_expectation_sends_all_again(expected: int) -> None:
    """A coordinator of the past may expect what was acknowledged: nothing is lost by that."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (0, 1, 1)))
    bench.hear(nack(frame, 1, "OUT_OF_ORDER", expected=expected))
    (again,) = bench.sent(wire.Publish)
    assert numbers([again]) == [("/a", 2, "2")]


def test_an_ack_of_an_earlier_attempt_counts() -> None:
    """A message that waits to be resent is not resent once any attempt is acknowledged."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "RETRY", retry_after=200))
    bench.hear(ack(frame, (1, 1, 2)))
    bench.now += 0.2
    (again,) = bench.sent(wire.Publish)
    assert numbers([again]) == [("/a", 1, "1")]


@pytest.mark.parametrize("code", ["RETRY", "BUSY", "UNAVAILABLE", "TOO_FAST"])
def test_a_refusal_for_now_is_retried_after_the_stated_time(code: str) -> None:
    """Nothing of the topic is sent before, other topics are not affected."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, code, retry_after=300))
    bench.publish("/a", "2")
    bench.publish("/b", "3")
    assert numbers(bench.sent(wire.Publish)) == [("/b", 1, "3")]
    assert bench.session.next_wake() == pytest.approx(bench.now + 0.3)
    bench.now += 0.3
    assert numbers(bench.sent(wire.Publish)) == [("/a", 1, "1"), ("/a", 2, "2")]


def test_repeated_refusals_are_retried_more_slowly_until_an_ack() -> None:
    """Without a stated time the delay grows, within its bound, and falls after success."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    waits = []
    for _ in range(10):
        bench.hear(nack(frame, 0, "BUSY"))
        wake = bench.session.next_wake()
        assert wake is not None
        waits.append(wake - bench.now)
        bench.now = wake
        (frame,) = bench.sent(wire.Publish)
        bench.hear(wire.Pong())
    assert 0.025 <= waits[0] <= 0.05
    assert 1.0 <= waits[-1] <= 2.0
    bench.hear(ack(frame, (0, 1, 1)))
    bench.publish("/a", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "BUSY"))
    wake = bench.session.next_wake()
    assert wake is not None
    assert wake - bench.now <= 0.05


def test_a_delay_that_is_over_does_not_spin_before_the_welcome() -> None:
    """Until the server is known nothing can be sent, so there is nothing to wake up for."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "BUSY", retry_after=300))
    bench.drop()
    bench.now += 1
    bench.session.opened(bench.now)
    bench.send()
    wake = bench.session.next_wake()
    assert wake is not None
    assert wake > bench.now


def test_a_delay_does_not_outlive_its_connection() -> None:
    """On the next connection what is open goes out at once; the old alarm is void."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "BUSY", retry_after=5000))
    bench.drop()
    _, again = bench.connect()
    assert numbers([again]) == [("/a", 1, "1")]  # type: ignore[list-item]
    bench.hear(nack(again, 0, "BUSY", retry_after=7000))  # type: ignore[arg-type]
    bench.now += 5
    assert bench.send() == []
    bench.now += 2
    bench.hear(wire.Pong())
    assert numbers(bench.sent(wire.Publish)) == [("/a", 1, "1")]


def test_a_refusal_that_points_elsewhere_ends_the_connection() -> None:
    """The message is sent again on the next one."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "GO_ELSEWHERE"))
    assert bench.session.leave is not None
    bench.drop()
    _, again = bench.connect()
    assert numbers([again]) == [("/a", 1, "1")]  # type: ignore[list-item]


def test_an_unknown_publisher_whose_first_message_was_refused_starts_again() -> None:
    """Pipelined 1, 2 with 1 refused: 2 is unknown to the cluster, and nothing is in doubt."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 1, "UNKNOWN_PUBLISHER"), nack(frame, 0, "BUSY"))
    (again,) = bench.sent(wire.Publish)
    assert again.pid == frame.pid
    assert numbers([again]) == [("/a", 1, "1"), ("/a", 2, "2")]


def test_a_forgotten_publisher_is_an_unknown_outcome() -> None:
    """Everything under way in the topic is in doubt; the next message has a fresh pid."""
    bench = connected()
    bench.publish("/a", "1", "2", "3")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (0, 1, 1)))
    bench.session.take_settled()
    bench.hear(nack(frame, 1, "UNKNOWN_PUBLISHER"), nack(frame, 2, "UNKNOWN_PUBLISHER"))
    settled = bench.session.take_settled()
    assert [type(message.error) for message in settled] == [OutcomeUnknown, OutcomeUnknown]
    bench.publish("/a", "4")
    (after,) = bench.sent(wire.Publish)
    assert after.pid != frame.pid
    assert numbers([after]) == [("/a", 1, "4")]


def test_a_late_ack_of_an_unknown_outcome_changes_nothing() -> None:
    """What was reported stays reported."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (0, 1, 1)), nack(frame, 1, "PSEQ_REUSED"))
    assert len(bench.session.take_settled()) == 2
    bench.hear(ack(frame, (1, 1, 2)))
    assert bench.session.take_settled() == []


def test_a_refusal_for_good_of_the_only_attempt_is_certain() -> None:
    """The message is not published; those after it fail by their own refusals; then it goes on."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "NOT_ALLOWED"))
    bench.publish("/a", "3")
    assert bench.send() == []
    bench.hear(nack(frame, 1, "OUT_OF_ORDER", expected=1))
    one, two = bench.session.take_settled()
    assert [type(m.error) for m in (one, two)] == [NotPublished, NotPublished]
    assert one.error is not None
    assert one.error.code == "NOT_ALLOWED"
    (after,) = bench.sent(wire.Publish)
    assert after.pid != frame.pid
    assert numbers([after]) == [("/a", 1, "3")]


def test_an_open_answer_after_a_refusal_for_good_is_in_doubt() -> None:
    """RETRY tells nothing of what became of an attempt."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "FROM_THE_FUTURE"), nack(frame, 1, "RETRY"))
    one, two = bench.session.take_settled()
    assert isinstance(one.error, NotPublished)
    assert isinstance(two.error, OutcomeUnknown)


def test_an_ack_after_a_refusal_for_good_still_counts() -> None:
    """The truth is what the server says of each message."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "TOO_LARGE", message="too much"), ack(frame, (1, 1, 2)))
    one, two = bench.session.take_settled()
    assert "too much" in str(one.error)
    assert two.error is None


def test_a_refusal_for_good_of_a_repeated_message_is_in_doubt() -> None:
    """An earlier attempt may have succeeded."""
    bench = connected()
    bench.publish("/a", "1")
    bench.send()
    bench.drop()
    _, again = bench.connect()
    bench.hear(nack(again, 0, "NOT_ALLOWED"))  # type: ignore[arg-type]
    (one,) = bench.session.take_settled()
    assert isinstance(one.error, OutcomeUnknown)


def test_a_connection_lost_after_a_refusal_for_good_leaves_the_rest_in_doubt() -> None:
    """What cannot be sent again under its number is reported."""
    bench = connected()
    bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(nack(frame, 0, "NOT_ALLOWED"))
    bench.drop()
    assert [type(m.error) for m in bench.session.take_settled()] == [NotPublished, OutcomeUnknown]
    bench.publish("/a", "3")
    _, after = bench.connect()
    assert numbers([after]) == [("/a", 1, "3")]  # type: ignore[list-item]


def test_the_deadline_of_a_sent_message_is_an_unknown_outcome() -> None:
    """So are those after it in the topic, which hang on it; other topics are not affected."""
    bench = connected(publish_deadline=120.0, keepalive=1000.0)
    bench.publish("/a", "1")
    bench.send()
    bench.now += 60
    bench.publish("/a", "2")
    bench.publish("/b", "x")
    bench.send()
    bench.now += 60
    bench.session.expire(bench.now)
    settled = bench.session.take_settled()
    assert [(m.topic, type(m.error)) for m in settled] == [
        ("/a", OutcomeUnknown),
        ("/a", OutcomeUnknown),
    ]
    assert bench.session.pending == 1


def test_the_deadline_of_an_unsent_message_is_certain() -> None:
    """Without a connection the message was never sent, and that is known."""
    bench = Bench(publish_deadline=120.0)
    bench.publish("/a", "1")
    assert bench.session.next_wake() == bench.now + 120
    bench.now += 119
    assert bench.send() == []
    assert bench.session.pending == 1
    bench.publish("/a", "2")
    bench.now += 1
    assert bench.send() == []
    (message,) = bench.session.take_settled()
    assert isinstance(message.error, NotPublished)
    assert message.error.code == "DEADLINE"
    _, frame = bench.connect()
    assert numbers([frame]) == [("/a", 1, "2")]  # type: ignore[list-item]


def test_a_deadline_stays_below_half_of_what_the_cluster_remembers() -> None:
    """A message is given up before its first copy could be forgotten, whatever the user asked."""
    bench = Bench(publish_deadline=1000.0, keepalive=5000.0)
    (early,) = bench.publish("/a", "1")
    bench.connect()  # the contact remembers publishers for 900 s
    (late,) = bench.publish("/a", "2")
    assert early.deadline == late.deadline == bench.now + 360


def test_an_unsent_message_can_be_withdrawn() -> None:
    """A sent one cannot, and neither can one whose outcome is known."""
    bench = connected()
    one, two = bench.publish("/a", "1", "2")
    assert bench.session.withdraw(one)
    assert not bench.session.withdraw(one)
    (frame,) = bench.sent(wire.Publish)
    assert numbers([frame]) == [("/a", 1, "2")]
    assert not bench.session.withdraw(two)
    assert isinstance(one.error, NotPublished)


def test_an_idle_topic_gets_a_fresh_publisher_id() -> None:
    """After half of dedup_ttl the cluster might forget the publisher, so it becomes another."""
    bench = connected()
    bench.publish("/a", "1")
    (first,) = bench.sent(wire.Publish)
    bench.hear(ack(first, (0, 1, 1)))
    bench.now += 450
    bench.publish("/a", "2")
    (second,) = bench.sent(wire.Publish)
    assert (second.pid, second.messages[0].pseq) == (first.pid, 2)
    bench.hear(ack(second, (0, 1, 2)))
    bench.now += 451
    bench.publish("/a", "3")
    (third,) = bench.sent(wire.Publish)
    assert third.pid != first.pid
    assert third.messages[0].pseq == 1


def test_a_topic_with_something_under_way_keeps_its_publisher_id() -> None:
    """A number belongs to its message for good."""
    bench = connected(publish_deadline=100_000.0, keepalive=5000.0)
    bench.publish("/a", "1")
    (first,) = bench.sent(wire.Publish)
    bench.now += 359  # one second more, and its outcome would be unknown
    bench.hear(wire.Pong())
    bench.publish("/a", "2")
    (second,) = bench.sent(wire.Publish)
    assert (second.pid, second.messages[0].pseq) == (first.pid, 2)


def test_idle_topics_are_forgotten_and_their_publisher_id_with_them() -> None:
    """A topic that comes back never meets a pid under which it was published before."""
    bench = connected()
    bench.publish("/a", "1")
    (first,) = bench.sent(wire.Publish)
    bench.hear(ack(first, (0, 1, 1)))
    bench.now += 451
    bench.publish("/b", "x")
    bench.send()
    bench.publish("/a", "2")
    (frame,) = bench.sent(wire.Publish)
    assert frame.pid != first.pid
    assert frame.messages[0].pseq == 1
    assert len(bench.session._publisher._topics) == 2


def test_publisher_ids_do_not_mix_in_a_frame() -> None:
    """A topic with an older pid travels in a frame of its own."""
    bench = connected()
    bench.publish("/a", "1")
    bench.publish("/b", "1")
    (first,) = bench.sent(wire.Publish)
    bench.hear(ack(first, (0, 1, 1), (1, 1, 1)))
    bench.publish("/b", "2")
    (second,) = bench.sent(wire.Publish)
    bench.hear(nack(second, 0, "NOT_ALLOWED"))
    bench.publish("/a", "2")
    bench.publish("/b", "3")
    third, fourth = bench.sent(wire.Publish)
    assert {third.pid, fourth.pid} > {first.pid}
    assert sorted(numbers([third, fourth])) == [("/a", 2, "2"), ("/b", 1, "3")]


def test_the_window_bounds_what_is_under_way() -> None:
    """The smaller of the client's window and the server's limit counts; answers make room."""
    bench = Bench(window=10)
    bench.session.opened(bench.now)
    bench.send()
    bench.hear(wire.Welcome(1, "m-1", 10_000, wire.Limits(unanswered=2), [], 900_000))
    bench.publish("/a", "1", "2", "3")
    bench.publish("/b", "4")
    (frame,) = bench.sent(wire.Publish)
    assert numbers([frame]) == [("/a", 1, "1"), ("/a", 2, "2")]
    assert bench.send() == []
    bench.hear(ack(frame, (0, 1, 1), (1, 1, 2)))
    assert numbers(bench.sent(wire.Publish)) == [("/a", 3, "3"), ("/b", 1, "4")]


def test_frames_stay_within_the_limits() -> None:
    """Neither the count nor the bytes of a frame exceed what the server takes."""
    bench = Bench()
    bench.session.opened(bench.now)
    bench.send()
    limits = wire.Limits(messages_per_frame=3, frame_bytes=800)
    bench.hear(wire.Welcome(1, "m-1", 10_000, limits, [], 900_000))
    bench.publish("/a", *("x" * 10 for _ in range(4)))
    bench.publish("/a", "y" * 90, "z" * 90)
    assert [len(f.messages) for f in bench.sent(wire.Publish)] == [3, 1, 1, 1]


def test_what_can_never_be_accepted_is_refused_at_once() -> None:
    """A bad topic or a payload above the limit takes no number."""
    bench = Bench()
    with pytest.raises(NotPublished, match="BAD_TOPIC"):
        bench.session.publish("a", "x", bench.now)
    with pytest.raises(NotPublished, match="TOO_LARGE"):
        bench.session.publish("/a", b"x" * 65537, bench.now)
    assert bench.session.pending == 0


def test_a_stricter_contact_refuses_what_waits() -> None:
    """What was queued under another limit is certain not to be published."""
    bench = Bench()
    bench.publish("/a", "x" * 100, "y")
    bench.session.opened(bench.now)
    bench.send()
    bench.hear(wire.Welcome(1, "m-1", 10_000, wire.Limits(payload_bytes=10), [], 900_000))
    assert numbers(bench.sent(wire.Publish)) == [("/a", 1, "y")]
    (message,) = bench.session.take_settled()
    assert isinstance(message.error, NotPublished)
    assert message.error.code == "TOO_LARGE"


def test_without_acknowledgement_a_message_is_sent_once() -> None:
    """It has no number, waits for nothing, and is not sent again."""
    bench = connected()
    told = bench.session.publish("/a", "quick", bench.now, acknowledge=False)
    bench.publish("/a", "safe")
    quick, safe = bench.sent(wire.Publish)
    assert (quick.pid, numbers([quick])) == ("", [("/a", 0, "quick")])
    assert numbers([safe]) == [("/a", 1, "safe")]
    assert bench.session.take_settled() == [told]
    bench.hear(nack(quick, 0, "TOO_FAST"))
    bench.drop()
    _, again = bench.connect()
    assert numbers([again]) == [("/a", 1, "safe")]  # type: ignore[list-item]


def test_closing_tells_every_message_what_is_known() -> None:
    """Sent ones are in doubt, unsent ones are certain not to be published."""
    bench = connected(window=1)
    bench.publish("/a", "1", "2")
    bench.send()
    bench.session.fail_pending("CLIENT_CLOSED", "the client is closed")
    settled = bench.session.take_settled()
    assert [type(message.error) for message in settled] == [OutcomeUnknown, NotPublished]
    assert bench.session.pending == 0


def test_topics_with_nothing_under_way_are_not_touched_by_endings() -> None:
    """Neither a lost connection nor the end of the client finds anything to report in them."""
    bench = connected()
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (0, 1, 1)))
    bench.session.take_settled()
    bench.drop()
    assert [type(sent) for sent in bench.connect()] == [wire.Connect]
    bench.session.fail_pending("CLIENT_CLOSED", "the client is closed")
    assert bench.session.take_settled() == []


def test_topics_of_one_retired_publisher_id_share_the_next() -> None:
    """A fresh pid is made once, not once per topic, so that frames stay few."""
    bench = connected()
    bench.publish("/a", "1")
    bench.publish("/b", "1")
    (first,) = bench.sent(wire.Publish)
    bench.hear(nack(first, 0, "NOT_ALLOWED"), nack(first, 1, "NOT_ALLOWED"))
    bench.publish("/a", "2")
    bench.publish("/b", "2")
    (second,) = bench.sent(wire.Publish)
    assert second.pid != first.pid
    assert numbers([second]) == [("/a", 1, "2"), ("/b", 1, "2")]


def test_publications_can_be_read_by_people() -> None:
    """Reprs tell the number and the outcome."""
    bench = connected()
    one, two = bench.publish("/a", "1", "2")
    (frame,) = bench.sent(wire.Publish)
    bench.hear(ack(frame, (0, 1, 7)))
    assert repr(one) == "<Publishing /a #1 1:7>"
    assert repr(two) == "<Publishing /a #2 pending>"
    assert "1 pending, 1 under way" in repr(bench.session)
