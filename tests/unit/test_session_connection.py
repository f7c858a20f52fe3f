"""The life of a session's connection: keepalive, going away, close codes, and where to go next."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest

from client_sdk.errors import ClientClosed, NotPublished, OutcomeUnknown
from client_sdk.servers import BLACKLIST_BASE, MAX_DELAY, QUICK_DELAY, Servers, url_of
from migratory.wire import client as wire
from migratory.wire.codes import Code
from tests.unit.session_stage import Bench, ack

# ---- keepalive -----------------------------------------------------------------------------------


def test_a_silent_client_says_ping() -> None:
    """Who has sent nothing for the keepalive time sends PING, once per such time."""
    bench = Bench()
    bench.connect()
    assert bench.session.next_wake() == bench.now + 10
    bench.now += 9.9
    assert bench.send() == []
    bench.now += 0.1
    assert bench.send() == [wire.Ping()]
    assert bench.send() == []


def test_a_ping_is_answered_with_its_number() -> None:
    """The server's PING gets a PONG at once."""
    bench = Bench()
    bench.connect()
    bench.hear(wire.Ping(7))
    assert bench.send() == [wire.Pong(7)]


def test_a_silent_server_is_left() -> None:
    """Nothing heard for twice the keepalive time: the session goes elsewhere."""
    bench = Bench()
    bench.connect()
    bench.now += 10
    bench.hear(wire.Pong())
    bench.now += 19.9
    bench.send()
    assert not bench.session.leave
    bench.now += 0.1
    bench.send()
    leave = bench.session.leave
    assert leave is not None
    assert leave.blame
    assert bench.session.next_wake() == bench.now


def test_a_server_that_never_welcomes_is_left() -> None:
    """Before the WELCOME the configured keepalive counts."""
    bench = Bench(keepalive=3.0)
    bench.session.opened(bench.now)
    bench.send()
    bench.now += 6
    bench.send()
    assert bench.session.leave is not None


def test_a_server_that_owes_an_answer_is_probed_then_left() -> None:
    """With a message under way, silence is met with one PING and ends long before the keepalive."""
    bench = Bench()
    bench.connect(keepalive_ms=60_000)
    bench.publish("/a", "1")
    bench.sent(wire.Publish)
    bench.now += 0.9
    bench.publish("/a", "2")  # asking for more does not prolong the patience
    bench.sent(wire.Publish)
    assert bench.session.next_wake() == bench.now + 0.1
    bench.now += 0.1
    assert bench.send() == [wire.Ping()]
    assert bench.send() == []
    bench.now += 3.9
    assert bench.send() == []
    assert not bench.session.leave
    bench.now += 0.1
    bench.send()
    leave = bench.session.leave
    assert leave is not None
    assert leave.blame


def test_a_server_that_answers_the_probe_is_not_left() -> None:
    """A publication that waits for a takeover costs a PING now and then, not the connection."""
    bench = Bench()
    bench.connect(keepalive_ms=60_000)
    bench.publish("/a", "1")
    (frame,) = bench.sent(wire.Publish)
    for _ in range(20):
        bench.now += 1.0
        assert bench.send() == [wire.Ping()]
        bench.hear(wire.Pong())
    assert not bench.session.leave
    bench.hear(ack(frame, (0, 1, 1)))
    bench.now += 30.0  # nothing is owed any more
    assert bench.send() == []
    assert not bench.session.leave


def test_an_unanswered_ping_is_enough_to_leave() -> None:
    """An idle subscriber of a frozen server leaves when its own PING gets no answer."""
    bench = Bench()
    bench.connect(keepalive_ms=30_000)
    bench.now += 30.0
    assert bench.send() == [wire.Ping()]
    bench.now += 4.9
    bench.send()
    assert not bench.session.leave
    bench.now += 0.1
    bench.send()
    assert bench.session.leave is not None


def test_a_keepalive_of_nothing_does_not_make_the_client_spin() -> None:
    """A server that asks for no pause at all gets a reasonable one."""
    bench = Bench()
    bench.session.opened(bench.now)
    bench.send()
    bench.hear(wire.Welcome(1, "m-1", 0, wire.Limits(), [], 900_000))
    wake = bench.session.next_wake()
    assert wake is not None
    assert wake >= bench.now + 0.05


# ---- the end of a connection ---------------------------------------------------------------------


def test_goaway_is_obeyed_at_a_random_moment() -> None:
    """The session leaves within the stated time, to the stated servers."""
    bench = Bench()
    bench.connect()
    bench.hear(wire.Goaway("DRAINING", ["other:8800"], 5000))
    leave = bench.session.leave
    assert leave is not None
    assert bench.now < leave.at <= bench.now + 5
    assert leave.servers == ["other:8800"]
    assert bench.session.next_wake() == leave.at
    assert bench.drop(Code.DRAINING.number) is leave


def test_the_more_urgent_reason_to_leave_counts() -> None:
    """A planned end does not delay an urgent one, and does not replace it either."""
    bench = Bench()
    bench.connect()
    bench.hear(wire.Goaway("DRAINING", [], 5000), wire.Goaway("GO_ELSEWHERE"))
    assert bench.session.leave is not None
    assert bench.session.leave.reason == "GO_ELSEWHERE"
    bench.hear(wire.Goaway("DRAINING", [], 5000))
    assert bench.session.leave.reason == "GO_ELSEWHERE"


@pytest.mark.parametrize(
    ("code", "blame"),
    [(1006, True), (1001, True), (Code.SLOW_CONSUMER.number, False), (Code.BEHIND.number, True)],
)
def test_a_close_code_tells_whether_the_server_is_avoided(code: int, blame: bool) -> None:
    """Retry here does not blame the server; everything else looks for another one."""
    bench = Bench()
    bench.connect()
    leave = bench.drop(code, "")
    assert leave.blame is blame
    assert leave.reason == str(code)
    assert bench.session.stopped is None
    assert bench.session.welcome is None


