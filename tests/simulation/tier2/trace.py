"""The event trace of a run: hashed, so that two runs can be compared, and shown on demand."""

from __future__ import annotations

import hashlib

import trio


class Trace:
    """Everything that happened, in order."""

    def __init__(self, *, shown: bool = False) -> None:
        self._hash = hashlib.blake2b(digest_size=16)
        self._shown = shown
        self.events = 0

    def add(self, who: str, what: str) -> None:
        """Something happened now."""
        self.events += 1
        line = f"{trio.current_time():.6f} {who} {what}"
        self._hash.update(line.encode())
        if self._shown:
            print(line)

    @property
    def digest(self) -> str:
        """The same for two runs in which the same happened."""
        return self._hash.hexdigest()
