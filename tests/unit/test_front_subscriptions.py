"""Subscriptions through the front: outcomes, pages, live messages, and their end."""

from __future__ import annotations

import pytest
import trio
from trio_websocket import open_websocket_url

from migratory.front.limits import FrontLimits
from migratory.wire import client as c
from migratory.wire.codec import JSON, MSGPACK, Codec
from migratory.wire.ids import Position
from migratory.wire.peer import Publication
from migratory.wire.shard import More, Reattach, Sub, Unsub
from tests.unit.front_stage import PID, stage

BOTH = pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])
SMALL = FrontLimits(client=c.Limits(subscriptions=2))


@BOTH
async def test_messages_reach_every_subscriber_in_order(codec: Codec) -> None:
    """Everyone on a topic gets the same bytes, text as text and bytes as bytes."""
    async with stage() as at, at.client(codec) as one, at.client(codec) as two:
        assert (await one.subscribe("/t")).outcome == "fresh"
        await two.subscribe("/t")
        await one.send(c.Publish(3, PID, [c.Sent("/t", "grün", 1), c.Sent("/t", b"\xff", 2)]))
        frames = [await client.frame() for client in (one, two)]
        assert frames[0].data == frames[1].data
        messages = codec.decode_answer(frames[0].data)
        assert isinstance(messages, c.Messages)
        assert [m.data for m in messages.messages] == ["grün", b"\xff"]
        await one.recv(c.Ack)


async def test_two_encodings_share_a_topic() -> None:
    """Subscribers of both encodings get the same message, each in its own."""
    async with stage() as at, at.client(JSON) as text, at.client(MSGPACK) as binary:
        await text.subscribe("/t")
        await binary.subscribe("/t")
        at.engine.publish("/t", b"\x00\x01")
        for client in (text, binary):
            assert (await client.recv(c.Messages)).messages[0].data == b"\x00\x01"


async def test_an_independent_client_is_served() -> None:
    """trio-websocket, which shares no code with the front, subscribes, publishes and leaves."""
    async with stage() as at:
        url = f"ws://127.0.0.1:{at.port}/v1/ws"
        async with open_websocket_url(url, subprotocols=["migratory.v1.json"]) as peer:
            await peer.send_message('{"type": "connect", "protocol": 1}')
            assert '"welcome"' in await peer.get_message()
            await peer.send_message('{"type": "subscribe", "id": 1, "topics": [{"topic": "/t"}]}')
            assert '"fresh"' in await peer.get_message()
            at.engine.publish("/t", b"x")
            assert '"messages"' in await peer.get_message()
            await peer.ping(b"here?")
        await at.until(lambda: at.front.clients() == 0)
        assert at.front.closed == {"client": 1}


async def test_a_topic_of_many_gets_its_own_outcome() -> None:
    """Bad names, doubles and too many are denied one by one; the rest of the frame is served."""
    async with stage(SMALL) as at, at.client() as client:
        names = ["/a", "nope", "/a", "/b", "/c", "/" + "x" * 255]
        await client.send(c.Subscribe(9, [c.TopicRequest(name) for name in names]))
        outcomes: list[c.Outcome] = []
        while len(outcomes) < len(names):
            answer = await client.recv(c.Subscribed)
            assert answer.id == 9
            outcomes += answer.topics
        denied = [(o.topic[:5], o.code) for o in outcomes if o.outcome == "denied"]
        assert denied == [
            ("nope", "BAD_TOPIC"),
            ("/a", "ALREADY_SUBSCRIBED"),
            ("/c", "TOO_MANY_SUBSCRIPTIONS"),
            ("/xxxx", "BAD_TOPIC"),
        ]
        assert sorted(o.topic for o in outcomes if o.outcome == "fresh") == ["/a", "/b"]


async def test_a_resume_is_served_in_pages_and_then_live() -> None:
    """Pages follow each other without a gap or a repetition into the live messages."""
    async with stage() as at, at.client() as client:
        at.engine.publish("/t", *[b"x"] * 50)
        at.engine.page = 7
        outcome = await client.subscribe("/t", Position(1, 10))
        assert (outcome.outcome, outcome.missed) == ("resumed", 40)
        assert await client.sequences(40) == list(range(11, 51))
        at.engine.publish("/t", b"y", b"z")
        assert await client.sequences(2) == [51, 52]
        asked = [type(m) for m in at.engine.seen]
        assert (asked.count(Sub), asked.count(More)) == (1, 5)