@pytest.mark.parametrize(
    ("code", "error", "name", "told"),
    [
        (
            Code.UNAUTHORIZED.number,
            wire.Error("UNAUTHORIZED", "no token"),
            "UNAUTHORIZED",
            "no token",
        ),
        (Code.UNAUTHORIZED.number, None, "UNAUTHORIZED", "not valid"),
        (4299, None, "4299", "for reasons"),
    ],
)
def test_a_stop_code_ends_the_session(
    code: int, error: wire.Error | None, name: str, told: str
) -> None:
    """The client does not come back; everything pending is told why."""
    bench = Bench(window=1)
    bench.connect()
    bench.publish("/a", "1", "2")
    bench.send()
    if error is not None:
        bench.hear(error)
    bench.drop(code, "for reasons")
    stopped = bench.session.stopped
    assert stopped is not None
    assert stopped.code == name
    assert told in str(stopped)
    settled = bench.session.take_settled()
    assert [type(m.error) for m in settled] == [OutcomeUnknown, NotPublished]


def test_an_error_of_one_connection_is_not_remembered_on_the_next() -> None:
    """The message of an ERROR explains only the close that follows it."""
    bench = Bench()
    bench.connect()
    bench.hear(wire.Error("SLOW_CONSUMER", "read faster"))
    bench.drop(Code.SLOW_CONSUMER.number)
    bench.connect()
    bench.drop(Code.SUPERSEDED.number)
    assert "read faster" not in str(bench.session.stopped)


def test_without_a_connection_nothing_is_sent_or_awaited() -> None:
    """An idle session has no reason to wake."""
    bench = Bench()
    assert bench.send() == []
    assert bench.session.next_wake() is None
    assert "with nobody" in repr(bench.session)


def test_errors_say_what_to_do() -> None:
    """The text of an error has its code, what happened and the remedy."""
    assert str(ClientClosed()) == "CLIENT_CLOSED: the client is closed\n  open another one"
    assert "second copy" in str(OutcomeUnknown("/a", "DEADLINE", "no answer"))


# ---- servers -------------------------------------------------------------------------------------


def test_servers_are_chosen_by_weight() -> None:
    """A server of three times the weight is chosen three times as often; weight 0 never."""
    servers = Servers(["one:1", "two:1"], Random(1))
    servers.learn([wire.Server("one:1", 300), wire.Server("three:1", 0)])
    chosen = Counter(servers.choose(0.0) for _ in range(4000))
    assert set(chosen) == {"one:1", "two:1"}
    assert 2.5 < chosen["one:1"] / chosen["two:1"] < 3.6


def test_a_failed_server_is_left_out_for_a_while_that_grows() -> None:
    """It comes back after its time, later after each failure, and at once after success."""
    servers = Servers(["one:1", "two:1"], Random(1))
    servers.failed("one:1", 0.0)
    assert {servers.choose(0.5) for _ in range(50)} == {"two:1"}
    assert {servers.choose(BLACKLIST_BASE) for _ in range(50)} == {"one:1", "two:1"}
    servers.failed("one:1", 0.0)
    assert {servers.choose(BLACKLIST_BASE) for _ in range(50)} == {"two:1"}
    servers.worked("one:1")
    assert {servers.choose(0.0) for _ in range(50)} == {"one:1", "two:1"}
    servers.worked("never:heard")


def test_when_all_are_left_out_the_one_due_first_is_tried() -> None:
    """There is always somebody to try."""
    servers = Servers(["one:1", "two:1"], Random(1))
    servers.failed("two:1", 0.0)
    servers.failed("one:1", 0.5)
    assert servers.choose(0.6) == "two:1"


def test_a_hint_is_followed_once() -> None:
    """GOAWAY's servers come first, even unknown ones."""
    servers = Servers(["one:1"], Random(1))
    servers.hint(["new:1", ""])
    assert servers.choose(0.0) == "new:1"
    servers.failed("new:1", 0.0)
    assert servers.choose(0.0) == "one:1"


def test_attempts_are_quick_then_slow_and_never_in_step() -> None:
    """At first no wait, then short ones, then random ones below a bound that is cut off."""
    servers = Servers(["one:1", "two:1"], Random(1))
    delays = [servers.delay() for _ in range(200)]
    assert delays[0] == 0
    assert all(delay <= QUICK_DELAY for delay in delays[:4])
    assert max(delays) <= MAX_DELAY
    assert max(delays[50:]) > MAX_DELAY * 0.8
    assert min(delays[50:]) < MAX_DELAY * 0.2
    servers.worked("one:1")
    assert servers.delay() == 0
    assert "1 attempts" in repr(servers)


def test_a_client_needs_a_server() -> None:
    """An empty list is refused with an example."""
    with pytest.raises(ValueError, match="at least one server"):
        Servers([], Random(1))


@pytest.mark.parametrize(
    ("address", "like", "url"),
    [
        ("h:1", "", "ws://h:1/v1/ws"),
        ("h:1", "wss://g:2/v1/ws", "wss://h:1/v1/ws"),
        ("wss://h", "", "wss://h/v1/ws"),
        ("wss://h/", "", "wss://h/v1/ws"),
        ("ws://h:1/behind/proxy", "", "ws://h:1/behind/proxy"),
    ],
)
def test_addresses_become_urls(address: str, like: str, url: str) -> None:
    """What has no scheme is reached as the last server was."""
    assert url_of(address, like) == url
