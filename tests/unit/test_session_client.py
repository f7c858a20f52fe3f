"""The trio client over real sockets, against small servers that can be killed, frozen and rude."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, Literal

import pytest
import trio

from client_sdk import (
    AlreadySubscribed,
    Client,
    ClientClosed,
    ClientStopped,
    Message,
    NotPublished,
    OutcomeUnknown,
    Position,
    Receipt,
    Resumed,
    Subscribed,
    Subscription,
    SubscriptionDenied,
    open_client,
)
from migratory.wire import client as wire
from migratory.wire.codes import Code
from tests.unit.client_stage import LIMIT, Cloud, Server, cloud_of, until


@asynccontextmanager
async def limited(client: Any) -> AsyncIterator[Client]:
    """A client whose test cannot hang."""
    with trio.fail_after(LIMIT):
        async with client as opened:
            yield opened


def addresses(servers: list[Server]) -> list[str]:
    """Where the servers listen."""
    return [server.address for server in servers]


async def take(messages: Subscription, amount: int) -> list[Message]:
    """The next messages, without what comes between them."""
    taken: list[Message] = []
    async for item in messages:
        if isinstance(item, Message):
            taken.append(item)
            if len(taken) == amount:
                break
    return taken


# ---- publishing and subscribing ------------------------------------------------------------------


@pytest.mark.parametrize("encoding", ["msgpack", "json"])
async def test_what_is_published_is_delivered(encoding: Literal["msgpack", "json"]) -> None:
    """Text stays text, bytes stay bytes, and positions agree on both ways."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(addresses(servers), encoding=encoding)) as client,
    ):
        assert await client.publish("/a", "hello") == Position(1, 1)
        async with client.subscribe("/a", depth=1) as messages:
            assert await client.publish("/a", b"\x00\xff") == Position(1, 2)
            first = await anext(messages)
            assert first == Subscribed("/a", Position(1, 0))
            assert await take(messages, 2) == [
                Message("/a", "hello", Position(1, 1), 0),
                Message("/a", b"\x00\xff", Position(1, 2), 0),
            ]
            assert client.position("/a") == Position(1, 2)