async def test_history_is_sent_on_a_first_subscription() -> None:
    """`depth` messages come after the outcome, whose position is right before them."""
    async with stage() as at, at.client() as client:
        at.engine.publish("/t", *[b"x"] * 9)
        outcome = await client.subscribe("/t", depth=3)
        assert (outcome.outcome, outcome.position) == ("fresh", Position(1, 6))
        assert await client.sequences(3) == [7, 8, 9]


async def test_a_gap_is_told_at_once_and_between_pages() -> None:
    """What is not cached any more is named in the outcome, or by GAP when it expires later."""
    async with stage() as at, at.client() as client:
        at.engine.publish("/t", *[b"x"] * 20)
        at.engine.first["/t"] = 5
        outcome = await client.subscribe("/t", Position(1, 1))
        assert (outcome.outcome, outcome.asked, outcome.first, outcome.last) == ("gap", 2, 5, 20)
        assert await client.sequences(16) == list(range(5, 21))
        # Replaced state: the live subscription is at 20, and 21 to 24 are nowhere.
        at.engine.topics["/t"] += at.engine.topics["/t"][:5]
        at.engine.first["/t"] = 25
        at.front.handle(Reattach("/t"))
        at.front.flush()
        gap = await client.recv(c.Gap)
        assert (gap.position, gap.asked, gap.first, gap.last) == (Position(1, 24), 21, 25, 25)


async def test_a_replaced_state_is_a_reset_or_nothing() -> None:
    """After Reattach a subscriber goes on in silence when nothing is lost, else it gets RESET."""
    async with stage() as at, at.client() as client:
        await client.subscribe("/t")
        at.engine.publish("/t", b"x")
        assert await client.sequences(1) == [1]
        at.front.handle(Reattach("/t"))
        at.front.handle(Reattach("/unknown"))
        at.front.flush()
        at.engine.publish("/t", b"y")
        assert await client.sequences(1) == [2]
        at.engine.lost = True
        at.front.handle(Reattach("/t"))
        at.front.flush()
        reset = await client.recv(c.Reset)
        assert (reset.reason, reset.position) == ("history_lost", Position(1, 2))
        at.engine.publish("/t", b"z")
        assert await client.sequences(1) == [3]


async def test_unsubscribed_topics_fall_silent() -> None:
    """After UNSUBSCRIBED nothing comes; the engine hears of it when nobody is left."""
    async with stage() as at, at.client() as one, at.client() as two:
        for client in (one, two):
            await client.subscribe("/t")
        await one.send(c.Unsubscribe(5, ["/t", "/never"]))
        assert await one.recv(c.Unsubscribed) == c.Unsubscribed(5)
        assert at.engine.interests == {"/t"}
        at.engine.publish("/t", b"x")
        assert await two.sequences(1) == [1]
        await one.send(c.Ping(1))
        await one.recv(c.Pong)  # and no message before it
        await two.send(c.Unsubscribe(6, ["/t"]))
        await two.recv(c.Unsubscribed)
        await at.until(lambda: at.engine.interests == set())
        assert (await one.subscribe("/t", Position(1, 0))).missed == 1


async def test_an_outcome_that_is_not_known_yet_is_cancelled() -> None:
    """A topic unsubscribed before its outcome gets one all the same, before the answer."""
    async with stage() as at, at.client() as client:
        at.front._wake = lambda: None  # the engine sleeps
        wanted = c.Subscribe(1, [c.TopicRequest("/t")])
        await client.send(wanted, c.Unsubscribe(2, ["/t"]))
        [outcome] = (await client.recv(c.Subscribed)).topics
        assert (outcome.outcome, outcome.code) == ("denied", "CANCELLED")
        await client.recv(c.Unsubscribed)
        await client.send(c.Subscribe(3, [c.TopicRequest("/t")]), c.Ping(1))
        await client.recv(c.Pong)
        at.front._wake = at.engine.turn
        at.engine.turn()
        answer = await client.recv(c.Subscribed)  # the first page is nobody's, the second counts
        assert (answer.id, answer.topics[0].outcome) == (3, "fresh")
        assert [type(m) for m in at.engine.seen] == [Sub, Unsub, Sub]


async def test_a_topic_that_is_not_served_is_denied() -> None:
    """UNAVAILABLE denies the topic, with a time to wait, now and for a subscription that was on."""
    async with stage() as at, at.client() as client:
        at.engine.refuse["/t"] = "UNAVAILABLE"
        outcome = await client.subscribe("/t")
        assert (outcome.outcome, outcome.code) == ("denied", "UNAVAILABLE")
        assert outcome.retry_after > 0
        assert at.engine.interests == set()
        del at.engine.refuse["/t"]
        await client.subscribe("/t")
        at.engine.refuse["/t"] = "UNAVAILABLE"
        at.front.handle(Reattach("/t"))
        at.front.flush()
        assert (await client.recv(c.Denied)).code == "UNAVAILABLE"
        assert at.engine.interests == set()


