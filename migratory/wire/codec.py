"""Frames to messages and back, in both encodings of the client protocol.

`JSON` and `MSGPACK` are the two codecs; `CODECS` finds them by WebSocket subprotocol. A member
uses `decode`, `encode` and `messages`; a client uses `encode_request` and `decode_answer`.
Invariant: whatever bytes come in, decoding returns a checked message or raises WireError.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final, Literal, NoReturn, TypeVar

import msgspec

from migratory.wire import client as c
from migratory.wire.client import ClientMessage, Message, Messages, Publish, Sent, ServerMessage
from migratory.wire.codes import Code, WireError
from migratory.wire.entry import FIRST, TEXT, Entry
from migratory.wire.ids import Position

# What the decoders raise on hostile bytes: bad UTF-8 and bad values are ValueErrors, a deep
# nesting is a RecursionError, a map as the key of a map a TypeError.
_HOSTILE: Final = (ValueError, RecursionError, TypeError, OverflowError)

T = TypeVar("T")


class Codec:
    """What both encodings have in common."""

    subprotocol: ClassVar[str]
    text: ClassVar[bool]  # whether frames are WebSocket text messages

    def decode(self, frame: bytes | bytearray | memoryview | str) -> ClientMessage:
        """A client's frame as a checked message; WireError when it breaks the protocol."""
        raise NotImplementedError

    def encode(self, message: ServerMessage) -> bytes:
        """A server's message as the bytes of a frame."""
        raise NotImplementedError

    def messages(self, topic: str, entries: Iterable[Entry]) -> bytes:
        """The MESSAGES frame of these entries, the same bytes for every subscriber."""
        raise NotImplementedError

    def encode_request(self, message: ClientMessage) -> bytes:
        """A client's message as the bytes of a frame."""
        raise NotImplementedError

    def decode_answer(self, frame: bytes | bytearray | memoryview | str) -> ServerMessage:
        """A server's frame as a message; WireError when it breaks the protocol."""
        raise NotImplementedError


# ---- JSON --------------------------------------------------------------------------------------


