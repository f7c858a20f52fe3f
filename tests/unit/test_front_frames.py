"""Frames from strangers: the parser obeys the standard, and a breach ends one connection only."""

from __future__ import annotations

import contextlib
import random
import socket
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websockets.frames import Opcode

from migratory.front.connection import Connection
from migratory.front.frames import close_number, frame, parse
from migratory.front.limits import FrontLimits
from migratory.wire import client as c
from migratory.wire.codec import JSON, MSGPACK
from migratory.wire.codes import Code, WireError
from tests.unit.front_stage import masked, stage

TEXT, BINARY = 0x81, 0x82
CONNECT = MSGPACK.encode_request(c.Connect(1))


class Sink:
    """Keeps what it is given."""

    def __init__(self) -> None:
        self.got: list[tuple[int, bytes]] = []

    def message(self, _conn: Connection, payload: bytes) -> None:
        """A whole message."""
        self.got.append((2, payload))

    def control(self, _conn: Connection, opcode: int, payload: bytes) -> None:
        """A control frame."""
        self.got.append((opcode, payload))


def fresh() -> Connection:
    """A connection of the binary encoding without a network."""
    with socket.socket() as sock:
        conn = Connection(sock, 0.0)
    conn.whole, conn.limit, conn.codec = BINARY, 200_000, MSGPACK
    return conn


@given(
    st.lists(st.sampled_from([0, 1, 5, 125, 126, 127, 300, 65535, 65536]), max_size=5),
    st.integers(0, 2**32).map(random.Random),
)
def test_frames_come_out_as_they_were_sent(sizes: list[int], rng: random.Random) -> None:
    """Whatever the sizes and however the bytes are cut, the same messages come out in order."""
    payloads = [rng.randbytes(size) for size in sizes]
    wire = b"".join(masked(BINARY, p) + masked(0x89, b"hi") for p in payloads)
    conn, sink, at = fresh(), Sink(), 0
    while at < len(wire):
        step = rng.choice([1, 2, 7, 5000, 70000])
        piece, at = wire[at : at + step], at + step
        if conn.tail is not None:
            conn.tail += piece
            if len(conn.tail) < conn.need:
                continue
            piece, conn.tail = bytes(conn.tail), None
        parse(conn, piece, sink, 8)
    assert sink.got == [each for p in payloads for each in ((2, p), (9, b"hi"))]
    assert conn.tail is None


@given(st.binary(max_size=200))
def test_no_bytes_break_the_parser(data: bytes) -> None:
    """Any bytes are frames, an incomplete frame or a WireError."""
    with contextlib.suppress(WireError):
        parse(fresh(), data, Sink(), 8)


def test_a_stopped_connection_is_not_parsed_on() -> None:
    """What came after the frame that stopped it is kept for later, whole."""
    conn = fresh()

    class Stopper(Sink):
        def message(self, conn: Connection, payload: bytes) -> None:
            super().message(conn, payload)
            conn.stopped = True

    sink, second = Stopper(), masked(BINARY, b"two")
    parse(conn, masked(BINARY, b"one") + second, sink, 8)
    assert sink.got == [(2, b"one")]
    assert bytes(conn.tail or b"") == second


@pytest.mark.parametrize("size", [0, 125, 126, 65535, 65536])
def test_headers_have_the_shortest_form(size: int) -> None:
    """Servers send unmasked frames with minimal lengths."""
    made = frame(2, b"x" * size)
    assert len(made) - size == (2 if size < 126 else 4 if size < 65536 else 10)
    assert made[0] == BINARY


@pytest.mark.parametrize(
    "payload", [b"\x03", b"\x03\xed", b"\x0b\xb7", b"\x03\xe8\xff", b"\x27\x0f"]
)
def test_close_codes_that_may_not_be_sent_are_refused(payload: bytes) -> None:
    """One byte, reserved or unassigned numbers, and reasons that are not UTF-8."""
    with pytest.raises(WireError):
        close_number(payload)


