"""The subscriber's half of a session, by scripted frames."""

from __future__ import annotations

import pytest

from client_sdk.errors import AlreadySubscribed
from client_sdk.items import Gap, Message, Reset, Resumed, Subscribed
from migratory.wire import client as wire
from migratory.wire.ids import Position
from tests.unit.session_stage import Bench, messages


def test_topics_are_asked_for_without_waiting_for_the_welcome() -> None:
    """SUBSCRIBE follows CONNECT in the same turn."""
    bench = Bench(token="t", client="me")
    bench.subscribe("/a", depth=5)
    bench.session.opened(bench.now)
    greeting, ask = bench.send()
    assert isinstance(greeting, wire.Connect)
    assert (greeting.protocol, greeting.token, greeting.client) == (1, "t", "me")
    assert ask == wire.Subscribe(1, [wire.TopicRequest("/a", None, 5)])


def test_messages_are_handed_on_in_order() -> None:
    """After FRESH, each message comes once, with its position."""
    bench = Bench()
    bench.connect()
    bench.subscribe("/a")
    (ask,) = bench.sent(wire.Subscribe)
    bench.hear(wire.Subscribed(ask.id, [wire.Outcome("/a", "fresh", Position(3, 7))]))
    bench.hear(messages("/a", 3, 8, 9))
    assert bench.items() == [
        Subscribed("/a", Position(3, 7)),
        Message("/a", "8", Position(3, 8), 0),
        Message("/a", "9", Position(3, 9), 0),
    ]
    assert bench.session.position("/a") == Position(3, 9)
    assert bench.session.position("/b") is None


def test_what_was_handed_on_is_dropped() -> None:
    """Messages at or below the position are no second copies for the reader."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(messages("/a", 3, 6, 7, 8, 9), messages("/a", 3, 8))
    assert [item.position for item in bench.items()] == [Position(3, 8), Position(3, 9)]
    assert bench.session.leave is None


def test_a_reconnect_resumes_from_the_last_position() -> None:
    """The next connection is asked from where the reader is, and the outcome is told."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(messages("/a", 3, 8))
    bench.items()
    bench.drop()
    *_, ask = bench.connect()
    assert ask == wire.Subscribe(ask.id, [wire.TopicRequest("/a", Position(3, 8))])  # type: ignore[union-attr]
    outcome = wire.Outcome("/a", "resumed", Position(3, 8), missed=1)
    bench.hear(wire.Subscribed(ask.id, [outcome]), messages("/a", 4, 9))
    assert bench.items() == [
        Resumed("/a", Position(3, 8), 1),
        Message("/a", "9", Position(4, 9), 0),
    ]


@pytest.mark.parametrize(
    "broken", [messages("/a", 3, 9), messages("/a", 2, 8)], ids=["a hole", "an epoch that fell"]
)
def test_a_message_that_does_not_fit_ends_the_connection(broken: wire.Messages) -> None:
    """A silent gap is never handed on: the session leaves and resumes from its position."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(broken)
    assert bench.items() == []
    leave = bench.session.leave
    assert leave is not None
    assert leave.blame
    assert leave.at == bench.now
    assert "/a came after 3:7" in leave.reason
    assert bench.drop() is leave
    *_, ask = bench.connect()
    assert ask.topics[0].position == Position(3, 7)  # type: ignore[union-attr]
    assert bench.session.leave is None


def test_what_fits_before_a_hole_is_handed_on() -> None:
    """The good part of a frame is not lost by its bad part."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(messages("/a", 3, 8, 10))
    assert [item.position for item in bench.items()] == [Position(3, 8)]
    assert bench.session.leave is not None