class _JsonSent(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    topic: str
    pseq: c.Number = 0
    data: str | None = None
    data64: bytes | None = None
    rewind: c.Number = 0


class _JsonPublish(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag="publish",
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    id: c.Number
    messages: list[_JsonSent]
    pid: str = ""
    ack: Literal["none", "replicated"] = "replicated"


class _JsonMessage(msgspec.Struct, frozen=True, omit_defaults=True):
    epoch: int
    sequence: int
    ts: int
    data: str | None = None
    data64: bytes | None = None
    first: bool = False


class _JsonMessages(msgspec.Struct, frozen=True, tag_field="type", tag="messages"):
    topic: str
    messages: list[_JsonMessage]


_Requests = c.Connect | c.Subscribe | c.Unsubscribe | c.Ping | c.Pong
_Answers = (
    c.Welcome | c.Subscribed | c.Unsubscribed | c.Gap | c.Reset | c.Denied | c.Ack | c.Nack
    | c.Ping | c.Pong | c.Goaway | c.Error
)  # fmt: skip


class JsonCodec(Codec):
    """`migratory.v1.json`: text frames, one object each."""

    subprotocol = "migratory.v1.json"
    text = True

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder().encode
        self._request = msgspec.json.Decoder(_Requests | _JsonPublish).decode
        self._answer = msgspec.json.Decoder(_Answers | _JsonMessages).decode

    def decode(self, frame: bytes | bytearray | memoryview | str) -> ClientMessage:
        """A client's frame as a checked message; WireError when it breaks the protocol."""
        message: _Requests | _JsonPublish = _guarded(self._request, frame)
        if isinstance(message, _JsonPublish):
            return _checked_publish(_from_json(message))
        return _checked(message)

    def encode(self, message: ServerMessage) -> bytes:
        """A server's message as the bytes of a frame."""
        if type(message) is Messages:
            items = [
                _JsonMessage(m.epoch, m.sequence, m.ts, *_split(m.data), m.first)
                for m in message.messages
            ]
            return self._encode(_JsonMessages(message.topic, items))
        return self._encode(message)

    def messages(self, topic: str, entries: Iterable[Entry]) -> bytes:
        """The MESSAGES frame of these entries, the same bytes for every subscriber."""
        items = []
        for e in entries:
            first = bool(e.flags & FIRST)
            if e.flags & TEXT:
                item = _JsonMessage(e.epoch, e.seq, e.ts, e.payload.decode(), None, first)
            else:
                item = _JsonMessage(e.epoch, e.seq, e.ts, None, e.payload, first)
            items.append(item)
        return self._encode(_JsonMessages(topic, items))

    def encode_request(self, message: ClientMessage) -> bytes:
        """A client's message as the bytes of a frame."""
        if type(message) is Publish:
            items = [
                _JsonSent(m.topic, m.pseq, *_split(m.data), m.rewind) for m in message.messages
            ]
            ack: Any = "replicated" if message.pid else "none"
            return self._encode(_JsonPublish(message.id, items, message.pid, ack))
        return self._encode(message)

    def decode_answer(self, frame: bytes | bytearray | memoryview | str) -> ServerMessage:
        """A server's frame as a message; WireError when it breaks the protocol."""
        message: _Answers | _JsonMessages = _guarded(self._answer, frame)
        if isinstance(message, _JsonMessages):
            items = [
                Message(m.epoch, m.sequence, m.ts, _joined(m.data, m.data64), m.first)
                for m in message.messages
            ]
            return Messages(message.topic, items)
        return message


def _from_json(message: _JsonPublish) -> Publish:
    # PROTOCOL 6.2: the pid and the acknowledgement belong together.
    if message.ack == "none" and message.pid:
        raise WireError(Code.BAD_FRAME, 'leave "pid" out with "ack": "none"')
    if message.ack == "replicated" and not message.pid:
        raise WireError(Code.BAD_FRAME, 'send a "pid", or "ack": "none" to go without answers')
    sent = [Sent(m.topic, _joined(m.data, m.data64), m.pseq, m.rewind) for m in message.messages]
    return Publish(message.id, message.pid, sent)


def _joined(data: str | None, data64: bytes | None) -> str | bytes:
    # PROTOCOL 2.5
    if data is None and data64 is not None:
        return data64
    if data is not None and data64 is None:
        return data
    raise WireError(Code.BAD_FRAME, 'each message has either "data" or "data64"')


def _split(data: str | bytes) -> tuple[str | None, bytes | None]:
    return (data, None) if isinstance(data, str) else (None, data)


# ---- MessagePack -------------------------------------------------------------------------------


class MsgpackCodec(Codec):
    """`migratory.v1.msgpack`: binary frames; maps, but arrays for PUBLISH and MESSAGES."""

    subprotocol = "migratory.v1.msgpack"
    text = False

    def __init__(self) -> None:
        self._encode = msgspec.msgpack.Encoder().encode
        self._publish = msgspec.msgpack.Decoder(Publish).decode
        self._request = msgspec.msgpack.Decoder(_Requests).decode
        self._messages = msgspec.msgpack.Decoder(Messages).decode
        self._answer = msgspec.msgpack.Decoder(_Answers).decode

    def decode(self, frame: bytes | bytearray | memoryview | str) -> ClientMessage:
        """A client's frame as a checked message; WireError when it breaks the protocol."""
        if isinstance(frame, str):
            raise WireError(Code.BAD_FRAME, "send binary frames with this subprotocol")
        if frame and frame[0] >> 4 == 9:  # PROTOCOL 2.4: a short array
            publish = _guarded(self._publish, frame)
            for sent in publish.messages:
                if type(sent.data) is not str and type(sent.data) is not bytes:
                    raise WireError(Code.BAD_FRAME, "a payload is a str or a bin")
            return _checked_publish(publish)
        return _checked(_guarded(self._request, frame))

    def encode(self, message: ServerMessage) -> bytes:
        """A server's message as the bytes of a frame."""
        return self._encode(message)

    def messages(self, topic: str, entries: Iterable[Entry]) -> bytes:
        """The MESSAGES frame of these entries, the same bytes for every subscriber."""
        items = []
        for e in entries:
            data = e.payload.decode() if e.flags & TEXT else e.payload
            items.append((e.epoch, e.seq, e.ts, data, bool(e.flags & FIRST)))
        return self._encode((2, topic, items))

    def encode_request(self, message: ClientMessage) -> bytes:
        """A client's message as the bytes of a frame."""
        return self._encode(message)

    def decode_answer(self, frame: bytes | bytearray | memoryview | str) -> ServerMessage:
        """A server's frame as a message; WireError when it breaks the protocol."""
        if isinstance(frame, str):
            raise WireError(Code.BAD_FRAME, "a binary frame was expected")
        if frame and frame[0] >> 4 == 9:
            messages = _guarded(self._messages, frame)
            for message in messages.messages:
                if type(message.data) is not str and type(message.data) is not bytes:
                    raise WireError(Code.BAD_FRAME, "a payload is a str or a bin")
            return messages
        answer: _Answers = _guarded(self._answer, frame)
        return answer


# ---- checks ------------------------------------------------------------------------------------


def _guarded(decode: Callable[[Any], T], frame: bytes | bytearray | memoryview | str) -> T:
    try:
        return decode(frame)
    except _HOSTILE as error:
        _refuse(error)


def _refuse(error: Exception) -> NoReturn:
    detail = str(error) or type(error).__name__
    if detail.endswith(("`$.type`", "`$[0]`", "field `type`")):
        raise WireError(Code.UNKNOWN_TYPE, f"{detail}; see the frame types of v1") from None
    raise WireError(Code.BAD_FRAME, detail) from None


def _checked_publish(message: Publish) -> Publish:
    messages = message.messages
    if not 0 < len(messages) <= c.MAX_MESSAGES_PER_FRAME:
        raise WireError(
            Code.BAD_FRAME, f"a PUBLISH has 1 to {c.MAX_MESSAGES_PER_FRAME} messages; split it"
        )
    pid = message.pid
    if pid:
        fault = c.publisher_fault(pid)
        if fault is not None:
            raise WireError(Code.BAD_FRAME, fault)
        for sent in messages:
            if sent.pseq == 0:  # PROTOCOL 6.3
                raise WireError(Code.BAD_FRAME, "with a pid every message has a pseq, from 1 on")
    else:
        for sent in messages:
            if sent.pseq != 0:
                raise WireError(Code.BAD_FRAME, "a pseq has no meaning without a pid")
    return message


def _checked(message: _Requests) -> ClientMessage:
    if isinstance(message, c.Subscribe):
        _check_count(len(message.topics))
        for wanted in message.topics:
            _check_position(wanted.position)
    elif isinstance(message, c.Unsubscribe):
        _check_count(len(message.topics))
    elif isinstance(message, c.Connect) and message.protocol != c.PROTOCOL:
        raise WireError(Code.UNSUPPORTED_VERSION, f"this server speaks protocol {c.PROTOCOL}")
    return message


def _check_count(topics: int) -> None:
    if topics == 0:
        raise WireError(Code.BAD_FRAME, "name at least one topic")
    if topics > c.MAX_TOPICS_PER_FRAME:  # PROTOCOL 4.1
        raise WireError(
            Code.TOO_MANY_TOPICS,
            f"a frame names at most {c.MAX_TOPICS_PER_FRAME} topics; split it",
        )


def _check_position(position: Position | None) -> None:
    if position is None:
        return
    if not (0 <= position.epoch <= c.MAX_NUMBER and 0 <= position.sequence <= c.MAX_NUMBER):
        raise WireError(Code.BAD_FRAME, "a position is [epoch, sequence], each from 0 to 2^53 - 1")


JSON: Final = JsonCodec()
MSGPACK: Final = MsgpackCodec()
CODECS: Final[dict[str, Codec]] = {codec.subprotocol: codec for codec in (MSGPACK, JSON)}
