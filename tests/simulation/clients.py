"""Simulated publishers: pipelined, resending with the same publisher sequence, in order.

Some send the same publication through two contacts at once; careless ones use a publisher sequence
for two different messages, of which at most one may be acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.events import Publish
from migratory.wire.ids import group_of
from migratory.wire.peer import Publication, Refusal
from migratory.wire.shard import PubAck

if TYPE_CHECKING:
    from tests.simulation.world import World

TOPICS = ["/a", "/b", "/c", "/d", "/e"]
GIVE_UP = 5.0  # less than half of the dedup time of the simulation


class Publisher:
    """One publisher process with one topic at a time."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.number = number
        self.lives = 0
        self.stopped = False
        self.acked = 0
        self.unknown = 0
        self._renew()

    def _renew(self) -> None:
        """A new publisher id, where the outcome of the old one's messages is unknown."""
        self.lives += 1
        self.pid = f"publisher-{self.number:03}-{self.lives:05}"
        self.topic = self.world.random.choice(TOPICS)
        self.pseq = 0
        self.rewind = 0
        self.window: dict[int, tuple[float, bytes]] = {}  # pseq: (first sent, payload)
        self.contact = ""
        self.progress = self.world.now

    def group_of(self, item: Publication) -> int:
        """The group of a publication."""
        return group_of(item.topic, self.world.cluster.groups)

    def start(self) -> None:
        """Begin to publish."""
        self.world.later(self.world.random.uniform(0, 0.5), self._go)

    def stop(self) -> None:
        """Publish nothing new; wait for what is under way."""
        self.stopped = True

    def _go(self) -> None:
        w = self.world
        now = w.now
        oldest = min((sent for sent, _ in self.window.values()), default=now)
        if now - oldest > GIVE_UP:
            self.unknown += len(self.window)
            self._renew()
        if not self.stopped and not self.window and w.random.random() < 0.05:
            self._renew()
        if self.window and now - self.progress > 1.5:
            self.contact = ""  # no answer: another server, and everything again
            self.progress = now
            self._send(sorted(self.window))
        elif not self.stopped and len(self.window) < 6:
            self._publish()
        w.later(w.random.uniform(0.02, 0.3), self._go)

    def _publish(self) -> None:
        r, fresh = self.world.random, []
        for _ in range(r.choice([1, 1, 3])):
            self.pseq += 1
            self.window[self.pseq] = (self.world.now, b"%s-%d" % (self.pid.encode(), self.pseq))
            fresh.append(self.pseq)
        self._send(fresh)
        if r.random() < 0.05:
            self._send_anonymously()
        if r.random() < self.world.weather.careless:
            self._reuse(r.choice(fresh))

    def _send(self, pseqs: list[int]) -> None:
        w = self.world
        process = w.processes.get(self.contact)
        if process is None or process.dead or process.member is None:
            self.contact = w.random.choice(w.cluster.members)
            pseqs = sorted(self.window)
        self._hand_in(self.contact, [self._item(p, self.window[p][1]) for p in pseqs])
        if w.random.random() < 0.05:  # twice at once, each copy with an answer of its own
            other = w.random.choice(w.cluster.members)
            self._hand_in(other, [self._item(p, self.window[p][1]) for p in pseqs])

    def _reuse(self, pseq: int) -> None:
        """A bug of the publisher: another message under the same sequence."""
        other = self.world.random.choice(self.world.cluster.members)
        self._hand_in(other, [self._item(pseq, b"another %d" % pseq)])

    def _send_anonymously(self) -> None:
        """A message without publisher id: at most once, answered only if it is refused."""
        self._hand_in(self.contact, [Publication(self.topic, b"anonymous")])

    def _item(self, pseq: int, payload: bytes) -> Publication:
        w = self.world
        w.last_ref += 1
        item = Publication(self.topic, payload, 0, self.pid, pseq, w.last_ref, self.rewind)
        w.refs[w.last_ref] = (self, item)
        return item

    def _hand_in(self, contact: str, items: list[Publication]) -> None:
        w = self.world
        target = w.processes[contact]
        w.later(w.random.uniform(0.0005, 0.005), lambda: w.give(target, Publish(items)))

    def answer(self, item: Publication, answer: PubAck | Refusal) -> None:
        """The contact answered."""
        if item.pid != self.pid or item.pseq not in self.window:
            return
        if isinstance(answer, PubAck):
            del self.window[item.pseq]
            self.acked += 1
            self.progress = self.world.now
        elif answer.code == "PSEQ_REUSED":
            if item.payload == self.window[item.pseq][1]:
                del self.window[item.pseq]  # the other message under this sequence was first
        elif answer.code in ("RETRY", "OUT_OF_ORDER", "BUSY", "UNAVAILABLE"):
            self._rewind(answer)
        elif answer.code == "UNKNOWN_PUBLISHER":
            if min(self.window) == 1:
                self._rewind(answer)
            else:
                self.unknown += len(self.window)
                self._renew()
        else:
            raise AssertionError(f"{answer} for {item}")

    def _rewind(self, answer: Refusal) -> None:
        """Send everything again from the first unanswered one; one gap is one rewind."""
        if answer.rewind == self.rewind:
            self.rewind += 1
            self.progress = self.world.now
            self._send(sorted(self.window))
