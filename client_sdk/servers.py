"""Where to connect next, and when.

Random choice by weight spreads clients over members; a server that failed is left out for a
while; the first rounds over all servers are quick, so that the loss of one member costs little,
and later ones wait a random time below a growing bound, so that a herd does not come back in
step (PROTOCOL 10.5). Pure: time and randomness are given.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from random import Random
from typing import Final

from migratory.wire.client import DEFAULT_WEIGHT, PATH, Server

QUICK_ROUNDS: Final = 2
QUICK_DELAY: Final = 0.05
BASE_DELAY: Final = 0.1
MAX_DELAY: Final = 10.0
BLACKLIST_BASE: Final = 1.0
BLACKLIST_MAX: Final = 30.0


class _Entry:
    __slots__ = ("failures", "out_until", "weight")

    def __init__(self, weight: int) -> None:
        self.weight = weight
        self.failures = 0
        self.out_until = 0.0


class Servers:
    """The known servers, and how the attempts to reach them went."""

    def __init__(self, addresses: Iterable[str], random: Random) -> None:
        self._random = random
        self._known = {address: _Entry(DEFAULT_WEIGHT) for address in addresses}
        if not self._known:
            raise ValueError("name at least one server, such as 127.0.0.1:8800")
        self._hints: list[str] = []
        self._attempts = 0

    def __repr__(self) -> str:
        return f"<Servers {' '.join(self._known)}; {self._attempts} attempts>"

    def learn(self, servers: Iterable[Server]) -> None:
        """Take over what a WELCOME says; those given by the user stay, as a proxy may be needed."""
        for server in servers:
            entry = self._known.setdefault(server.address, _Entry(server.weight))
            entry.weight = server.weight

    def hint(self, addresses: Sequence[str]) -> None:
        """Prefer these for the next choice, as a GOAWAY asks."""
        self._hints = [address for address in addresses if address]

    def choose(self, now: float) -> str:
        """The server to try now."""
        if self._hints:
            chosen = self._random.choice(self._hints)
            self._hints = []
            self._known.setdefault(chosen, _Entry(DEFAULT_WEIGHT))
            return chosen
        usable = [a for a, e in self._known.items() if e.out_until <= now and e.weight > 0]
        if not usable:
            return min(self._known, key=lambda address: self._known[address].out_until)
        weights = [self._known[address].weight for address in usable]
        return self._random.choices(usable, weights)[0]

    def failed(self, address: str, now: float) -> None:
        """Leave out for a while a server that was not reached, or that sent the client away."""
        entry = self._known.setdefault(address, _Entry(DEFAULT_WEIGHT))
        out = min(BLACKLIST_MAX, BLACKLIST_BASE * 2**entry.failures)
        entry.failures = min(entry.failures + 1, 16)
        entry.out_until = now + out

    def worked(self, address: str) -> None:
        """A connection to this server has served for a while."""
        self._attempts = 0
        entry = self._known.get(address)
        if entry is not None:
            entry.failures = 0
            entry.out_until = 0.0

    def delay(self) -> float:
        """How long to wait before the next attempt, in seconds."""
        attempt, self._attempts = self._attempts, self._attempts + 1
        quick = QUICK_ROUNDS * len(self._known)
        if attempt == 0:
            return 0.0
        if attempt < quick:
            return self._random.uniform(0, QUICK_DELAY)
        bound = min(MAX_DELAY, BASE_DELAY * 2 ** min(attempt - quick, 16))
        return self._random.uniform(0, bound)


def url_of(address: str, like: str = "") -> str:
    """The WebSocket address of a server; one without scheme is reached as `like` was."""
    if "://" in address:
        scheme, rest = address.split("://", 1)
        host, _, path = rest.partition("/")
        return f"{scheme}://{host}/{path}" if path else f"{scheme}://{host}{PATH}"
    scheme = like.split("://", 1)[0] if "://" in like else "ws"
    return f"{scheme}://{address}{PATH}"
