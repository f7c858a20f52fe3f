"""What clients and members say to each other: protocol v1, specified in docs/protocol.md.

One set of frozen Structs for both encodings. In JSON every frame is an object with a "type". In
MessagePack the frames are maps with the same keys, except PUBLISH and MESSAGES, the hot ones:
they are arrays that begin with a number (PROTOCOL 2.4).

Invariants: what a client sends is checked strictly, unknown keys included, since a misspelt
"position" would otherwise start a subscription somewhere else in silence (PROTOCOL 2.6). What a
server sends may grow new keys, which clients ignore.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from migratory.wire.codes import Code
from migratory.wire.entry import TEXT
from migratory.wire.ids import PUBLISHER_ID, Position, topic_fault
from migratory.wire.peer import Publication

PROTOCOL: Final = 1
PATH: Final = "/v1/ws"
MAX_NUMBER: Final = 2**53 - 1  # what a JavaScript number holds exactly
MAX_TOPICS_PER_FRAME: Final = 1000
MAX_MESSAGES_PER_FRAME: Final = 1000
DEFAULT_WEIGHT: Final = 100

Number = Annotated[int, Meta(ge=0, le=MAX_NUMBER)]
Payload = Any  # str for text, bytes for anything else; msgspec has no union of the two


# ---- from the client ---------------------------------------------------------------------------


class _Request(
    msgspec.Struct,
    frozen=True,
    tag_field="type",
    tag=str.lower,
    omit_defaults=True,
    forbid_unknown_fields=True,
):
    pass


class Connect(_Request, frozen=True):
    """The first frame of a connection."""

    protocol: Number
    token: Annotated[str, Meta(max_length=8192)] = ""
    client: Annotated[str, Meta(max_length=64)] = ""  # a name for logs and for SUPERSEDED
    agent: Annotated[str, Meta(max_length=64)] = ""  # the client's software

    def __repr__(self) -> str:
        """Without the token, since reprs end up in logs."""
        return f"Connect(protocol={self.protocol}, client={self.client!r}, agent={self.agent!r})"


class TopicRequest(msgspec.Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One topic of a SUBSCRIBE: resume after a position, or begin with some history."""

    topic: str
    position: Position | None = None
    depth: Number = 0  # messages of history wanted when there is no position


class Subscribe(_Request, frozen=True):
    """Asks for topics; each gets exactly one outcome in some SUBSCRIBED with the same id."""

    id: Number
    topics: list[TopicRequest]


class Unsubscribe(_Request, frozen=True):
    """Gives topics up; answered by one UNSUBSCRIBED."""

    id: Number
    topics: list[str]


class Ping(_Request, frozen=True):
    """Asks the other side, client or server, for a PONG with the same number."""

    n: Number = 0


class Pong(_Request, frozen=True):
    """Answers a PING."""

    n: Number = 0


class Sent(msgspec.Struct, frozen=True, array_like=True, gc=False, forbid_unknown_fields=True):
    """One message of a PUBLISH. pseq is 0 exactly when the frame has no pid."""

    topic: str
    data: Payload
    pseq: Number = 0
    rewind: Number = 0  # echoed by a NACK


class Publish(msgspec.Struct, frozen=True, array_like=True, tag=1, forbid_unknown_fields=True):
    """Messages to publish. With a pid each is answered by ACK or NACK; without, only by NACK."""

    id: Number
    pid: str  # "" is ack "none"
    messages: list[Sent]


ClientMessage = Connect | Subscribe | Unsubscribe | Publish | Ping | Pong


# ---- from the server ---------------------------------------------------------------------------


class _Answer(msgspec.Struct, frozen=True, tag_field="type", tag=str.lower, omit_defaults=True):
    pass


class Limits(msgspec.Struct, frozen=True):
    """What this member accepts from one client."""

    payload_bytes: int = 64 * 1024
    frame_bytes: int = 1024 * 1024
    topics_per_frame: int = MAX_TOPICS_PER_FRAME
    messages_per_frame: int = MAX_MESSAGES_PER_FRAME
    subscriptions: int = 100_000
    unanswered: int = 1000  # publications; beyond it the member stops reading for a while


