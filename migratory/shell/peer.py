"""What a mesh knows of a peer: its link, half of the next one, and what was told of it."""

from __future__ import annotations

import trio

from migratory.shell.peer_socket import Address, PeerSocket
from migratory.wire.ids import Boot
from migratory.wire.peer import Hello


class Link:
    """Two connections to one life of a peer."""

    __slots__ = ("boot", "control", "credited", "data", "number", "scope")

    def __init__(
        self, boot: Boot, number: int, data: PeerSocket, control: PeerSocket, now: float
    ) -> None:
        self.boot = boot
        self.number = number
        self.data = data
        self.control = control
        self.credited = 0  # bytes of the data connection for which the peer has its credit
        self.scope = trio.CancelScope()  # of the tasks that serve the link
        self.hear(now)

    def hear(self, now: float) -> None:
        """Both connections count as heard."""
        self.data.heard = self.control.heard = now

    @property
    def heard(self) -> float:
        """When the last bytes came over the connection that has been silent for longer."""
        return min(self.data.heard, self.control.heard)


class Half:
    """One accepted connection of a link whose other one has not come yet."""

    def __init__(self, hello: Hello, connection: PeerSocket) -> None:
        self.hello = hello
        self.connection = connection
        self.scope = trio.CancelScope()  # of the wait for a change of mind

    def fits(self, hello: Hello) -> bool:
        """Whether this is the Hello of its twin."""
        mine = self.hello
        same = (mine.boot, mine.link) == (hello.boot, hello.link)
        return same and mine.channel != hello.channel

    def is_later_than(self, hello: Hello) -> bool:
        """Whether it was dialed after this one."""
        return (self.hello.boot, self.hello.link) > (hello.boot, hello.link)


class Peer:
    """What is known of another member."""

    def __init__(self, name: str, address: Address) -> None:
        self.name = name
        self.address = address
        self.link: Link | None = None
        self.half: Half | None = None
        self.down = trio.Event()  # set while there is no link
        self.down.set()
        self.up = trio.Event()
        self.refused = False  # told in this outage
        self.complaint = ""  # the last refusal that was logged
        self.number = 0  # of the last link that this process dialed
