"""What members and ZooKeeper servers say of themselves, whoever started them.

Invariant: a member counts as forgetful from its end until its next life says that it is NORMAL;
whoever ends one puts it into `forgetful`.
"""

from __future__ import annotations

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import msgspec
import trio

from chaos.kinds import ROLES
from chaos.network import Network
from chaos.topics import HOT_GROUP
from migratory.errors import MigratoryError

ASK = 1.0  # seconds for an answer
LOOK = 0.1  # seconds between two looks at something that tells nobody when it changes
START = 60.0  # seconds for everything to be NORMAL

Service = Literal["admin", "zookeeper"]
Status = dict[str, Any]


class Ending(NamedTuple):
    """A process that ended as it should not."""

    name: str
    code: int | None
    when: str


class Watched(ABC):
    """A cluster that can be asked how it is; what is done to it is of those who derive."""

    def __init__(
        self, members: Sequence[str], zookeepers: Sequence[str], survive: int, directory: Path,
        network: Network,
    ) -> None:  # fmt: skip
        self.members = list(members)
        self.zookeepers = list(zookeepers)
        self.survive = survive
        self.directory = directory
        self.network = network
        self.forgetful: set[str] = set()  # members that were ended and not seen NORMAL since

    @property
    @abstractmethod
    def servers(self) -> list[str]:
        """Where clients connect."""

    @abstractmethod
    async def dial(self, name: str, service: Service) -> trio.SocketStream:
        """A connection to a service of a host; OSError when there is none."""

    @property
    def advice(self) -> str:
        """Where people look when members are not well."""
        return f"the members' logs are in {self.directory}"

    @abstractmethod
    def life(self, name: str) -> object:
        """Something that is another one for each life of a member; None while it has none."""

    def revive(self) -> list[Ending]:
        """Start what ended by itself; who did, or did not end as it was asked to."""
        return []

    async def status(self, name: str) -> Status | None:
        """What a member says of itself; None while it does not."""
        request = b"GET /status HTTP/1.1\r\nHost: member\r\nConnection: close\r\n\r\n"
        life = self.life(name)
        answer = await self._ask(name, "admin", request)
        try:
            found = msgspec.json.decode(answer.partition(b"\r\n\r\n")[2])
        except msgspec.DecodeError:
            return None
        if not isinstance(found, dict) or "groups" not in found:
            return None
        if found["normal"] and life is not None and life == self.life(name):
            self.forgetful.discard(name)
        return found

    async def statuses(self) -> dict[str, Status | None]:
        """The same of all members, asked side by side."""
        found: dict[str, Status | None] = {}

        async def fill(name: str) -> None:
            found[name] = await self.status(name)

        async with trio.open_nursery() as nursery:
            for name in self.members:
                nursery.start_soon(fill, name)
        return {name: found[name] for name in self.members}

    async def _ask(self, name: str, service: Service, request: bytes) -> bytes:
        """One question; empty when nobody answers."""
        answer = b""
        with (
            trio.move_on_after(ASK) as waited,
            contextlib.suppress(OSError, trio.BrokenResourceError),
        ):
            async with await self.dial(name, service) as asked:
                await asked.send_all(request)
                async for part in asked:
                    answer += part
        return b"" if waited.cancelled_caught else answer

    async def in_role(self, role: str) -> str:
        """Who has a role in the group with the most traffic; anybody while nobody coordinates."""
        views = [s["groups"][HOT_GROUP] for s in (await self.statuses()).values() if s is not None]
        named = [view for view in views if view["coordinator"]]
        best = max(named, key=lambda view: int(view["epoch"]), default=None)
        first = self.members.index(best["coordinator"]) if best else 0
        return self.members[(first + ROLES.index(role)) % len(self.members)]

    async def zookeeper_leader(self) -> str:
        """Which ZooKeeper server leads; any when nobody says so."""
        for name in self.zookeepers:
            if b"Mode: leader" in await self._ask(name, "zookeeper", b"srvr"):
                return name
        return self.zookeepers[0]

    async def is_normal(self) -> bool:
        """Whether every member serves, is NORMAL and knows each group's coordinator."""
        return all(
            status is not None
            and status["normal"]
            and status["serving"]
            and all(group["coordinator"] for group in status["groups"])
            for status in (await self.statuses()).values()
        )

    async def wait_normal(self, patience: float = START) -> None:
        """Wait until all members are well, or say who is not."""
        with trio.move_on_after(patience):
            while not await self.is_normal():  # noqa: ASYNC110 (members tell when asked)
                await trio.sleep(LOOK)
            return
        told = [f"{n}: {_shown(s)}" for n, s in (await self.statuses()).items()]
        wrong = f"not NORMAL in time: {'; '.join(told)}"
        raise MigratoryError("NOT_NORMAL", wrong, self.advice)

    async def wait_remembered(self, name: str) -> None:
        """Wait until `name` may lose its memory without more than `survive` being without one."""
        while len(self.forgetful - {name}) >= self.survive:
            await self.statuses()
            await trio.sleep(LOOK)


def _shown(status: Status | None) -> str:
    if status is None:
        return "does not answer"
    normal = sum(group["status"] == "NORMAL" for group in status["groups"])
    led = sum(bool(group["coordinator"]) for group in status["groups"])
    return f"{normal} groups NORMAL, {led} of {len(status['groups'])} with a coordinator"
