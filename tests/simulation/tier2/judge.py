"""What clients are promised, end to end: checked at every item and at the end of a run.

Publishers: an acknowledgement names the committed message, what is certainly not published never
appears, nothing appears twice or out of its publisher's order. Subscribers: everything in order
from their position on, or an explicit and honest GAP or RESET.
"""

from __future__ import annotations

import msgspec

from cache.retention import Retention
from client_sdk import Gap, Item, Message, Reset, Resumed, Subscribed
from migratory.wire.entry import MSG, Entry
from migratory.wire.ids import Position, group_of
from migratory.wire.shard import HISTORY_LOST, UNKNOWN_POSITION
from tests.simulation.checker import Checker, Committed, Violation

UNPLACED = Position(0, 0)


class Sent(msgspec.Struct):
    """One message of a publisher. `outcome`: none yet, acked, unknown, never."""

    client: str
    number: int
    topic: str
    payload: bytes
    outcome: str = ""


class Judge:
    """Knows what was published and what was committed."""

    def __init__(self, checker: Checker, retention: Retention) -> None:
        self.checker = checker
        self.retention = retention
        self.sent: dict[bytes, Sent] = {}
        self.acked = 0

    def history(self, topic: str, epoch: int) -> Committed:
        """What was committed in the history of a topic's group to which an epoch belongs."""
        g = group_of(topic, self.checker.cluster.groups)
        floors = [f for group, f in self.checker.histories if group == g and f <= epoch]
        return self.checker.history(g, max(floors, default=0))

    def present(self, topic: str) -> Committed:
        """The present history of a topic's group."""
        return self.checker.present(group_of(topic, self.checker.cluster.groups))

    # ---- publishers ----------------------------------------------------------------------------

    def publishes(self, sent: Sent) -> None:
        """A message is on its way from now on."""
        self.sent[sent.payload] = sent

    def acknowledged(self, sent: Sent, position: Position) -> None:
        """FALSE-ACK: the position is that of this very message."""
        self.acked += 1
        sent.outcome = "acked"
        if position != UNPLACED:
            key = (sent.topic, position.epoch, position.sequence)
            found = self.checker.messages.get(key)
            if found is None or found.payload != sent.payload:
                raise Violation(f"FALSE-ACK of {sent} at {position}: there is {found}")
        elif not any(entry.payload == sent.payload for entry in self.checker.messages.values()):
            raise Violation(f"FALSE-ACK of {sent}, which is nowhere")

    def compare_published(self) -> None:
        """ONCE, PUBLISHER-ORDER, NEVER: what publishers were told against what is there."""
        for history in self.checker.histories.values():
            seen: set[bytes] = set()
            last: dict[tuple[str, str], int] = {}
            for entry in history.log.values():
                if entry.kind == MSG:
                    self._published(entry, seen, last)

    def _published(self, entry: Entry, seen: set[bytes], last: dict[tuple[str, str], int]) -> None:
        sent = self.sent.get(entry.payload)
        if sent is None or sent.topic != entry.topic:
            raise Violation(f"PHANTOM {entry}, published as {sent}")
        if entry.payload in seen:
            raise Violation(f"ONCE: {sent} was committed twice")
        if sent.outcome == "never":
            raise Violation(f"NEVER: {sent} was committed")
        seen.add(entry.payload)
        key = (entry.topic, entry.pid)
        if sent.number <= last.get(key, 0):
            raise Violation(f"PUBLISHER-ORDER {sent} after number {last[key]}")
        last[key] = sent.number


