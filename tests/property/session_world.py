"""A dumb cluster, a bad network and one session between them, driven action by action.

The cluster is a list of messages per topic and a memory of publishers, as the design has it. Frames
travel through two queues that a broken connection empties; publications of a broken connection may
still be carried out later. `counts` tells which situations a story really had.
"""

from __future__ import annotations

from collections import Counter, deque
from itertools import count
from random import Random
from typing import Any, NamedTuple

from client_sdk.errors import NotPublished, OutcomeUnknown
from client_sdk.items import Gap, Message, Resumed, Subscribed
from client_sdk.publishing import Publishing
from client_sdk.session import Session, SessionConfig
from migratory.wire import client as wire
from migratory.wire.ids import Position

TOPICS = ("/a", "/b")
DEDUP_TTL = 900.0
LATE_LIFE = 60.0  # how long a contact carries on with what a lost connection left

# Actions by how often they happen: mostly traffic, sometimes trouble.
ACTIONS = (
    ["publish"] * 10 + ["exchange"] * 16 + ["send"] * 6 + ["hear"] * 6 + ["tick"] * 6
    + ["lose"] * 3 + ["late"] * 3 + ["pause"] * 2 + ["withdraw", "take_over", "trim", "sleep"]
)  # fmt: skip


class Known(NamedTuple):
    """What the cluster remembers of a publisher on a topic."""

    pseq: int
    position: Position
    at: float


class Cluster:
    """All topics and publishers; never wrong, sometimes busy."""

    def __init__(self) -> None:
        self.epoch = 1
        self.logs: dict[str, list[tuple[Position, str]]] = {topic: [] for topic in TOPICS}
        self.firsts = dict.fromkeys(TOPICS, 1)  # the first sequence that is still cached
        self.publishers: dict[tuple[str, str], Known] = {}

    def publish(self, pid: str, sent: wire.Sent, now: float) -> tuple[str, Any]:
        """Take a message or refuse it, by the rules of publishing."""
        key = pid, sent.topic
        known = self.publishers.get(key)
        if known is not None and now - known.at > DEDUP_TTL:
            del self.publishers[key]
            known = None
        last = known.pseq if known else 0
        if known is not None and sent.pseq <= last:
            return "ack", (known.position if sent.pseq == last else Position(0, 0), True)
        if known is None and sent.pseq > 1:
            return "UNKNOWN_PUBLISHER", 0
        if sent.pseq > last + 1:
            return "OUT_OF_ORDER", last + 1
        log = self.logs[sent.topic]
        position = Position(self.epoch, len(log) + 1)
        log.append((position, sent.data))
        self.publishers[key] = Known(sent.pseq, position, now)
        return "ack", (position, False)

    def outcome(self, request: wire.TopicRequest) -> wire.Outcome:
        """Where a subscription begins."""
        topic, log, first = request.topic, self.logs[request.topic], self.firsts[request.topic]
        asked = request.position
        if asked is None:
            sequence = max(len(log) - request.depth, first - 1)
            return wire.Outcome(
                topic, "fresh", Position(self.epoch_before(topic, sequence), sequence)
            )
        if asked.sequence + 1 >= first:
            return wire.Outcome(topic, "resumed", asked, missed=len(log) - asked.sequence)
        position = Position(self.epoch_before(topic, first - 1), first - 1)
        return wire.Outcome(
            topic, "gap", position, asked=asked.sequence + 1, first=first, last=len(log)
        )

    def epoch_before(self, topic: str, sequence: int) -> int:
        """The epoch of the message at a sequence, 1 before the first one."""
        return self.logs[topic][sequence - 1][0].epoch if sequence else 1


