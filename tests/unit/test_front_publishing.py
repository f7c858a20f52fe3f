"""Publications through the front: batches, answers, refusals, and when reading stops."""

from __future__ import annotations

import pytest

from migratory.front.limits import FrontLimits
from migratory.wire import client as c
from migratory.wire.codec import JSON, MSGPACK, Codec
from migratory.wire.shard import Pubs
from tests.unit.front_stage import PID, Client, Stage, stage

BOTH = pytest.mark.parametrize("codec", [MSGPACK, JSON], ids=["msgpack", "json"])


def publish(number: int, topic: str = "/t", data: str | bytes = "x") -> c.Publish:
    """A frame with one message, whose id is its pseq."""
    return c.Publish(number, PID, [c.Sent(topic, data, number)])


async def acked(client: Client, count: int) -> list[int]:
    """The ids of that many acknowledged messages."""
    found: list[int] = []
    while len(found) < count:
        found += [result.id for result in (await client.recv(c.Ack)).results]
    return found


@BOTH
async def test_frames_of_one_read_are_one_batch_and_one_answer(codec: Codec) -> None:
    """Many frames of a turn go to the engine as one Pubs; their answers leave in one frame."""
    async with stage() as at, at.client(codec) as client:
        await client.send(*[publish(n) for n in range(1, 101)])
        answer = await client.recv(c.Ack)
        assert [(r.id, r.index, r.sequence) for r in answer.results] == [
            (n, 0, n) for n in range(1, 101)
        ]
        [batch] = [m for m in at.engine.seen if isinstance(m, Pubs)]
        assert [p.pseq for p in batch.items] == list(range(1, 101))
        assert len({p.ref for p in batch.items}) == 100


async def test_answers_find_the_message_of_their_frame() -> None:
    """Each answer has the id of its frame and the index of its message in it."""
    async with stage() as at, at.client() as client:
        at.engine.refuse["/no"] = "OUT_OF_ORDER"
        sent = [c.Sent("/a", "x", 1), c.Sent("/no", "x", 1, 4), c.Sent("/b", "x", 1)]
        await client.send(c.Publish(77, PID, sent))
        ack, nack = await client.recv(c.Ack), await client.recv(c.Nack)
        assert [(r.id, r.index) for r in ack.results] == [(77, 0), (77, 2)]
        [result] = nack.results
        assert (result.id, result.index, result.code) == (77, 1, "OUT_OF_ORDER")
        assert (result.expected, result.rewind) == (7, 4)


@pytest.mark.parametrize(
    ("topic", "size", "code"),
    [("nope", 1, "BAD_TOPIC"), ("/" + "ü" * 128, 1, "BAD_TOPIC"), ("/t", 65537, "TOO_LARGE")],
)
async def test_a_bad_message_is_refused_and_the_others_are_not(
    topic: str, size: int, code: str
) -> None:
    """What the front can judge is refused by name, and the connection goes on."""
    async with stage() as at, at.client() as client:
        sent = [c.Sent(topic, b"x" * size, 1, 3), c.Sent("/t", b"x" * 65536, 1)]
        await client.send(c.Publish(5, PID, sent))
        assert await acked(client, 1) == [5]
        [nacked] = (await client.recv(c.Nack)).results
        assert (nacked.index, nacked.code, nacked.rewind) == (0, code, 3)


async def test_a_refusal_that_clients_do_not_know_means_retry() -> None:
    """Codes between members stay between members."""
    async with stage() as at, at.client() as client:
        at.engine.refuse["/t"] = "NOT_COORDINATOR"
        await client.send(publish(1))
        [nacked] = (await client.recv(c.Nack)).results
        assert nacked.code == "RETRY"
        assert nacked.retry_after > 0


async def test_without_a_pid_only_refusals_are_answered() -> None:
    """With ack none: silence for what was taken, NACK for what was not."""
    async with stage() as at, at.client() as client:
        at.engine.refuse["/no"] = "BUSY"
        for number, topic in enumerate(("/t", "/no", "nope")):
            await client.send(c.Publish(number, "", [c.Sent(topic, "x")]))
        refused: list[tuple[int, str]] = []
        while len(refused) < 2:
            refused += [(r.id, r.code) for r in (await client.recv(c.Nack)).results]
        assert sorted(refused) == [(1, "BUSY"), (2, "BAD_TOPIC")]
        assert len(at.engine.topics["/t"]) == 1


async def test_refs_of_unanswered_publications_without_pid_are_bounded() -> None:
    """However many are sent, the front remembers only the latest of them."""
    async with stage() as at, at.client() as client:
        for number in range(12):
            await client.send(c.Publish(number, "", [c.Sent("/t", "x")] * 1000))
        await at.until(lambda: len(at.engine.topics.get("/t", ())) == 12_000)
        assert len(at.front._publishing._loose) == 10_000
        assert at.front.counts()["waiting"] == 0


async def _held(at: Stage, count: int) -> None:
    await at.until(lambda: len(at.engine.held) >= count)


async def test_reading_stops_at_too_many_unanswered_and_goes_on_later() -> None:
    """Beyond the bound nothing more is read; once half is answered, everything comes through."""
    limits = FrontLimits(client=c.Limits(unanswered=50))
    async with stage(limits) as at, at.client() as client, at.client() as other:
        at.engine.hold = True
        await client.send(*[publish(n) for n in range(1, 201)])
        await _held(at, 50)
        await other.send(c.Ping(1))
        await other.recv(c.Pong)  # others are served meanwhile
        assert len(at.engine.held) == 50
        at.engine.release()
        await _held(at, 50)
        at.engine.hold = False
        at.engine.release()
        assert await acked(client, 200) == list(range(1, 201))
        await client.send(publish(201))
        assert await acked(client, 1) == [201]


async def test_a_stopped_publisher_may_leave() -> None:
    """A connection that is not read from is dropped when it breaks, and late answers are lost."""
    limits = FrontLimits(client=c.Limits(unanswered=5))
    async with stage(limits) as at:
        at.engine.hold = True
        async with at.client() as client:
            await client.send(*[publish(n) for n in range(1, 21)])
            await _held(at, 5)
            client.stream.setsockopt(1, 13, b"\x01\0\0\0\0\0\0\0")  # SO_LINGER 0: a reset
        await at.until(lambda: at.front.clients() == 0)
        at.engine.release()
        assert at.front.counts()["waiting"] == 0


async def test_a_turn_takes_a_bounded_number_of_publications() -> None:
    """What one turn leaves over, the next one takes."""
    async with stage(FrontLimits(publications_per_turn=10)) as at:
        async with at.client() as one, at.client() as two:
            for client in (one, two):
                await client.send(*[publish(n, data="y" * 9000) for n in range(1, 60)])
            for client in (one, two):
                await acked(client, 59)
        sizes = [len(m.items) for m in at.engine.seen if isinstance(m, Pubs)]
        assert sum(sizes) == 118


async def test_a_publisher_that_left_gets_no_answer() -> None:
    """Answers for a connection that is gone are dropped without harm."""
    async with stage() as at:
        at.engine.hold = True
        async with at.client() as client:
            await client.send(publish(1))
            await _held(at, 1)
        await at.until(lambda: at.front.clients() == 0)
        at.engine.release()
        async with at.client() as client:
            at.engine.hold = False
            await client.send(publish(2))
            assert await acked(client, 1) == [2]