@pytest.mark.parametrize(
    ("bad", "code"),
    [
        (bytes([BINARY, 3]) + b"abc", "BAD_FRAME"),  # not masked
        (masked(0xC2, b"x"), "BAD_FRAME"),  # a reserved bit
        (masked(0x83, b"x"), "BAD_FRAME"),  # an opcode that does not exist
        (masked(0x8B, b"x"), "BAD_FRAME"),
        (masked(0x09, b"x"), "BAD_FRAME"),  # a fragmented control frame
        (masked(0x89, b"x" * 126), "BAD_FRAME"),  # a long one
        (masked(0x80, b"x"), "BAD_FRAME"),  # continues nothing
        (masked(0x02, b"x") + masked(BINARY, b"x"), "BAD_FRAME"),  # not finished
        (masked(BINARY, b"x" * 5, b"\xfe\x00\x05"), "BAD_FRAME"),  # lengths not in shortest form
        (masked(BINARY, b"x" * 5, b"\xff" + struct.pack("!Q", 5)), "BAD_FRAME"),
        (masked(BINARY, b"", b"\xff" + b"\xff" * 8), "FRAME_TOO_LARGE"),
        (masked(TEXT, b"{}"), "BAD_FRAME"),  # the other kind
        (masked(0x88, b"\x03"), "BAD_FRAME"),
        (masked(0x02, b"") + masked(0x00, b"") * 300, "BAD_FRAME"),  # too many fragments
        (masked(0x02, b"x" * 9000) + masked(0x00, b"x" * 9000), "FRAME_TOO_LARGE"),
        (masked(BINARY, b"\xc1"), "BAD_FRAME"),
        (masked(BINARY, b"\x81\xa4type\xa3xyz"), "UNKNOWN_TYPE"),
        (masked(BINARY, b"\x91" * 16000), "BAD_FRAME"),
        (masked(BINARY, MSGPACK.encode_request(c.Ping(1))), "NOT_CONNECTED"),
        (masked(BINARY, MSGPACK.encode_request(c.Connect(2))), "UNSUPPORTED_VERSION"),
        (masked(BINARY, CONNECT) * 2, "ALREADY_CONNECTED"),
        (masked(BINARY, b"x" * 20_000), "FRAME_TOO_LARGE"),  # before CONNECT there is less room
    ],
)
async def test_a_breach_is_named_and_ends_that_connection_only(bad: bytes, code: str) -> None:
    """ERROR with the code, a close with its number, and the neighbour goes on undisturbed."""
    async with stage() as at, at.client() as neighbour, at.opened() as client:
        await neighbour.subscribe("/n")
        await client.raw(bad)
        if code == "ALREADY_CONNECTED":
            await client.recv(c.Welcome)
        name, number = await client.ended()
        assert name == code
        assert number == Code[code].number
        at.engine.publish("/n", b"still here")
        assert await neighbour.sequences(1) == [1]
        await at.until(lambda: at.front.clients() == 1)
        assert at.front.closed[code] == 1


@pytest.mark.parametrize("bad", [b'{"type": "ping\xff"}', b"\xed\xa0\x80", b"\xc0\x80"])
async def test_text_is_utf8(bad: bytes) -> None:
    """A text message with bytes that are not UTF-8 is refused, whatever it would have meant."""
    async with stage() as at, at.opened(JSON) as client:
        await client.raw(masked(TEXT, bad))
        assert await client.ended() == ("BAD_FRAME", 4200)


async def test_a_message_may_come_in_fragments() -> None:
    """Fragments are joined, with control frames in between, also one byte at a time."""
    async with stage() as at, at.client() as client:
        data = MSGPACK.encode_request(c.Ping(7))
        first, rest = data[:1], data[1:]
        parts = [masked(0x02, first), masked(0x89, b"mid")]
        parts += [masked(0x00, rest[:3]), masked(0x80, rest[3:])]
        for byte in b"".join(parts):
            await client.raw(bytes([byte]))
        pong = await client.frame()
        assert (pong.opcode, pong.data) == (Opcode.PONG, b"mid")
        assert await client.recv(c.Pong) == c.Pong(7)


async def test_a_large_subscribe_may_follow_connect_at_once() -> None:
    """The bound for strangers ends with CONNECT, also within one read."""
    async with stage() as at, at.opened() as client:
        topics = [c.TopicRequest(f"/some/rather/long/topic/name/{n:06}") for n in range(1000)]
        await client.send(c.Connect(1), c.Subscribe(1, topics))
        await client.recv(c.Welcome)
        outcomes: list[c.Outcome] = []
        while len(outcomes) < 1000:
            outcomes += (await client.recv(c.Subscribed)).topics
        assert {o.outcome for o in outcomes} == {"fresh"}


async def test_a_frame_over_the_limit_is_refused_before_it_is_sent() -> None:
    """The header alone is enough to refuse, so nobody has to take in the rest."""
    async with stage() as at, at.client() as client:
        size = FrontLimits().client.frame_bytes + 1
        await client.raw(b"\x82\xff" + size.to_bytes(8, "big"))
        assert await client.ended() == ("FRAME_TOO_LARGE", 4205)


@pytest.mark.parametrize(
    ("payload", "number"), [(b"", 1005), (b"\x03\xe8bye", 1000), (b"\x0f\xa1", 4001)]
)
async def test_a_close_is_answered_with_a_close(payload: bytes, number: int) -> None:
    """The client's own number comes back, and its subscriptions end."""
    async with stage() as at, at.client() as client:
        await client.subscribe("/t")
        await client.raw(masked(0x88, payload))
        back = await client.closed()
        assert back == (1000 if number == 1005 else number)
        await at.until(lambda: at.front.clients() == 0)
        assert at.engine.interests == set()


async def test_who_does_not_answer_a_close_is_dropped() -> None:
    """After its time a connection that was closed by the front is gone, though it stays open."""
    async with stage() as at, at.raw() as raw:
        await raw.send(b"nonsense\r\n\r\n")
        await at.until(lambda: at.front.closed["HTTP"] == 1)
        assert at.front.clients() == 1
        at.wait(2)
        assert at.front.clients() == 0


async def test_noise_never_ends_the_front() -> None:
    """Random bytes in every state of a connection leave the front serving."""
    rng = random.Random(7)
    async with stage() as at:
        for n in range(60):
            async with at.opened() as client:
                if n % 2:
                    await client.connect()
                first = rng.choice([0x81, 0x82, 0x02, 0x00, 0x88, 0x89, 0x8A, rng.randrange(256)])
                noise = masked(first, rng.randbytes(rng.randrange(125))) + rng.randbytes(50)
                await client.raw(noise)
        async with at.client() as client:
            await client.send(c.Ping(1))
            await client.recv(c.Pong)
        assert at.front.closed["INTERNAL_ERROR"] == 0