def test_a_topic_that_begins_anew_may_jump() -> None:
    """A message flagged `first` explains its own jump."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(wire.Messages("/a", [wire.Message(5, 60, 1, "x", first=True)]))
    assert bench.items() == [Message("/a", "x", Position(5, 60), 1, first=True)]
    assert bench.session.leave is None


def test_gap_and_reset_outcomes_move_the_position() -> None:
    """Both reach the reader, and delivery goes on from where they say."""
    bench = Bench()
    bench.subscribe("/a", Position(3, 7))
    bench.subscribe("/b", Position(3, 7))
    bench.connect()
    bench.hear(
        wire.Subscribed(
            1,
            [
                wire.Outcome("/a", "gap", Position(4, 99), asked=8, first=100, last=120),
                wire.Outcome("/b", "reset", Position(9, 2), reason="history_lost"),
            ],
        ),
        messages("/a", 4, 100),
        messages("/b", 9, 3),
    )
    assert bench.items() == [
        Gap("/a", Position(4, 99), 8, 100, 120),
        Reset("/b", Position(9, 2), "history_lost"),
        Message("/a", "100", Position(4, 100), 0),
        Message("/b", "3", Position(9, 3), 0),
    ]


def test_gap_and_reset_frames_move_a_live_topic() -> None:
    """The same holds in the middle of a connection."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(
        wire.Gap("/a", Position(4, 99), 8, 100, 120),
        messages("/a", 4, 100),
        wire.Reset("/a", Position(9, 2), "history_lost"),
        messages("/a", 9, 3),
    )
    assert [type(item) for item in bench.items()] == [Gap, Message, Reset, Message]
    assert bench.session.position("/a") == Position(9, 3)


def test_a_gap_that_goes_backwards_is_not_believed() -> None:
    """A server that would deliver messages twice is left."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(wire.Gap("/a", Position(3, 4), 2, 5, 9))
    assert bench.items() == []
    assert bench.session.leave is not None


@pytest.mark.parametrize(
    ("at", "outcome"),
    [
        (Position(3, 7), wire.Outcome("/a", "fresh", Position(3, 9))),
        (None, wire.Outcome("/a", "resumed", Position(3, 9))),
        (Position(3, 7), wire.Outcome("/a", "resumed")),
    ],
    ids=["fresh though resumed", "resumed though fresh", "no position"],
)
def test_an_outcome_that_answers_something_else_is_not_believed(
    at: Position | None, outcome: wire.Outcome
) -> None:
    """FRESH in place of RESUMED would be a silent gap."""
    bench = Bench()
    bench.subscribe("/a", at)
    bench.connect()
    bench.hear(wire.Subscribed(1, [outcome]))
    assert bench.items() == []
    assert bench.session.leave is not None
    assert "does not answer" in bench.session.leave.reason


def test_many_topics_are_asked_in_batches() -> None:
    """No SUBSCRIBE names more topics than the server takes, and each topic is named once."""
    bench = Bench()
    bench.session.subscribe(wire.TopicRequest(f"/t/{i}") for i in range(2500))
    bench.session.opened(bench.now)
    _, *asks = bench.send()
    assert [len(ask.topics) for ask in asks] == [1000, 1000, 500]  # type: ignore[union-attr]
    assert len({t.topic for ask in asks for t in ask.topics}) == 2500  # type: ignore[union-attr]


def test_outcomes_may_come_one_by_one() -> None:
    """Topics of one SUBSCRIBE become live at different times."""
    bench = Bench()
    bench.session.subscribe([wire.TopicRequest("/a"), wire.TopicRequest("/b")])
    bench.connect()
    bench.hear(wire.Subscribed(1, [wire.Outcome("/b", "fresh", Position(1, 0))]))
    bench.hear(messages("/b", 1, 1), messages("/a", 1, 1))
    bench.hear(wire.Subscribed(1, [wire.Outcome("/a", "fresh", Position(1, 1))]))
    assert [(type(item), item.topic) for item in bench.items()] == [
        (Subscribed, "/b"),
        (Message, "/b"),
        (Subscribed, "/a"),
    ]


def test_a_topic_is_subscribed_once() -> None:
    """A second subscription of a topic is refused, and takes no other topic with it."""
    bench = Bench()
    bench.subscribe("/a")
    with pytest.raises(AlreadySubscribed) as caught:
        bench.session.subscribe([wire.TopicRequest("/b"), wire.TopicRequest("/a")])
    assert caught.value.topic == "/a"
    bench.subscribe("/b")


def test_giving_a_topic_up_and_wanting_it_again_in_one_turn() -> None:
    """The old subscription ends before the new one is asked for, and its leftovers are void."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.session.unsubscribe(["/a", "/unknown"])
    bench.subscribe("/a", Position(3, 5))
    end, ask = bench.send()
    assert end == wire.Unsubscribe(end.id, ["/a"])  # type: ignore[union-attr]
    assert isinstance(ask, wire.Subscribe)
    bench.hear(
        messages("/a", 3, 8),
        wire.Unsubscribed(end.id),
        wire.Subscribed(ask.id - 9, [wire.Outcome("/a", "denied", code="CANCELLED")]),
        wire.Subscribed(ask.id, [wire.Outcome("/a", "resumed", Position(3, 5), missed=3)]),
        messages("/a", 3, 6),
    )
    assert [item.position for item in bench.items()] == [Position(3, 5), Position(3, 6)]


