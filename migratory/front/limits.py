"""The bounds of a front: everything that a stranger can send, keep or make wait has one.

What is also told to clients in WELCOME stands in `migratory.wire.client.Limits`.
"""

from __future__ import annotations

import msgspec

from migratory.wire.client import Limits


class FrontLimits(msgspec.Struct, frozen=True):
    """Sizes in bytes, times in seconds, counts per turn of the loop."""

    client: Limits = Limits()
    clients: int = 19_000  # beyond it a handshake is answered with 503
    backlog: int = 4096  # connections that the kernel holds before they are accepted
    outbox_bytes: int = 1 << 20  # then SLOW_CONSUMER
    fragments: int = 256  # WebSocket frames of one message
    stranger_bytes: int = 16 * 1024  # of the handshake, and of a frame before CONNECT is accepted
    handshake_s: float = 10.0
    connect_s: float = 10.0  # PROTOCOL 3.3
    keepalive_s: float = 30.0  # PROTOCOL 7
    close_s: float = 2.0  # for the other side to take a close frame and to close
    accept_pause_s: float = 0.5  # when descriptors or memory have run out
    dedup_ttl_ms: int = 900_000  # only told to clients
    read_bytes: int = 256 * 1024
    accepts_per_turn: int = 64
    reads_per_turn: int = 256
    publications_per_turn: int = 4096
    sends_per_turn: int = 512
    goodbyes_per_tick: int = 500