class Contact:
    """One connection: what travels to the cluster, what travels back, and who listens."""

    def __init__(self, cluster: Cluster, chance: Random) -> None:
        self.cluster = cluster
        self.chance = chance
        self.to_server: deque[wire.ClientMessage] = deque()
        self.to_client: deque[wire.ServerMessage] = deque()
        self.answers: list[wire.ServerMessage] = []  # known, not said yet: said in any order
        self.delivered: dict[str, int] = {}

    def handle(self, frame: wire.ClientMessage, now: float, trouble: float) -> None:
        """Carry out one frame of the client."""
        match frame:
            case wire.Connect():
                limits = wire.Limits(unanswered=8, messages_per_frame=3)
                self.to_client.append(
                    wire.Welcome(1, "m", 1_000_000_000, limits, [], int(DEDUP_TTL * 1000))
                )
            case wire.Subscribe(id_, topics):
                for request in topics:
                    assert request.topic not in self.delivered, "subscribed twice"
                    outcome = self.cluster.outcome(request)
                    assert outcome.position is not None
                    self.delivered[request.topic] = outcome.position.sequence
                    self.to_client.append(wire.Subscribed(id_, [outcome]))
            case wire.Unsubscribe(id_, names):
                for name in names:
                    self.delivered.pop(name, None)
                self.to_client.append(wire.Unsubscribed(id_))
            case wire.Publish():
                for index, sent in enumerate(frame.messages):
                    self.answers.append(self.publish(frame, index, sent, now, trouble))

    def publish(
        self, frame: wire.Publish, index: int, sent: wire.Sent, now: float, trouble: float
    ) -> wire.ServerMessage:
        """Carry out one publication, perhaps badly, and make its answer."""
        luck = self.chance.random()
        if luck < trouble / 2:
            return _nack(frame, index, "BUSY", retry_after=50)
        kind, value = self.cluster.publish(frame.pid, sent, now)
        if luck < trouble:  # carried out, perhaps, but nobody here knows
            return _nack(frame, index, "RETRY")
        if kind != "ack":
            return _nack(frame, index, kind, expected=value)
        position, duplicate = value
        return wire.Ack([wire.Acked(frame.id, index, position.epoch, position.sequence, duplicate)])

    def deliver(self, trouble: float) -> None:
        """Queue what the subscriptions have not been sent yet; a bad contact repeats or skips.

        It never skips the last message: nobody could tell before another one follows.
        """
        for topic, sequence in self.delivered.items():
            log, first = self.cluster.logs[topic], self.cluster.firsts[topic]
            start = sequence
            if start + 1 < first:
                position = Position(self.cluster.epoch_before(topic, first - 1), first - 1)
                self.to_client.append(wire.Gap(topic, position, start + 1, first, len(log)))
                start = first - 1
            if self.chance.random() < trouble:
                start = min(max(0, start + self.chance.choice((-2, -1, 1))), max(0, len(log) - 1))
            part = log[start:]
            if part:
                sent = [wire.Message(p.epoch, p.sequence, 0, data) for p, data in part]
                self.to_client.append(wire.Messages(topic, sent))
            self.delivered[topic] = len(log)


def _nack(frame: wire.Publish, index: int, code: str, **details: Any) -> wire.Nack:
    rewind = frame.messages[index].rewind
    return wire.Nack([wire.Nacked(frame.id, index, code, rewind=rewind, **details)])


