"""The front's HTTP side: upgrades are granted by the book, anything else is a plain error."""

from __future__ import annotations

import pytest
import trio

from migratory.front.handshake import Accepted, Refused, Upgrade
from migratory.front.limits import FrontLimits
from migratory.wire.client import Connect
from migratory.wire.codec import JSON, MSGPACK
from migratory.wire.shard import Serving
from tests.unit.front_stage import masked, stage

GOOD = {
    "Host": "front",
    "Upgrade": "websocket",
    "Connection": "Upgrade",
    "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
    "Sec-WebSocket-Version": "13",
    "Sec-WebSocket-Protocol": "migratory.v1.msgpack",
}


def request(line: str = "GET /v1/ws HTTP/1.1", **changes: str | None) -> bytes:
    """A good request with some headers changed, or left out by None."""
    headers = {**GOOD, **{name.replace("_", "-"): value for name, value in changes.items()}}
    lines = [line, *(f"{name}: {value}" for name, value in headers.items() if value is not None)]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")


def feed(data: bytes, origins: tuple[str | None, ...] = (None,)) -> Accepted | Refused | None:
    """What the handshake makes of these bytes."""
    return Upgrade().feed(data, 16384, lambda origin: origin in origins)


def status(data: bytes, origins: tuple[str | None, ...] = (None,)) -> int:
    """The status of the answer."""
    answer = feed(data, origins)
    assert answer is not None
    return int(answer.response.split(b" ")[1])


def test_the_upgrade_of_the_standard_is_granted() -> None:
    """The key of RFC 6455's example gives the accept value of its example."""
    answer = feed(request() + b"rest")
    assert isinstance(answer, Accepted)
    assert b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in answer.response
    assert (answer.codec, answer.rest) == (MSGPACK, b"rest")


@pytest.mark.parametrize(
    ("offer", "chosen"),
    [
        ("migratory.v1.json", JSON),
        ("chat, migratory.v1.json , migratory.v1.msgpack", JSON),
        ("migratory.v1.msgpack, migratory.v1.json", MSGPACK),
    ],
)
def test_the_first_known_subprotocol_is_chosen(offer: str, chosen: object) -> None:
    """The order of the client's list decides, and the answer names the choice."""
    answer = feed(request(Sec_WebSocket_Protocol=offer))
    assert isinstance(answer, Accepted)
    assert answer.codec is chosen
    assert f"Sec-WebSocket-Protocol: {answer.codec.subprotocol}\r\n".encode() in answer.response


