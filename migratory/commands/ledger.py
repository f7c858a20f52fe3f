"""What publishers were promised and what subscribers got, and whether the two agree.

Everything is counted from the notes themselves, at the end, by the plainest code that does it.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from client_sdk.items import Message
from migratory.wire.ids import Position


class Ledger:
    """Notes of one run. Payloads are unique, so that a second copy of a message shows."""

    def __init__(self, topics: Sequence[str], subscribers: int) -> None:
        self.published = 0
        self.unknown = 0  # published, and the publisher was told that the outcome is not known
        self.gaps = 0  # GAP and RESET that subscribers were told
        self.acked: dict[str, dict[Position, str]] = {topic: {} for topic in topics}
        self.delivered: list[dict[str, list[Message]]] = [
            {topic: [] for topic in topics} for _ in range(subscribers)
        ]

    @property
    def ack_count(self) -> int:
        """How many messages were acknowledged."""
        return sum(len(acked) for acked in self.acked.values())

    @property
    def delivery_count(self) -> int:
        """How many deliveries all subscribers noted."""
        return sum(len(each) for seen in self.delivered for each in seen.values())

    def lost(self) -> int:
        """Acknowledged messages that a subscriber does not have, or has with other content."""
        lost = 0
        for seen in self.delivered:
            for topic, acked in self.acked.items():
                got = {m.position: m.payload for m in seen[topic]}
                lost += sum(got.get(position) != text for position, text in acked.items())
        return lost

    def duplicated(self) -> int:
        """Messages that a subscriber got more than once."""
        return sum(
            len(messages) - len({m.payload for m in messages})
            for seen in self.delivered
            for messages in seen.values()
        )

    def reordered(self) -> int:
        """Neighbours in a subscriber's notes that are not neighbours in the topic."""
        return sum(
            b.position.sequence != a.position.sequence + 1 or b.position.epoch < a.position.epoch
            for seen in self.delivered
            for messages in seen.values()
            for a, b in itertools.pairwise(messages)
        )

    def summary(self) -> str:
        """One line for people."""
        return (
            f"published {self.published} acked {self.ack_count} delivered {self.delivery_count}"
            f" lost {self.lost()} duplicated {self.duplicated()} reordered {self.reordered()}"
        )

    def faultless(self) -> bool:
        """Whether every subscriber got every acknowledged message once and in order."""
        return self.lost() + self.duplicated() + self.reordered() + self.gaps == 0
