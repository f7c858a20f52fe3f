"""Every code that a client can meet, with its number and its duty.

A code's number is the WebSocket close code when a connection ends with it; its hundred is the
duty of whoever receives it, so a client that does not know a code still knows what to do.
Invariant: numbers and names are never reused for another meaning (docs/protocol.md 9).
"""

from __future__ import annotations

from enum import Enum


class Duty(Enum):
    """What the receiver of a code has to do."""

    RETRY = "retry"  # 4000-4099: do it again here, after the stated or a growing delay
    ELSEWHERE = "elsewhere"  # 4100-4199: reconnect to another server and resume
    STOP = "stop"  # 4200-4299: repeating the same thing cannot succeed

    @classmethod
    def of(cls, number: int) -> Duty | None:
        """The duty that a close code asks for, or None when it is not one of this protocol."""
        return _BY_HUNDRED.get(number // 100)


_BY_HUNDRED = {40: Duty.RETRY, 41: Duty.ELSEWHERE, 42: Duty.STOP}


class Code(Enum):
    """A named reason. On the wire it travels by name, or by number as a close code."""

    RETRY = 4000, "The outcome is open. Send it again with the same pseq after retry_after."
    BUSY = 4001, "The topic group has too much under way. Send it again after retry_after."
    OUT_OF_ORDER = 4002, "An earlier pseq is missing. Send again from the expected one, in order."
    UNAVAILABLE = 4003, "The topic group has no working coordinator now. Try again later."
    TOO_FAST = 4004, "The rate limit was exceeded. Try again after retry_after."
    CANCELLED = 4005, "The topic was unsubscribed before its outcome was known."
    SLOW_CONSUMER = 4010, "Messages were read too slowly. Reconnect and resume; read faster."
    KEEPALIVE_TIMEOUT = 4011, "Nothing was heard for too long. Reconnect and resume."
    CONNECT_TIMEOUT = 4012, "CONNECT did not come in time. Send it right after the handshake."

    GO_ELSEWHERE = 4100, "This member cannot serve now. Reconnect to another one and resume."
    BEHIND = 4101, "This member is behind your position. Reconnect to another one and resume."
    DRAINING = 4102, "This member is being stopped. Reconnect to another one and resume."
    TOO_MANY_CLIENTS = 4103, "This member is full. Connect to another one."
    INTERNAL_ERROR = 4104, "A fault of this member. Reconnect to another one and report it."

    BAD_FRAME = 4200, "The frame does not follow the protocol. Correct the client."
    UNKNOWN_TYPE = 4201, "The frame has an unknown type. Correct or update the client."
    UNSUPPORTED_VERSION = 4202, "The protocol version is not spoken here. Use another client."
    NOT_CONNECTED = 4203, "The first frame was not CONNECT. Send CONNECT first."
    ALREADY_CONNECTED = 4204, "CONNECT came twice. Send it once per connection."
    FRAME_TOO_LARGE = 4205, "The frame exceeds limits.frame_bytes. Split it."
    TOO_MANY_TOPICS = 4206, "The frame names too many topics. Split it."
    TOO_MANY_SUBSCRIPTIONS = 4207, "The client has too many topics. Unsubscribe some first."
    ALREADY_SUBSCRIBED = 4208, "The topic is subscribed already. Unsubscribe it first."
    BAD_TOPIC = 4210, "The topic name is not valid. Correct it."
    TOO_LARGE = 4211, "The payload exceeds limits.payload_bytes. Send less."
    PSEQ_REUSED = 4212, "This pseq was used for another payload. Use a fresh pid."
    UNKNOWN_PUBLISHER = 4213, "The publisher is forgotten. Outcomes are unknown; use a fresh pid."
    NOT_ALLOWED = 4220, "The token does not allow this on the topic. Ask for the right."
    UNAUTHORIZED = 4221, "The token is missing or not valid. Connect with a good one."
    TOKEN_EXPIRED = 4222, "The token has expired. Connect with a fresh one."
    SUPERSEDED = 4223, "Another connection has taken over this client id. Do not reconnect."

    def __init__(self, number: int, sentence: str) -> None:
        self.number = number
        self.sentence = sentence

    @property
    def duty(self) -> Duty:
        """What the receiver has to do."""
        return _BY_HUNDRED[self.number // 100]

    @classmethod
    def named(cls, name: str) -> Code | None:
        """The code of this name, or None for one of a newer release."""
        return cls.__members__.get(name)

    @classmethod
    def numbered(cls, number: int) -> Code | None:
        """The code of this close number, or None for one of a newer release."""
        return _BY_NUMBER.get(number)


_BY_NUMBER = {code.number: code for code in Code}


class WireError(Exception):
    """Bytes that break the protocol; the connection they came on is closed with `code`."""

    def __init__(self, code: Code, detail: str) -> None:
        super().__init__(f"{code.name}: {detail}")
        self.code = code
        self.detail = detail