class Reader:
    """One topic of one subscriber, over all its connections and lives."""

    def __init__(self, judge: Judge, topic: str) -> None:
        self.judge = judge
        self.topic = topic
        self.position: Position | None = None
        self.start: Position | None = None  # everything after it is due
        self.seen: list[int] = []
        self.missed: list[tuple[int, int]] = []  # ranges of which it was told
        self.outcomes: dict[str, int] = {}
        self.messages = 0

    def take(self, item: Item) -> None:
        """The next item."""
        if isinstance(item, Message):
            self._message(item)
            return
        kind = item.reason if isinstance(item, Reset) else type(item).__name__.lower()
        self.outcomes[kind] = self.outcomes.get(kind, 0) + 1
        before = self.position
        if isinstance(item, Subscribed):
            if before is not None:
                raise Violation(f"FRESH though {self.topic} was at {before}: {item}")
            self._begin(item.position)
        elif before is None:
            raise Violation(f"OUTCOME {item} of {self.topic}, which has no position")
        elif isinstance(item, Resumed):
            if item.position != before:
                raise Violation(f"RESUMED elsewhere: {item} at {before}")
        elif isinstance(item, Gap):
            self._gap(item, before)
        else:
            self._reset(item, before)

    def _begin(self, position: Position) -> None:
        self.position = self.start = position
        self.seen.clear()
        self.missed.clear()

    def _message(self, message: Message) -> None:
        """NO-PHANTOM, AGREE, NO-GAP, EPOCH-MONO."""
        position, before = message.position, self.position
        known = self.judge.checker.messages.get((self.topic, position.epoch, position.sequence))
        payload = message.payload
        data = payload.encode() if isinstance(payload, str) else payload
        if known is None or known.payload != data or known.first != message.first:
            raise Violation(f"PHANTOM {message} is not {known}")
        if before is None or position.epoch < before.epoch or position.sequence <= before.sequence:
            raise Violation(f"SUBSCRIBER-ORDER {message} after {before}")
        follows = position.sequence == before.sequence + 1
        if not follows and not (message.first and self._nothing_between(before, position)):
            raise Violation(f"SUBSCRIBER-GAP {message} after {before}")
        self.position = position
        self.seen.append(position.sequence)
        self.messages += 1

    def _begun_anew(self, position: Position) -> bool:
        """Whether the topic was forgotten after a position."""
        history = self.judge.present(self.topic)
        return any(
            topic == self.topic and seq > position.sequence and history.log[idx].first
            for (topic, seq), idx in history.places.items()
        )

    def _nothing_between(self, after: Position, before: Position) -> bool:
        """Whether no message of the topic was committed between two positions, both excluded."""
        places = self.judge.history(self.topic, before.epoch).places
        between = range(after.sequence + 1, before.sequence)
        return not any((self.topic, seq) in places for seq in between)

    def _gap(self, gap: Gap, before: Position) -> None:
        """HONEST-GAP: it begins where the reader was, and no member had to keep what is missing."""
        here, last = gap.position, gap.first - 1
        if gap.asked != before.sequence + 1 or here.sequence != last or last < gap.asked:
            raise Violation(f"HONEST-GAP {gap} at {before}")
        history, keep = self.judge.history(self.topic, here.epoch), self.judge.retention
        places = [history.places.get((self.topic, seq)) for seq in range(gap.asked, gap.first)]
        lost = [history.log[idx] for idx in places if idx is not None]
        if lost:
            newest = history.log[max(history.log)].gt
            aged = newest - lost[-1].gt > keep.max_age_ms
            if not aged and gap.last - lost[-1].seq < keep.max_messages:
                raise Violation(f"HONEST-GAP {gap} at {before}: {lost[-1]} is to be kept")
        elif not history.log[history.places[self.topic, gap.first]].first:
            # Where topics were forgotten, nobody knows whether this one had messages before.
            raise Violation(f"HONEST-GAP {gap} at {before}: nothing was ever there")
        self.missed.append((gap.asked, last))
        self.position = here

    def _reset(self, reset: Reset, before: Position) -> None:
        """HONEST-RESET: the position means nothing any more."""
        checker = self.judge.checker
        g = group_of(self.topic, checker.cluster.groups)
        present = checker.present(g)
        honest = False
        if reset.reason == HISTORY_LOST:
            honest = before.epoch < max((f for n, f in checker.histories if n == g), default=0)
        elif reset.reason == UNKNOWN_POSITION:
            head = present.heads.get(self.topic)
            latest = present.log[max(present.log)].gt if present.log else 0
            ttl = self.judge.retention.topic_ttl_ms
            honest = head is None or head.seq < before.sequence or latest - head.gt > ttl
            honest = honest or self._begun_anew(before)
        if not honest:
            raise Violation(f"HONEST-RESET {reset} at {before} of {self.topic}")
        self._begin(reset.position)

    # ---- the end -------------------------------------------------------------------------------

    def unfinished(self) -> str:
        """What it still lacks at rest."""
        head = self.judge.present(self.topic).heads.get(self.topic)
        if head is not None and (self.position is None or self.position.sequence < head.seq):
            return f"a subscriber of {self.topic} is at {self.position}, not at {head}"
        return ""

    def compare_seen(self) -> None:
        """NO-LOSS: exactly what was committed after its start, less what it was told to miss."""
        if self.start is None:
            return
        places = self.judge.present(self.topic).places
        due = [
            seq
            for topic, seq in places
            if topic == self.topic
            and seq > self.start.sequence
            and not any(first <= seq <= last for first, last in self.missed)
        ]
        if due != self.seen:
            lacks = sorted(set(due) - set(self.seen))
            extra = sorted(set(self.seen) - set(due))
            raise Violation(f"NO-LOSS of {self.topic} from {self.start}: -{lacks} +{extra}")