async def test_a_member_that_is_behind_sends_the_client_away() -> None:
    """BEHIND ends the connection, since another member knows more."""
    async with stage() as at, at.client() as client:
        at.engine.refuse["/t"] = "BEHIND"
        await client.send(c.Subscribe(1, [c.TopicRequest("/t", Position(9, 9))]))
        assert await client.ended() == ("BEHIND", 4101)


async def test_pages_wait_for_room() -> None:
    """A client that resumes many topics is asked for no more than its outbox can hold."""
    async with stage() as at, at.client() as client:
        names = [f"/t/{n}" for n in range(100)]
        for name in names:
            at.engine.publish(name, b"x" * 60_000)
        wanted = [c.TopicRequest(name, Position(1, 0)) for name in names]
        at.front._wake = lambda: None
        await client.send(c.Subscribe(1, wanted), c.Ping(1))
        await client.recv(c.Pong)
        assert len(at.engine.fifo) == 8
        at.front._wake = at.engine.turn
        at.engine.turn()
        got: list[str] = []
        while len(got) < 100:
            message = await client.recv(object)
            if isinstance(message, c.Messages):
                got.append(message.topic)
        assert sorted(got) == sorted(names)
        assert at.front.closed == {}


async def test_a_slow_consumer_is_closed_and_nobody_else() -> None:
    """Beyond its outbox a client that does not read gets SLOW_CONSUMER; its neighbour all."""
    async with stage(FrontLimits(outbox_bytes=200_000)) as at, at.client() as quick:
        async with at.client(rcvbuf=4096) as slow:
            await quick.subscribe("/t")
            await slow.subscribe("/t")
            count = 0
            while not at.front.closed:
                at.engine.publish("/t", b"x" * 50_000)
                count += 1
                assert await quick.sequences(1) == [count]
            assert at.front.closed == {"SLOW_CONSUMER": 1}
            got = 0
            while True:
                message = await slow.recv(object)
                if isinstance(message, c.Error):
                    break
                assert isinstance(message, c.Messages)
                assert [m.sequence for m in message.messages] == [got + 1]
                got += 1
            assert message.code == "SLOW_CONSUMER"
            assert await slow.closed() == 4010
            assert got < count
        at.engine.publish("/t", b"on")
        assert await quick.sequences(1) == [count + 1]


async def test_a_client_that_is_slow_for_a_while_gets_everything() -> None:
    """What waits within the bound is delivered in order when the client reads again."""
    async with stage(FrontLimits(outbox_bytes=4 << 20)) as at, at.client(rcvbuf=4096) as client:
        await client.subscribe("/t")
        for _ in range(60):
            at.engine.publish("/t", *[b"x" * 5000] * 10)
        assert await client.sequences(600) == list(range(1, 601))
        assert at.front.closed == {}


async def test_many_messages_of_a_turn_are_cut_into_frames() -> None:
    """A burst never makes a frame that a client would refuse for its size."""
    async with stage() as at, at.client() as client:
        await client.subscribe("/t")
        await client.subscribe("/small", request=2)
        at.engine.publish("/t", *[b"x" * 60_000] * 5)
        at.engine.publish("/small", *[b"x"] * 2500)
        sizes = [len((await client.recv(c.Messages)).messages) for _ in range(6)]
        assert sizes == [2, 2, 1, 1000, 1000, 500]


async def test_frames_of_a_turn_leave_together() -> None:
    """Several topics of one turn are one write for each of the clients that have them all."""
    async with stage() as at, at.client() as one, at.client() as two:
        for client in (one, two):
            for n in range(3):
                await client.subscribe(f"/t/{n}", request=n)
        sent: list[int] = []
        for conn in at.front._plane.connections():
            conn.sock = _Counting(conn.sock, sent)  # type: ignore[assignment]
        for n in range(3):
            for answer in at.engine.commit([_publication(f"/t/{n}")]):
                at.front.handle(answer)
        at.front.flush()
        assert len(sent) == 2
        for client in (one, two):
            assert await client.sequences(3) == [1, 1, 1]


