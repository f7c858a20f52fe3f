"""One client connection as the front remembers it: small, since there are many.

Most slots of an idle connection are None: containers exist only while they hold something.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import TYPE_CHECKING

from migratory.wire.client import Acked, Nacked, Outcome
from migratory.wire.codec import JSON, Codec

if TYPE_CHECKING:
    from migratory.front.handshake import Upgrade
    from migratory.front.subscriptions import CatchUp

# The states, in the order in which a connection goes through them.
HANDSHAKE = 0  # HTTP
OPENED = 1  # WebSocket; CONNECT is awaited
CONNECTED = 2
CLOSING = 3  # the last bytes are on their way; whatever comes in is thrown away
GONE = 4

STATES = ("handshake", "opened", "connected", "closing", "gone")


class Connection:
    """The state of one client; the classes of the front each own some of the slots."""

    __slots__ = (
        "acks",
        "asked",
        "blocked",
        "codec",
        "cut",
        "fd",
        "fragments",
        "heard",
        "limit",
        "nacks",
        "need",
        "out",
        "outcomes",
        "queued",
        "since",
        "sock",
        "spoke",
        "state",
        "stopped",
        "tail",
        "topics",
        "unanswered",
        "upgrade",
        "wanted",
        "whole",
    )

    def __init__(self, sock: socket.socket, now: float) -> None:
        # plane
        self.sock, self.fd = sock, sock.fileno()
        self.state = HANDSHAKE
        self.since = self.heard = self.spoke = now  # this state, the last byte in, the last out
        self.out: list[bytes] | None = None  # frames that wait to be sent
        self.queued = 0  # their bytes
        self.blocked = False  # the kernel takes no more for now
        self.cut = False  # the first of them is the rest of a frame
        self.stopped = False  # not read from, see unanswered
        # handshake and frames
        self.upgrade: Upgrade | None = None
        self.codec: Codec = JSON
        self.whole = 0x81  # first byte of an unfragmented frame of the encoding
        self.tail: bytearray | None = None  # an incomplete frame
        self.need = 0  # bytes of the tail that make it worth another look
        self.fragments: list[bytes] | None = None
        self.limit = 0  # bytes of a message
        # subscriptions
        self.topics: dict[str, CatchUp | None] | None = None  # None: live
        self.wanted: deque[CatchUp] | None = None  # pages to be asked for
        self.asked = 0  # pages asked for
        self.outcomes: list[tuple[int, Outcome]] | None = None  # to be told, with the request's id
        # publications
        self.unanswered = 0
        self.acks: list[Acked] | None = None
        self.nacks: list[Nacked] | None = None

    def __repr__(self) -> str:
        topics = len(self.topics or ())
        return (
            f"<Connection {self.fd} {STATES[self.state]} topics={topics}"
            f" unanswered={self.unanswered} queued={self.queued}>"
        )