def test_a_topic_given_up_before_it_was_asked_for_is_never_asked_for() -> None:
    """Nothing is sent about a wish that is gone."""
    bench = Bench()
    bench.connect()
    bench.subscribe("/a")
    bench.session.unsubscribe(["/a"])
    assert bench.send() == []


def test_answers_about_unknown_topics_are_void() -> None:
    """Late frames about a topic that was given up change nothing."""
    bench = Bench()
    bench.connect()
    bench.hear(
        wire.Subscribed(1, [wire.Outcome("/a", "fresh", Position(1, 1))]),
        messages("/a", 1, 2),
        wire.Gap("/a", Position(1, 1), 1, 2, 3),
        wire.Reset("/a", Position(1, 1), "diverged"),
        wire.Denied("/a", "NOT_ALLOWED"),
    )
    assert bench.items() == []
    assert bench.session.take_failures() == []
    assert bench.session.leave is None


def test_a_pause_drops_and_a_resume_asks_again_where_it_stopped() -> None:
    """What comes during a pause is not taken, and nothing of it is lost afterwards."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(messages("/a", 3, 8))
    bench.items()
    bench.session.pause(["/a", "/unknown"])
    (end,) = bench.sent(wire.Unsubscribe)
    bench.hear(messages("/a", 3, 9), wire.Unsubscribed(end.id))
    assert bench.items() == []
    bench.session.resume(["/a", "/unknown"])
    (ask,) = bench.sent(wire.Subscribe)
    assert ask.topics == [wire.TopicRequest("/a", Position(3, 8))]
    outcome = wire.Outcome("/a", "resumed", Position(3, 8), missed=1)
    bench.hear(wire.Subscribed(ask.id, [outcome]), messages("/a", 3, 9))
    # The resume is of our own making, so it is not worth an item.
    assert bench.items() == [Message("/a", "9", Position(3, 9), 0)]
    bench.session.resume(["/a"])
    assert bench.send() == []


def test_a_paused_topic_stays_paused_over_a_reconnect() -> None:
    """A slow reader does not come back to life by a lost connection."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.session.pause(["/a"])
    bench.drop()
    assert [type(frame) for frame in bench.connect()] == [wire.Connect]
    bench.session.resume(["/a"])
    (ask,) = bench.sent(wire.Subscribe)
    assert ask.topics[0].position == Position(3, 7)


def test_a_topic_paused_before_its_outcome_is_asked_afresh() -> None:
    """Without a position yet, the first outcome is still a Subscribed."""
    bench = Bench()
    bench.connect()
    bench.subscribe("/a")
    (first,) = bench.sent(wire.Subscribe)
    bench.session.pause(["/a"])
    bench.session.resume(["/a"])
    _, second = bench.send()
    bench.hear(
        wire.Subscribed(first.id, [wire.Outcome("/a", "denied", code="CANCELLED")]),
        wire.Subscribed(second.id, [wire.Outcome("/a", "fresh", Position(1, 4))]),  # type: ignore[union-attr]
    )
    assert bench.items() == [Subscribed("/a", Position(1, 4))]