class Story:
    """One session, from its first action to the moment when everything has healed."""

    def __init__(self, depth: int, seed: int) -> None:
        pids = count()
        config = SessionConfig(window=12, publish_deadline=120.0, keepalive=1e9)
        self.session = Session(config, lambda: f"publisher-{next(pids):06}", Random(seed))
        self.session.subscribe(wire.TopicRequest(topic, depth=depth) for topic in TOPICS)
        self.chance = Random(seed)
        self.cluster = Cluster()
        self.late: deque[tuple[float, wire.Publish]] = deque()
        self.now = 1000.0
        self.texts = count()
        self.published: list[tuple[Publishing, str]] = []
        self.items: dict[str, list[Any]] = {topic: [] for topic in TOPICS}
        self.paused: set[str] = set()
        self.counts: Counter[str] = Counter()
        self.contact = self._connect()

    def act(self, action: str, value: int) -> None:
        """Let one thing happen; the value fills in what the action leaves open."""
        self.chance = self.contact.chance = Random(value)
        getattr(self, f"do_{action}")()
        if self.session.leave is not None:
            # Only a server that breaks its promises makes the session leave here.
            self.counts["left"] += 1
            self._lose()

    # ---- actions -------------------------------------------------------------------------------

    def do_publish(self) -> None:
        """Publish some messages, each with a text of its own."""
        topic = self.chance.choice(TOPICS)
        for _ in range(self.chance.randint(1, 4)):
            text = str(next(self.texts))
            self.published.append((self.session.publish(topic, text, self.now), text))

    def do_withdraw(self) -> None:
        """Try to take a message back."""
        if self.published:
            message, _ = self.published[-self.chance.randint(1, min(5, len(self.published)))]
            if self.session.withdraw(message):
                self.counts["withdrawn"] += 1

    def do_pause(self) -> None:
        """A reader falls behind, or catches up."""
        topic = self.chance.choice(TOPICS)
        if topic in self.paused:
            self.paused.discard(topic)
            self.session.resume([topic])
        else:
            self.paused.add(topic)
            self.session.pause([topic])
            self.counts["paused"] += 1

    def do_exchange(self) -> None:
        """Everything travels, in both directions."""
        trouble = self.chance.choice((0.0, 0.0, 0.3))
        self._send(100, trouble)
        self._hear(100, self.chance.choice((0.0, 0.0, 0.0, 0.1)))

    def do_send(self) -> None:
        """Some of what the client sends is carried out."""
        self._send(self.chance.randint(0, 3), self.chance.choice((0.0, 0.5)))

    def do_hear(self) -> None:
        """Some answers and messages reach the client."""
        self._hear(self.chance.randint(1, 4), 0.0)

    def do_lose(self) -> None:
        """The connection breaks, and another one is made."""
        self._lose()

    def do_late(self) -> None:
        """Publications of a lost connection are carried out; nobody hears the answers."""
        if self.late:
            at, frame = self.late.popleft()
            if self.now - at <= LATE_LIFE:
                for sent in frame.messages:
                    kind, value = self.cluster.publish(frame.pid, sent, self.now)
                    self.counts["late and new"] += kind == "ack" and not value[1]
                    self.counts["late and old"] += kind == "ack" and value[1]

    def do_take_over(self) -> None:
        """Another coordinator, another epoch."""
        self.cluster.epoch += 1

    def do_trim(self) -> None:
        """The history lets old messages go."""
        topic = self.chance.choice(TOPICS)
        self.cluster.firsts[topic] = max(1, len(self.cluster.logs[topic]))

    def do_tick(self) -> None:
        """A little time passes."""
        self._wait(self.chance.choice((0.05, 0.5, 3.0)))

    def do_sleep(self) -> None:
        """Much time passes."""
        self._wait(self.chance.choice((30.0, 125.0, 500.0, 1000.0)))

    # ---- the network ---------------------------------------------------------------------------

    def _connect(self) -> Contact:
        self.session.opened(self.now)
        contact = self.contact = Contact(self.cluster, self.chance)
        self._send(1, 0.0)  # CONNECT
        self._hear(1, 0.0)  # WELCOME
        return contact

    def _lose(self) -> None:
        publisher = self.session._publisher
        self.counts["lost with some under way"] += bool(publisher._flying)
        if self.chance.random() < 0.7:
            waiting = [f for f in self.contact.to_server if isinstance(f, wire.Publish)]
            self.late.extend((self.now, frame) for frame in waiting)
        self.session.closed(1006, "", self.now)
        self._connect()

    def _send(self, amount: int, trouble: float) -> None:
        self.contact.to_server.extend(self.session.collect(self.now))
        for _ in range(min(amount, len(self.contact.to_server))):
            self.contact.handle(self.contact.to_server.popleft(), self.now, trouble)

    def _hear(self, amount: int, trouble: float) -> None:
        contact = self.contact
        contact.deliver(trouble)
        self.chance.shuffle(contact.answers)
        for _ in range(min(amount, len(contact.answers))):
            contact.to_client.append(contact.answers.pop())
        for _ in range(min(amount, len(contact.to_client))):
            self._take(contact.to_client.popleft())

    def _take(self, message: wire.ServerMessage) -> None:
        self.counts[type(message).__name__] += 1
        if isinstance(message, wire.Nack):
            self.counts.update(result.code for result in message.results)
        elif isinstance(message, wire.Ack):
            self.counts["duplicate"] += sum(result.duplicate for result in message.results)
        self.session.received(message, self.now)
        for topic, items in self.session.take_items():
            assert topic not in self.paused, "a paused reader was given something"
            self.items[topic].extend(items)

    def _wait(self, seconds: float) -> None:
        self.now += seconds
        self.session.expire(self.now)

    # ---- the end -------------------------------------------------------------------------------

    def finish(self) -> None:
        """Heal everything, let all outcomes become known, and look at the whole story."""
        self.session.resume(self.paused)
        self.paused.clear()
        self.chance = self.contact.chance = Random(0)
        for _ in range(60):
            self._send(1000, 0.0)
            self._hear(1000, 0.0)
            if self.session.leave is not None:
                self._lose()
            self._wait(1.0)
        assert self.session.pending == 0, self.session
        assert self.session._publisher._flying == 0
        for topic in TOPICS:
            self.check_published(topic)
            self.check_delivered(topic)
        for message, _ in self.published:
            self.counts["outcome " + type(message.error).__name__] += 1

    def check_published(self, topic: str) -> None:
        """Outcomes are true, nothing is there twice, and order is kept."""
        log = self.cluster.logs[topic]
        places = {text: position for position, text in log}
        assert len(places) == len(log), "a message was stored twice"
        last = 0
        for message, text in self.published:
            if message.topic != topic:
                continue
            if message.error is None:
                assert text in places, "an acknowledged message is lost"
                assert message.position in (places[text], Position(0, 0)), "a wrong position"
                assert places[text].sequence > last, "the order is broken"
                last = places[text].sequence
            elif isinstance(message.error, NotPublished):
                assert text not in places, "it was called not published"
            else:
                assert isinstance(message.error, OutcomeUnknown)
                # This cluster never forgets too early, so nothing but time may cause doubt.
                assert message.error.code == "DEADLINE", message.error

    def check_delivered(self, topic: str) -> None:
        """From its beginning to the head, the reader got everything once, or was told."""
        log = self.cluster.logs[topic]
        at = -1
        for item in self.items[topic]:
            match item:
                case Subscribed(position=position):
                    assert at == -1, "a subscription began twice"
                    at = position.sequence
                case Resumed(position=position):
                    assert position.sequence == at, "it went on elsewhere"
                case Gap(position=position, asked=asked, first=first):
                    self.counts["told of a gap"] += 1
                    assert asked == at + 1, "the gap is not where the reader is"
                    assert first > asked, "a gap of nothing"
                    at = position.sequence
                case Message(position=position, payload=payload):
                    assert position.sequence == at + 1, "not the next message"
                    assert log[at] == (position, payload), "another message stands there"
                    at = position.sequence
        assert at == len(log), "the reader did not get to the head"
