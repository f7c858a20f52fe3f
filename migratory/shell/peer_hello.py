"""Who may talk to whom: what a member checks in the Hello of another.

Both sides check everything, so that two processes which do not agree on the cluster, or one that
was replaced by a later life of the same member, never exchange a message.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from migratory.wire.ids import Boot
from migratory.wire.peer import PEER_PROTOCOL, Goodbye, Hello

DATA, CONTROL_CHANNEL = "data", "control"

# Reasons of a Goodbye. After the first five the side that is refused has something to repair.
WRONG_PROTOCOL = "WRONG_PROTOCOL"
WRONG_CLUSTER = "WRONG_CLUSTER"
CONFIG_MISMATCH = "CONFIG_MISMATCH"
UNKNOWN_MEMBER = "UNKNOWN_MEMBER"
STALE_BOOT = "STALE_BOOT"  # and must exit
NO_HELLO = "NO_HELLO"
LEAVING = "LEAVING"  # a clean end of the process


class Identity(msgspec.Struct, frozen=True):
    """What this process says of itself to its peers."""

    cluster: str
    config: str  # hash of everything that must be equal on all members
    members: tuple[str, ...]
    member: str
    boot: Boot

    def hello(self, channel: str, link: int) -> Hello:
        """The first message on a connection."""
        return Hello(
            PEER_PROTOCOL, self.cluster, self.config, self.member, self.boot, channel, link
        )


def refusal(me: Identity, hello: Hello, known: Mapping[str, Boot]) -> Goodbye | None:
    """Why this Hello is not acceptable, or None when it is.

    `known` holds the latest boot of every member that was ever heard of.
    """
    if hello.protocol != PEER_PROTOCOL:
        return Goodbye(
            WRONG_PROTOCOL, f"{me.member} speaks protocol {PEER_PROTOCOL}, you {hello.protocol}"
        )
    if hello.cluster != me.cluster:
        return Goodbye(WRONG_CLUSTER, f"{me.member} is of cluster {me.cluster!r}")
    if hello.config != me.config:
        return Goodbye(
            CONFIG_MISMATCH, f"{me.member} runs with another membership ({me.config[:12]})"
        )
    if hello.member not in me.members or hello.channel not in (DATA, CONTROL_CHANNEL):
        return Goodbye(UNKNOWN_MEMBER, f"{me.member} knows no {hello.channel} of {hello.member!r}")
    latest = me.boot if hello.member == me.member else known.get(hello.member, hello.boot)
    if hello.boot < latest:
        return stale(hello.member, hello.boot, latest)
    return None


def stale(member: str, boot: Boot, latest: Boot) -> Goodbye:
    """What a life that was replaced by a later one is told."""
    return Goodbye(STALE_BOOT, f"{member} was started again as boot {latest}; {boot} must end")