def test_a_denial_for_a_while_is_asked_again_later() -> None:
    """A duty to retry is obeyed after the stated time, and after a growing one."""
    bench = Bench()
    bench.subscribe("/a")
    bench.connect()
    denied = wire.Outcome("/a", "denied", code="UNAVAILABLE", retry_after=700)
    bench.hear(wire.Subscribed(1, [denied]))
    assert bench.send() == []
    assert bench.session.next_wake() == pytest.approx(bench.now + 0.7)
    bench.now += 0.7
    (ask,) = bench.sent(wire.Subscribe)
    bench.hear(wire.Subscribed(ask.id, [wire.Outcome("/a", "denied", code="UNAVAILABLE")]))
    wake = bench.session.next_wake()
    assert wake is not None
    assert 0.1 <= wake - bench.now <= 0.2
    assert bench.session.take_failures() == []


def test_a_wish_withdrawn_during_a_delay_is_not_asked_again() -> None:
    """Giving up, pausing or reconnecting makes the planned question void."""
    bench = Bench()
    bench.session.subscribe([wire.TopicRequest("/a"), wire.TopicRequest("/b")])
    bench.connect()
    denied = [wire.Outcome(t, "denied", code="BUSY", retry_after=500) for t in ("/a", "/b")]
    bench.hear(wire.Subscribed(1, denied))
    bench.session.unsubscribe(["/a"])
    bench.session.pause(["/b"])
    bench.now += 1
    assert bench.send() == []


def test_a_live_topic_can_be_denied_for_a_while() -> None:
    """The server may take a subscription back; it is asked for again at the same position."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.hear(wire.Denied("/a", "UNAVAILABLE", retry_after=500), messages("/a", 3, 8))
    assert bench.items() == []
    bench.now += 0.5
    (ask,) = bench.sent(wire.Subscribe)
    assert ask.topics[0].position == Position(3, 7)


def test_a_denial_that_points_elsewhere_ends_the_connection() -> None:
    """BEHIND means that another member knows more."""
    bench = Bench()
    bench.subscribe("/a", Position(3, 7))
    bench.connect()
    bench.hear(wire.Subscribed(1, [wire.Outcome("/a", "denied", code="BEHIND")]))
    assert bench.session.leave is not None
    assert bench.session.leave.reason == "BEHIND"
    bench.drop()
    *_, ask = bench.connect()
    assert ask.topics[0].position == Position(3, 7)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("code", "message", "told"),
    [
        ("NOT_ALLOWED", "ask Ada", "ask Ada"),
        ("NOT_ALLOWED", "", "does not allow"),
        ("FROM_THE_FUTURE", "", "refuses the topic"),
    ],
)
def test_a_denial_for_good_is_an_error(code: str, message: str, told: str) -> None:
    """The reader is told, and the topic is not asked for again."""
    bench = Bench()
    bench.subscribe("/a")
    bench.connect()
    denied = wire.Outcome("/a", "denied", code=code, message=message)
    bench.hear(wire.Subscribed(1, [denied]))
    ((topic, error),) = bench.session.take_failures()
    assert (topic, error.code) == ("/a", code)
    assert told in str(error)
    bench.drop()
    assert [type(frame) for frame in bench.connect()] == [wire.Connect]


def test_subscriptions_can_be_read_by_people() -> None:
    """The repr tells how many topics are live."""
    bench = Bench()
    bench.connect()
    bench.attach("/a", Position(3, 7))
    bench.subscribe("/b")
    assert "1/2 live" in repr(bench.session)
    assert "with m-1" in repr(bench.session)