async def test_many_messages_share_frames() -> None:
    """Pipelined publications travel in few frames, and each gets its own receipt."""
    async with (
        cloud_of(1) as (cloud, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        await client.wait_connected()
        receipts = [await client.publish_soon("/a", str(i)) for i in range(500)]
        assert not receipts[-1].done
        positions = [await receipt for receipt in receipts]
        assert positions == [Position(1, i + 1) for i in range(500)]
        assert all(receipt.done and not receipt.duplicate for receipt in receipts)
        assert cloud.counts["Publish"] <= 3
        assert "Receipt" in repr(receipts[0])


async def test_several_tasks_may_wait_for_one_receipt() -> None:
    """Each of them gets the outcome."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        receipt = await client.publish_soon("/a", "1")
        seen: list[Position] = []

        async def wait() -> None:
            seen.append(await receipt)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(wait)
            nursery.start_soon(wait)
        assert seen == [Position(1, 1)] * 2


async def test_the_window_makes_publishers_wait() -> None:
    """No more messages than the window are without an outcome."""
    async with (
        cloud_of(1) as (cloud, servers),
        limited(open_client(addresses(servers), window=10)) as client,
    ):
        await client.wait_connected()
        cloud.deaf = True
        receipts = [await client.publish_soon("/a", str(i)) for i in range(10)]
        with trio.move_on_after(0.1) as scope:
            receipts.append(await client.publish_soon("/a", "one too many"))
        assert scope.cancelled_caught
        cloud.deaf = False
        await servers[0].close(Code.SLOW_CONSUMER)
        await client.flush()
        await client.publish("/a", "fits")
        assert cloud.texts("/a") == [*(str(i) for i in range(10)), "fits"]
        assert len(receipts) == 10


async def test_a_subscription_can_begin_at_a_position() -> None:
    """A stored position brings exactly what came after it."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        for i in range(5):
            await client.publish("/a", str(i))
        async with client.subscribe("/a", positions={"/a": Position(1, 3)}) as messages:
            assert await anext(messages) == Resumed("/a", Position(1, 3), 2)
            assert [m.payload for m in await take(messages, 2)] == ["3", "4"]


async def test_without_acknowledgement_nothing_is_awaited() -> None:
    """The message arrives, and the caller goes on once it is sent."""
    async with (
        cloud_of(1) as (cloud, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        await client.publish_unacknowledged("/a", "quick")
        await until(lambda: cloud.texts("/a") == ["quick"])


async def test_leaving_a_subscription_unsubscribes() -> None:
    """The server is told, and the topic can be subscribed again."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        async with client.subscribe("/a", "/a") as messages:
            await anext(messages)
            with pytest.raises(AlreadySubscribed):
                async with client.subscribe("/a"):
                    pass  # pragma: no cover
        await until(lambda: not servers[0].connections[0].at)
        async with client.subscribe("/a") as messages:
            assert isinstance(await anext(messages), Subscribed)
            assert "1 topics" in repr(messages)


# ---- servers that fail ---------------------------------------------------------------------------


async def publish_all(client: Client, amount: int, receipts: list[Receipt]) -> None:
    """Publish numbered messages as fast as the window allows."""
    for i in range(amount):
        receipts.append(await client.publish_soon("/a", str(i)))
        if i % 50 == 0:
            await trio.sleep(0.001)


@pytest.mark.parametrize("deaf", [False, True], ids=["mid-stream", "before any answer"])
async def test_a_killed_server_costs_nothing(deaf: bool) -> None:
    """Neither publisher nor subscriber loses or doubles anything when its server is killed."""
    async with (
        cloud_of(2) as (cloud, servers),
        limited(open_client(addresses(servers), window=100)) as publisher,
        limited(open_client(addresses(servers), window=100)) as subscriber,
        subscriber.subscribe("/a", depth=1000) as messages,
    ):
        await publisher.wait_connected()
        await anext(messages)
        receipts: list[Receipt] = []
        async with trio.open_nursery() as nursery:
            cloud.deaf = deaf
            nursery.start_soon(publish_all, publisher, 1000, receipts)
            await until(lambda: len(cloud.texts("/a")) >= 100)
            cloud.deaf = False
            for server in list(servers):
                if server.name == publisher.contact:
                    await server.kill()
        await publisher.flush()
        expected = [str(i) for i in range(1000)]
        assert cloud.texts("/a") == expected
        assert [(await r).sequence or i + 1 for i, r in enumerate(receipts)] == list(range(1, 1001))
        assert [m.payload for m in await take(messages, 1000)] == expected
        assert any(receipt.duplicate for receipt in receipts) or not deaf


async def test_a_killed_server_is_left_by_its_subscriber() -> None:
    """The subscriber goes on elsewhere, and is told that it resumed."""
    async with (
        cloud_of(2) as (_, servers),
        limited(open_client(addresses(servers))) as client,
        client.subscribe("/a") as messages,
    ):
        await client.publish("/a", "1")
        assert [m.payload for m in await take(messages, 1)] == ["1"]
        first = next(server for server in servers if server.name == client.contact)
        await first.kill()
        await client.publish("/a", "2")
        assert client.contact != first.name
        assert await anext(messages) == Resumed("/a", Position(1, 1), 0)
        assert [m.payload for m in await take(messages, 1)] == ["2"]


async def test_a_frozen_server_is_left() -> None:
    """A server that says nothing for twice the keepalive time is replaced by another."""
    async with (
        cloud_of(2, keepalive_ms=100) as (cloud, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        frozen = await client.wait_connected()
        next(server for server in servers if server.name == frozen).frozen = True
        await client.publish("/a", "1")
        assert client.contact != frozen
        assert cloud.counts["Ping"] >= 1


async def test_an_idle_connection_is_kept() -> None:
    """Keepalives in both directions keep a quiet client where it is."""
    async with (
        cloud_of(1, keepalive_ms=60) as (cloud, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        await client.wait_connected()
        servers[0].connections[0].say(wire.Ping(5))
        await until(lambda: cloud.counts["Ping"] >= 5 and cloud.counts["Pong"] == 1)
        assert cloud.counts["Connect"] == 1


async def test_goaway_moves_a_client() -> None:
    """A draining server is left for the one that it names, without an error."""
    async with (
        cloud_of(3) as (_, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        contact = await client.wait_connected()
        old = next(server for server in servers if server.name == contact)
        new = next(server for server in servers if server.name != contact)
        old.connections[0].say(wire.Goaway("DRAINING", [new.address], 50))
        await until(lambda: client.contact == new.name)
        await client.publish("/a", "1")


async def test_servers_are_learnt_from_the_welcome() -> None:
    """A client that knew one server survives its death by those it was told of."""
    async with (
        cloud_of(3) as (_, servers),
        limited(open_client([servers[0].address])) as client,
    ):
        await client.publish("/a", "1")
        await servers[0].kill()
        await client.publish("/a", "2")
        assert client.contact in {"m-2", "m-3"}


@pytest.mark.parametrize(
    ("fault", "value"),
    [("garbage", True), ("mute", True), ("status", 503)],
    ids=["says nonsense", "speaks another protocol", "refuses the handshake"],
)
async def test_a_server_that_cannot_be_used_is_tried_again_later(fault: str, value: object) -> None:
    """The client survives it, and connects as soon as the server behaves."""
    async with cloud_of(1) as (_, servers):
        good = getattr(servers[0], fault)
        setattr(servers[0], fault, value)
        async with limited(open_client(addresses(servers))) as client:
            await until(lambda: servers[0].visits >= 2)
            assert client.contact == ""
            setattr(servers[0], fault, good)
            assert await client.wait_connected() == "m-1"


async def test_a_server_that_is_not_there_is_passed_over() -> None:
    """A refused connection leads on to the next server."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(["127.0.0.1:1", *addresses(servers)])) as client,
    ):
        assert await client.wait_connected() == "m-1"


async def test_a_server_that_served_well_is_forgiven(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a good connection the next attempt comes without a delay."""
    monkeypatch.setattr("client_sdk.client.SETTLED_AFTER", 0.0)
    async with (
        cloud_of(1) as (cloud, servers),
        limited(open_client(addresses(servers))) as client,
    ):

        async def greeted(times: int) -> None:
            await until(lambda: cloud.counts["Connect"] == times and client.contact)

        for times in range(1, 8):
            await greeted(times)
            assert client._servers._attempts == 1
            await servers[0].close(Code.SLOW_CONSUMER)


async def test_a_refused_client_stops() -> None:
    """HTTP status 401 means: do not come back."""
    async with cloud_of(1) as (_, servers):
        servers[0].status = 401
        async with limited(open_client(addresses(servers))) as client:
            with pytest.raises(ClientStopped, match="UNAUTHORIZED"):
                await client.wait_connected()


# ---- ends ----------------------------------------------------------------------------------------


async def test_a_stop_code_reaches_everybody() -> None:
    """Publishers, readers and whoever comes later learn why the client was stopped."""
    async with (
        cloud_of(1) as (cloud, servers),
        limited(open_client(addresses(servers))) as client,
        client.subscribe("/a") as messages,
    ):
        await anext(messages)
        cloud.deaf = True
        receipt = await client.publish_soon("/a", "1")
        await until(lambda: cloud.texts("/a"))
        await servers[0].close(Code.TOKEN_EXPIRED)
        with pytest.raises(OutcomeUnknown, match="TOKEN_EXPIRED"):
            await receipt
        with pytest.raises(ClientStopped, match="told by m-1"):
            await take(messages, 2)
        for late in (client.publish("/a", "2"), client.wait_connected()):
            with pytest.raises(ClientStopped):
                await late


async def test_a_denied_topic_raises_in_its_reader_only() -> None:
    """Other subscriptions go on."""
    async with cloud_of(1) as (cloud, servers):
        for topic in ("/secret", "/hidden"):
            cloud.denied[topic] = wire.Outcome(topic, "denied", code="NOT_ALLOWED")
        async with (
            limited(open_client(addresses(servers))) as client,
            client.subscribe("/secret", "/hidden") as refused,
            client.subscribe("/a") as messages,
        ):
            with pytest.raises(SubscriptionDenied, match="NOT_ALLOWED"):
                await anext(refused)
            await client.publish("/a", "1")
            assert len(await take(messages, 1)) == 1


async def test_a_bad_topic_is_refused_at_once() -> None:
    """Nothing is sent for a name that no server takes."""
    async with limited(open_client(["127.0.0.1:1"])) as client:
        with pytest.raises(SubscriptionDenied, match="BAD_TOPIC"):
            async with client.subscribe("a"):
                pass  # pragma: no cover
        with pytest.raises(NotPublished, match="BAD_TOPIC"):
            await client.publish("a", "x")


async def test_without_servers_the_deadline_is_certain() -> None:
    """A message that could never be sent is reported as not published, in time."""
    async with limited(open_client(["127.0.0.1:1"], publish_deadline=0.2)) as client:
        with pytest.raises(NotPublished, match="DEADLINE"):
            await client.publish("/a", "x")


async def test_a_cancelled_publish_withdraws_what_was_not_sent() -> None:
    """The message is not published behind the caller's back."""
    async with cloud_of(1) as (cloud, servers):
        servers[0].status = 503
        async with limited(open_client(addresses(servers))) as client:
            with trio.move_on_after(0.05):
                await client.publish("/a", "never")
            servers[0].status = 101
            await client.publish("/a", "after")
            assert cloud.texts("/a") == ["after"]


async def test_closing_tells_whoever_waits() -> None:
    """A receipt and a reader that outlive their client get an error, not silence."""
    async with cloud_of(1) as (cloud, servers), trio.open_nursery() as nursery:
        cloud.deaf = True
        seen: list[Exception] = []

        async def read(messages: Subscription) -> None:
            try:
                await take(messages, 9)
            except ClientClosed as error:
                seen.append(error)

        async with limited(open_client(addresses(servers))) as client:
            subscription = client.subscribe("/a")
            messages = await subscription.__aenter__()
            nursery.start_soon(read, messages)
            receipt = await client.publish_soon("/a", "1")
            await until(lambda: cloud.texts("/a"))
        with pytest.raises(OutcomeUnknown, match="CLIENT_CLOSED"):
            await receipt
        await until(lambda: seen)
        with pytest.raises(ClientClosed):
            await client.publish("/a", "2")
        await subscription.__aexit__(None, None, None)


async def test_errors_of_the_block_come_out_as_they_are() -> None:
    """A user catches what was raised, not a group around it."""
    with pytest.raises(KeyError):
        async with limited(open_client(["127.0.0.1:1"])):
            raise KeyError


# ---- slow readers --------------------------------------------------------------------------------


async def test_a_slow_reader_slows_only_itself() -> None:
    """Its backlog stays bounded, its neighbour gets everything, and it misses nothing itself."""
    async with (
        cloud_of(1) as (cloud, servers),
        limited(open_client(addresses(servers))) as publisher,
        limited(open_client(addresses(servers))) as client,
        client.subscribe("/slow", buffer=10) as slow,
        client.subscribe("/fast") as fast,
    ):
        await anext(slow)
        await anext(fast)
        for i in range(300):
            await publisher.publish("/slow", str(i))
        await publisher.publish("/fast", "x")
        assert len(await take(fast, 1)) == 1
        assert slow._waiting <= 11
        assert cloud.counts["Unsubscribe"] == 1
        assert [m.payload for m in await take(slow, 300)] == [str(i) for i in range(300)]
        assert "0 items wait" in repr(slow)


async def test_a_reader_takes_a_frame_without_yielding_in_between() -> None:
    """One checkpoint per frame, not per message."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        for i in range(50):
            await client.publish("/a", str(i))
        async with client.subscribe("/a", depth=50) as messages:
            await anext(messages)
            await anext(messages)
            ticks = 0

            async def tick() -> None:
                nonlocal ticks
                while True:
                    ticks += 1
                    await trio.lowlevel.checkpoint()

            async with trio.open_nursery() as nursery:
                nursery.start_soon(tick)
                await trio.lowlevel.checkpoint()
                before = ticks
                for _ in range(49):
                    await anext(messages)
                assert ticks == before
                nursery.cancel_scope.cancel()


async def test_a_client_can_be_read_by_people() -> None:
    """The repr names the contact."""
    async with (
        cloud_of(1) as (_, servers),
        limited(open_client(addresses(servers))) as client,
    ):
        await client.wait_connected()
        assert "with m-1" in repr(client)


async def test_the_cloud_of_these_tests_refuses_disorder() -> None:
    """The tests' own server would notice a missing message."""
    cloud = Cloud()
    with pytest.raises(AssertionError, match="out of order"):
        cloud.publish("p", wire.Sent("/a", "x", 2))