class Server(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where else to connect; a server of weight 200 is chosen twice as often as one of 100."""

    address: str  # host:port, or a whole ws:// or wss:// address
    weight: int = DEFAULT_WEIGHT


class Welcome(_Answer, frozen=True):
    """Answers CONNECT."""

    protocol: int
    member: str
    keepalive_ms: int
    limits: Limits
    servers: list[Server]
    dedup_ttl_ms: int


OutcomeKind = Literal["fresh", "resumed", "gap", "reset", "denied"]
ResetReason = Literal["history_lost", "diverged", "unknown_position"]


class Outcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """What became of one topic of a SUBSCRIBE. Delivery goes on after `position`."""

    topic: str
    outcome: OutcomeKind
    position: Position | None = None  # absent only when denied
    missed: int = 0  # resumed: messages between the asked position and the head
    asked: int = 0  # gap: the first sequence that was wanted
    first: int = 0  # gap: the first sequence that is still there
    last: int = 0  # gap: the last sequence that is there
    reason: str = ""  # reset: a ResetReason
    code: str = ""  # denied: the name of a Code
    message: str = ""  # denied: for people
    retry_after: int = 0  # denied with a duty to retry: milliseconds


class Subscribed(_Answer, frozen=True):
    """Outcomes of some topics of the SUBSCRIBE with this id, as they become known."""

    id: int
    topics: list[Outcome]


class Unsubscribed(_Answer, frozen=True):
    """Answers UNSUBSCRIBE: no message of its topics comes after this frame."""

    id: int


class Message(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One delivered message."""

    epoch: int
    sequence: int
    ts: int  # wall clock of the coordinator, milliseconds; for people, never to be compared
    data: Payload
    first: bool = False  # the topic starts anew here: what was before is forgotten, not missed


class Messages(msgspec.Struct, frozen=True, array_like=True, tag=2):
    """Messages of one topic in order. The same bytes for every subscriber of an encoding."""

    topic: str
    messages: list[Message]


class Gap(_Answer, frozen=True):
    """A subscribed topic has lost [asked, first) for this client; delivery goes on at first."""

    topic: str
    position: Position
    asked: int
    first: int
    last: int


class Reset(_Answer, frozen=True):
    """A subscribed topic has another history now; delivery goes on after `position`."""

    topic: str
    position: Position
    reason: str


class Denied(_Answer, frozen=True):
    """The server has ended the subscription of a topic; the code's duty tells what to do."""

    topic: str
    code: str
    message: str = ""
    retry_after: int = 0


class Acked(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Message number `index` of the PUBLISH `id` is committed. Epoch 0: position not known."""

    id: int
    index: int
    epoch: int
    sequence: int
    duplicate: bool = False  # it had been published by an earlier attempt


class Ack(_Answer, frozen=True):
    """Acknowledges messages of one or more PUBLISH frames."""

    results: list[Acked]


class Nacked(msgspec.Struct, frozen=True, omit_defaults=True, gc=False):
    """Message number `index` of the PUBLISH `id` was refused."""

    id: int
    index: int
    code: str
    retry_after: int = 0  # milliseconds
    expected: int = 0  # OUT_OF_ORDER: the pseq to go back to
    rewind: int = 0  # as the message carried it
    message: str = ""  # for people


class Nack(_Answer, frozen=True):
    """Refuses messages of one or more PUBLISH frames."""

    results: list[Nacked]


class Goaway(_Answer, frozen=True):
    """A planned end: leave at a random moment within after_ms, preferably to these servers."""

    code: str
    servers: list[str] = []
    after_ms: int = 0
    message: str = ""


class Error(_Answer, frozen=True):
    """Says why the connection is about to be closed."""

    code: str
    message: str


ServerMessage = (
    Welcome | Subscribed | Unsubscribed | Messages | Gap | Reset | Denied | Ack | Nack | Ping
    | Pong | Goaway | Error
)  # fmt: skip


# ---- what the members do with a PUBLISH --------------------------------------------------------


@lru_cache(maxsize=16384)
def known_topic_fault(topic: str) -> str | None:
    """The same as topic_fault, remembered, since publishers use few topics again and again."""
    return topic_fault(topic)


@lru_cache(maxsize=4096)
def publisher_fault(pid: str) -> str | None:
    """Say what is wrong with a publisher id, or None when it is a valid one."""
    if PUBLISHER_ID.fullmatch(pid) is None:
        return "a pid is 16 to 36 of A-Z a-z 0-9 _ -, such as 128 random bits in base64url"
    return None


def payload_bytes(data: Payload) -> bytes:
    """The payload of a message as bytes, text as UTF-8."""
    return data.encode() if type(data) is str else data


def publications(
    frame: Publish, ref: int, max_payload: int
) -> tuple[list[Publication], list[Nacked]]:
    """What goes to the engine, message i with the number ref + i, and what is refused at once."""
    accepted: list[Publication] = []
    refused: list[Nacked] = []
    pid = frame.pid
    for index, sent in enumerate(frame.messages):
        data = sent.data
        if type(data) is str:
            payload, flags = data.encode(), TEXT
        else:
            payload, flags = data, 0
        if known_topic_fault(sent.topic) is None and len(payload) <= max_payload:
            accepted.append(
                Publication(sent.topic, payload, flags, pid, sent.pseq, ref + index, sent.rewind)
            )
        else:
            refused.append(_refusal(frame, index, len(payload), max_payload))
    return accepted, refused


def _refusal(frame: Publish, index: int, size: int, max_payload: int) -> Nacked:
    sent = frame.messages[index]
    fault = known_topic_fault(sent.topic)
    if fault is None:
        message = f"a payload has at most {max_payload} bytes here; this one has {size}"
        return Nacked(frame.id, index, Code.TOO_LARGE.name, rewind=sent.rewind, message=message)
    return Nacked(frame.id, index, Code.BAD_TOPIC.name, rewind=sent.rewind, message=fault)