async def test_a_fan_out_is_spread_over_turns() -> None:
    """No more than the bound is sent in one go, and nobody is forgotten."""
    async with stage(FrontLimits(sends_per_turn=2)) as at, trio.open_nursery() as nursery:
        done: list[list[int]] = []
        ready: list[int] = []

        async def subscriber() -> None:
            async with at.client() as client:
                await client.subscribe("/t")
                ready.append(1)
                done.append(await client.sequences(2))

        for _ in range(7):
            nursery.start_soon(subscriber)
        await at.until(lambda: len(ready) == 7)
        at.engine.publish("/t", b"x")
        assert at.front.busy
        at.engine.publish("/t", b"y")
        await at.until(lambda: len(done) == 7)
        assert done == [[1, 2]] * 7


class _Counting:
    """A socket whose sends are counted."""

    def __init__(self, sock: object, sent: list[int]) -> None:
        self._sock, self._sent = sock, sent

    def send(self, data: bytes) -> int:
        self._sent.append(len(data))
        return int(self._sock.send(data))  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)


def _publication(topic: str) -> Publication:
    return Publication(topic, b"x")


async def test_topics_given_up_before_they_were_asked_for_are_not_asked_for() -> None:
    """UNSUBSCRIBE also ends what still waits for room, and late answers are nobody's."""
    async with stage() as at, at.client() as client:
        at.front._wake = lambda: None
        names = [f"/t/{n}" for n in range(20)]
        at.engine.refuse["/t/3"] = "UNAVAILABLE"
        await client.send(
            c.Subscribe(1, [c.TopicRequest(name) for name in names]), c.Unsubscribe(2, names)
        )
        outcomes = (await client.recv(c.Subscribed)).topics
        assert {o.code for o in outcomes} == {"CANCELLED"}
        assert len(outcomes) == 20
        await client.recv(c.Unsubscribed)
        at.front._wake = at.engine.turn
        at.engine.turn()
        assert [m.topic for m in at.engine.seen if isinstance(m, Sub)] == names[:8]
        assert at.engine.interests == set()
        assert (await client.subscribe("/t/19")).outcome == "fresh"


async def test_a_herd_gets_the_same_page() -> None:
    """Subscribers that resume at one position in one turn get one encoded page."""
    async with stage() as at, at.client() as one, at.client() as two:
        at.engine.publish("/t", b"x", b"y")
        at.front._wake = lambda: None
        for client in (one, two):
            await client.send(c.Subscribe(1, [c.TopicRequest("/t", Position(1, 0))]), c.Ping(1))
            await client.recv(c.Pong)
        at.front._wake = at.engine.turn
        at.engine.turn()
        for client in (one, two):
            await client.recv(c.Subscribed)
        frames = [await client.frame() for client in (one, two)]
        assert frames[0].data == frames[1].data


async def test_whoever_cannot_take_its_pages_is_a_slow_consumer() -> None:
    """Messages that arrive beside a page, and pages themselves, count against the outbox."""
    limits = FrontLimits(outbox_bytes=150_000)
    async with stage(limits) as at, at.client(rcvbuf=4096) as client:
        await client.subscribe("/full")
        for n in range(3):
            at.engine.publish(f"/t/{n}", b"x" * 60_000)
        [conn] = at.front._plane.connections()
        await at.fill(conn, "/full", b"x" * 60_000)
        at.engine.publish("/full", b"x" * 60_000)  # all of it waits: no room for a page
        at.front._wake = lambda: None
        catch = [c.TopicRequest(f"/t/{n}", Position(1, 0)) for n in range(3)]
        await client.send(c.Subscribe(2, catch))
        await at.until(lambda: conn.wanted is not None)
        assert not at.engine.fifo
        at.engine.publish("/full", *[b"x" * 60_000] * 3)
        assert at.front.closed == {"SLOW_CONSUMER": 1}
        assert len(at.front._subscriptions) == 0


async def test_a_page_may_be_the_last_straw() -> None:
    """A page asked for while there was room can end a client that stopped reading since."""
    limits = FrontLimits(outbox_bytes=150_000)
    async with stage(limits) as at, at.client(rcvbuf=4096) as client, at.client() as quick:
        for reader in (client, quick):
            await reader.subscribe("/full")
        at.engine.publish("/t", b"x" * 60_000)
        at.front._wake = lambda: None
        await client.send(c.Subscribe(2, [c.TopicRequest("/t", Position(1, 0))]))
        await at.until(lambda: bool(at.engine.fifo))
        [conn] = [each for each in at.front._plane.connections() if each.asked]
        count = 0
        while not (conn.blocked and conn.queued > 100_000):
            at.engine.publish("/full", b"x" * 20_000)
            count += 1
            await quick.sequences(1)
        at.front._wake = at.engine.turn
        at.engine.turn()
        assert at.front.closed == {"SLOW_CONSUMER": 1}
        at.engine.publish("/full", b"on")
        assert await quick.sequences(1) == [count + 1]