@pytest.mark.parametrize(
    ("bad", "expected"),
    [
        (b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03", 400),  # TLS
        (b"GET /v1/ws\r\n\r\n", 426),
        (request("GET /v1/ws HTTP/1.0"), 505),
        (b"SSH-2.0-OpenSSH_9.2\r\n", 400),
        (request(Sec_WebSocket_Protocol=None), 400),
        (request(Sec_WebSocket_Protocol="chat"), 400),
        (request(Sec_WebSocket_Key=None), 400),
        (request(Sec_WebSocket_Key="short"), 400),
        (request(Sec_WebSocket_Key="c2hvcnQ="), 400),
        (request(Sec_WebSocket_Key="\xff\xfe"), 400),
        (request(Sec_WebSocket_Version="8"), 426),
        (request(Sec_WebSocket_Version=None), 426),
        (request(Upgrade="h2c"), 426),
        (request(Upgrade=None, Connection=None), 426),
        (request("GET /v2/ws HTTP/1.1"), 404),
        (request("GET / HTTP/1.1", Upgrade=None, Connection=None), 404),
        (request("POST /v1/ws HTTP/1.1"), 405),
        (request("POST /v1/ws HTTP/1.1", Upgrade=None, Connection=None), 405),
        (request(Host="\xff\xfe", Connection="Upgrade\xff"), 426),
    ],
)
def test_anything_else_is_a_plain_error(bad: bytes, expected: int) -> None:
    """Every faulty request gets the status that names its fault, never a connection."""
    assert status(bad) == expected


def test_a_repeated_key_is_refused() -> None:
    """Which of two keys counts is not for us to guess."""
    twice = request().replace(
        b"\r\n\r\n", b"\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
    )
    assert status(twice) == 400


def test_the_origin_is_asked_about() -> None:
    """The hook decides on the exact Origin, or on its absence; two Origins are never allowed."""
    allowed = ("https://ok.example",)
    assert status(request(Origin="https://ok.example"), allowed) == 101
    assert status(request(Origin="https://ok.example.evil"), allowed) == 403
    assert status(request(), allowed) == 403
    twice = request(Origin="https://ok.example").replace(b"Host", b"Origin: null\r\nHost", 1)
    assert status(twice, allowed) == 403


def test_only_the_first_request_counts() -> None:
    """An upgrade behind a plain request is not granted."""
    plain = request("GET / HTTP/1.1", Upgrade=None, Connection=None)
    assert status(plain + request()) == 404


def test_a_request_may_come_byte_by_byte() -> None:
    """Only the last byte brings the answer."""
    upgrade, data = Upgrade(), request()
    for at in range(len(data) - 1):
        assert upgrade.feed(data[at : at + 1], 16384, lambda _: True) is None
    assert isinstance(upgrade.feed(data[-1:], 16384, lambda _: True), Accepted)


def test_an_endless_request_is_cut_off() -> None:
    """More than the bound without an end is refused, and many headers are not even kept."""
    upgrade = Upgrade()
    assert upgrade.feed(b"GET /v1/ws HTTP/1.1\r\n", 16384, lambda _: True) is None
    answer = None
    for n in range(2000):
        answer = upgrade.feed(b"X-%d: a\r\n" % n, 16384, lambda _: True)
        if answer is not None:
            break
    assert isinstance(answer, Refused)
    assert answer.response.startswith(b"HTTP/1.1 431 ")
    assert len(upgrade._headers) == 64


async def test_a_plain_error_arrives_and_the_connection_ends() -> None:
    """A browser that looks at the port reads a sentence, then the end."""
    async with stage() as at:
        async with at.raw() as raw:
            await raw.send(b"GET / HTTP/1.1\r\nHost: front\r\n\r\n" + b"x" * 100_000)
            answer = await raw.rest()
        assert answer.startswith(b"HTTP/1.1 404 Not Found\r\n")
        assert answer.endswith(b"the WebSocket is at /v1/ws.\n")
        await at.until(lambda: at.front.clients() == 0)


async def test_a_slow_handshake_is_ended() -> None:
    """A connection that does not finish its request in time is answered 408 and closed."""
    async with stage() as at, at.raw() as raw:
        await raw.send(b"GET /v1/ws HT")
        await at.until(lambda: at.front.clients() == 1)
        at.wait(9)
        assert at.front.closed == {}
        at.wait(1)
        assert (await raw.rest()).startswith(b"HTTP/1.1 408 ")


async def test_a_full_member_says_so() -> None:
    """Beyond the bound a handshake is answered 503; when someone leaves there is room again."""
    async with stage(FrontLimits(clients=1)) as at:
        async with at.opened(), at.raw() as raw:
            await raw.send(request())
            assert (await raw.rest()).startswith(b"HTTP/1.1 503 ")
        await at.until(lambda: at.front.clients() == 0)
        async with at.client():
            pass


async def test_the_port_refuses_while_not_serving() -> None:
    """Until the engine is ready, and again when it is not, connections are refused."""
    async with stage() as at:
        for _ in range(2):
            at.front.handle(Serving(ready=False))
            with pytest.raises(OSError, match="all attempts"):
                await trio.open_tcp_stream("127.0.0.1", at.port)
            at.front.handle(Serving(ready=True))
            async with at.client():
                pass


async def test_who_waits_to_be_accepted_is_not_reset_when_serving_ends() -> None:
    """Connections that the kernel had completed are served, not reset."""
    async with stage() as at, at.raw() as raw:
        at.front.handle(Serving(ready=False))
        await raw.send(request())
        assert (await raw.stream.receive_some(1000)).startswith(b"HTTP/1.1 101 ")


async def test_frames_may_follow_the_request_at_once() -> None:
    """A client that does not wait for the answer is served all the same."""
    async with stage() as at, at.raw() as raw:
        await raw.send(request() + masked(0x82, MSGPACK.encode_request(Connect(1))))
        answer = b""
        while b"keepalive_ms" not in answer:
            answer += await raw.stream.receive_some(4096)
        assert answer.startswith(b"HTTP/1.1 101 ")
