"""The publisher's half of a session: numbers, a window, and resending that never doubles.

A message gets its pseq when it is first sent, not when it is queued: what was never sent can be
withdrawn, and its failure is certain. Per topic, messages under way are resent in order under
their own pseq after a lost connection or a refusal, until acknowledged or given up.

Invariants: a (pid, topic, pseq) is one message, forever; a pid under which a topic was ever given
up is never taken for that topic again; per topic nothing new is sent while something waits to be
resent. Pure: time, randomness and publisher ids are given.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable
from random import Random
from typing import TYPE_CHECKING, Any, Final

from client_sdk.errors import ClientError, NotPublished, OutcomeUnknown
from migratory.wire.client import Acked, Limits, Nacked, Payload, Publish, Sent, known_topic_fault
from migratory.wire.codes import Code, Duty
from migratory.wire.ids import Position

if TYPE_CHECKING:
    from client_sdk.trace import ClientTrace

RETRY_BASE: Final = 0.05
RETRY_MAX: Final = 2.0
DEADLINE_SHARE: Final = 0.4  # of the time for which a publisher is remembered: below half of it
UNPLACED: Final = Position(0, 0)  # acknowledged as a duplicate whose position is forgotten


class Publishing:
    """One message on its way, and what became of it."""

    __slots__ = (
        "acknowledge", "attempts", "data", "deadline", "done", "duplicate", "error", "number",
        "position", "pseq", "rewind", "size", "topic", "waiter",
    )  # fmt: skip

    def __init__(self, number: int, topic: str, data: Payload, size: int, deadline: float) -> None:
        self.number = number
        self.topic = topic
        self.data = data
        self.size = size
        self.deadline = deadline
        self.acknowledge = True
        self.attempts = 0
        self.pseq = 0
        self.rewind = 0  # of the latest attempt: refusals of older ones are void
        self.done = False
        self.duplicate = False
        self.position: Position | None = None
        self.error: ClientError | None = None
        self.waiter: Any = None  # belongs to whoever waits for the outcome

    def __repr__(self) -> str:
        state = "pending" if not self.done else str(self.position or self.error)
        return f"<Publishing {self.topic} #{self.pseq} {state}>"


class _Topic:
    __slots__ = (
        "alarm",
        "condemned",
        "failures",
        "flight",
        "hold",
        "last_pseq",
        "last_sent",
        "name",
        "pid",
        "queue",
        "resend",
        "rewind",
    )  # fmt: skip

    def __init__(self, name: str, pid: str) -> None:
        self.name = name
        self.pid = pid
        self.last_pseq = 0
        self.last_sent = 0.0
        self.rewind = 0
        self.failures = 0
        self.hold = 0.0  # nothing is sent before this time
        self.flight: dict[int, Publishing] = {}  # by pseq, in order
        self.resend: deque[Publishing] = deque()  # a tail of `flight`
        self.queue: deque[Publishing] = deque()  # never sent yet
        self.condemned = ""  # a message was refused for good: those after it cannot follow
        self.alarm = 0.0  # the time at which it stands in `held`


class _Frame:
    """A PUBLISH under way; None stands for a message that was answered."""

    __slots__ = ("left", "messages")

    def __init__(self, messages: list[Publishing]) -> None:
        self.messages: list[Publishing | None] = list(messages)
        self.left = len(messages)


class Publisher:
    """All messages that one client has under way."""

    def __init__(
        self, fresh_pid: Callable[[], str], random: Random, *, window: int, deadline: float
    ) -> None:
        self._fresh_pid = fresh_pid
        self._random = random
        self._window = window
        self._deadline = deadline
        self._pid = fresh_pid()
        self._topics: OrderedDict[str, _Topic] = OrderedDict()  # the longest idle first
        self._pending: OrderedDict[int, Publishing] = OrderedDict()  # by deadline
        self._ready: dict[_Topic, None] = {}
        self._held: list[tuple[float, int, _Topic]] = []
        self._frames: dict[int, _Frame] = {}  # under way, by id
        self._flying = 0
        self._count = 0
        self._limits = Limits()
        self._dedup_ttl = 900.0
        self.settled: list[Publishing] = []
        self.leave: Code | None = None
        self.trace: ClientTrace | None = None

    def __repr__(self) -> str:
        return f"<Publisher {len(self._pending)} pending, {self._flying} under way>"

    @property
    def pending(self) -> int:
        """How many messages have no outcome yet."""
        return len(self._pending)

    @property
    def under_way(self) -> bool:
        """Whether the present contact owes answers."""
        return bool(self._frames)

    # ---- the user's wishes ---------------------------------------------------------------------

    def publish(
        self, topic: str, data: Payload, now: float, *, acknowledge: bool = True
    ) -> Publishing:
        """Queue a message. Its outcome will be in the returned object, and in `settled`."""
        size = len(data.encode()) if isinstance(data, str) else len(data)
        self._count += 1
        message = Publishing(self._count, topic, data, size, now + self._deadline)
        message.acknowledge = acknowledge
        fault = known_topic_fault(topic)
        if fault is not None:
            raise NotPublished(topic, Code.BAD_TOPIC.name, fault, "correct the topic")
        if size > self._limits.payload_bytes:
            raise self._too_large(message)
        self._pending[message.number] = message
        record = self._topics.get(topic)
        if record is None:
            record = self._topics[topic] = _Topic(topic, self._pid)
        record.queue.append(message)
        self._schedule(record)
        return message

    def withdraw(self, message: Publishing) -> bool:
        """Take a message back if it was never sent; True when it certainly will not be."""
        if message.done or message.attempts:
            return False
        told = "it was withdrawn before it was sent"
        self._settle(message, NotPublished(message.topic, "WITHDRAWN", told, "publish it again"))
        return True

    # ---- the connection ------------------------------------------------------------------------

    def welcomed(self, limits: Limits, dedup_ttl: float) -> None:
        """Heed what this contact accepts."""
        self._limits = limits
        self._dedup_ttl = dedup_ttl
        # A message must be given up well before the cluster may forget that it has it.
        shorter = self._deadline - dedup_ttl * DEADLINE_SHARE
        if shorter > 0:
            self._deadline -= shorter
            for message in self._pending.values():
                message.deadline -= shorter

    def closed(self) -> None:
        """Plan to send everything unanswered again, in order (PROTOCOL 10.3)."""
        self._frames.clear()
        self.leave = None
        for record in self._topics.values():
            if record.condemned:
                self._abandon(record, "CONNECTION_LOST", "the connection broke before its answer")
            elif record.flight:
                self._rewind(record, 0, 0.0)

    def collect(self, now: float, next_id: Callable[[], int]) -> list[Publish]:
        """The frames to send now: whatever waits, in as few frames as the limits allow."""
        while self._held and self._held[0][0] <= now:
            at, _, record = heapq.heappop(self._held)
            if record.alarm == at:
                record.alarm = record.hold = 0.0
                self._ready[record] = None
        self._forget_idle(now)
        frames = _Packer(next_id, self._limits)
        ready, self._ready = self._ready, {}
        for record in ready:
            if record.hold or not self._fill(record, frames, now):
                self._schedule(record)
        for frame in frames.built:
            if self.trace is not None:
                self.trace.sent(frame.pid, frames.sent[frame.id])
            if frame.pid:
                self._frames[frame.id] = _Frame(frames.sent[frame.id])
            else:
                for message in frames.sent[frame.id]:
                    self._settle(message, None)
        return frames.built

    def next_wake(self, *, sending: bool) -> float | None:
        """When expire(), or while `sending` collect(), has to be called without anything else."""
        times = [self._held[0][0]] if sending and self._held else []
        if self._pending:
            times.append(next(iter(self._pending.values())).deadline)
        return min(times, default=None)

    def expire(self, now: float) -> None:
        """Give up what has passed its deadline."""
        while self._pending:
            message = next(iter(self._pending.values()))
            if message.deadline > now:
                return
            if message.attempts:
                # Those after it in the topic hang on it: without it they cannot be ordered.
                told = "no answer came within the publish deadline"
                self._abandon(self._topics[message.topic], "DEADLINE", told)
            else:
                told = "it could not be sent within the publish deadline"
                remedy = "look whether the servers are reachable, then publish it again"
                self._settle(message, NotPublished(message.topic, "DEADLINE", told, remedy))

    def fail_all(self, code: str, told: str) -> None:
        """Give up everything, since the client ends."""
        for record in self._topics.values():
            self._abandon(record, code, told)
        for message in list(self._pending.values()):
            self._settle(message, NotPublished(message.topic, code, told, "publish it again"))

    # ---- what the server says ------------------------------------------------------------------

    def acked(self, results: Iterable[Acked]) -> None:
        """Take acknowledgements, of any attempt."""
        for result in results:
            message = self._answered(result.id, result.index)
            if message is None or message.done:
                continue
            message.position = Position(result.epoch, result.sequence)
            message.duplicate = result.duplicate
            record = self._topics[message.topic]
            record.failures = 0
            del record.flight[message.pseq]
            self._flying -= 1
            self._settle(message, None)
            self._reopen(record)

    def nacked(self, results: Iterable[Nacked], now: float) -> None:
        """Take refusals of the latest attempts."""
        for result in results:
            message = self._answered(result.id, result.index)
            # PROTOCOL 6.7: one gap is one rewind.
            if message is not None and not message.done and message.rewind == result.rewind:
                record = self._topics[message.topic]
                self._refused(record, message, result, now)
                if self.trace is not None and not message.done:
                    self.trace.refused(record.pid, message, result.code)

    def _refused(self, record: _Topic, message: Publishing, result: Nacked, now: float) -> None:
        code = Code.named(result.code)
        if record.condemned:
            self._condemn(record, message, record.condemned, result)
        elif code is Code.OUT_OF_ORDER:
            pseq = min(result.expected, message.pseq)
            self._rewind(record, pseq, self._delay(record, result, now, free=1))
        elif code is Code.UNKNOWN_PUBLISHER:
            if next(iter(record.flight)) == 1:
                # Nothing of this pid is known there because its first message was refused.
                self._rewind(record, 1, self._delay(record, result, now, free=1))
            else:
                told = result.message or code.sentence
                self._abandon(record, code.name, told)
        elif code is not None and code.duty is not Duty.STOP:
            if code.duty is Duty.ELSEWHERE:
                self.leave = code
            self._rewind(record, message.pseq, self._delay(record, result, now, free=0))
        else:
            self._condemn(record, message, result.code, result)

    # ---- parts ---------------------------------------------------------------------------------

    def _answered(self, frame_id: int, index: int) -> Publishing | None:
        frame = self._frames.get(frame_id)
        if frame is None or not 0 <= index < len(frame.messages):
            return None
        message, frame.messages[index] = frame.messages[index], None
        frame.left -= message is not None
        if frame.left == 0:
            del self._frames[frame_id]
        return message

    def _schedule(self, record: _Topic) -> None:
        if record.condemned or not (record.resend or record.queue):
            return
        if not record.hold:
            self._ready[record] = None
        elif record.alarm != record.hold:
            record.alarm = record.hold
            self._count += 1
            heapq.heappush(self._held, (record.hold, self._count, record))

    def _fill(self, record: _Topic, frames: _Packer, now: float) -> bool:
        """Move what waits in a topic into frames; False when the window is full."""
        while record.resend:
            message = record.resend.popleft()
            if not message.done:
                message.attempts += 1
                frames.add(record.pid, message)
        while record.queue:
            message = record.queue[0]
            if message.done:
                record.queue.popleft()
                continue
            if message.size > self._limits.payload_bytes:
                self._settle(record.queue.popleft(), self._too_large(message))
                continue
            if message.acknowledge:
                if self._flying >= min(self._window, self._limits.unanswered):
                    return False
                self._number(record, message, now)
            message.attempts += 1
            frames.add(record.pid if message.acknowledge else "", record.queue.popleft())
        return True

    def _number(self, record: _Topic, message: Publishing, now: float) -> None:
        # PROTOCOL 10.4: the cluster may have forgotten the publisher, or do so on the way.
        if record.last_pseq and not record.flight and self._stale(record, now):
            self._renew(record)
        record.last_pseq += 1
        record.last_sent = now
        message.pseq = record.last_pseq
        message.rewind = record.rewind
        record.flight[message.pseq] = message
        self._flying += 1
        self._topics.move_to_end(record.name)

    def _stale(self, record: _Topic, now: float) -> bool:
        return now - record.last_sent > self._dedup_ttl / 2

    def _forget_idle(self, now: float) -> None:
        while self._topics:
            record = next(iter(self._topics.values()))
            if record.flight or record.queue or not self._stale(record, now):
                return
            del self._topics[record.name]
            self._retire(record.pid)

    def _renew(self, record: _Topic) -> None:
        self._retire(record.pid)
        record.pid = self._pid
        record.last_pseq = 0

    def _retire(self, pid: str) -> None:
        if pid == self._pid:
            self._pid = self._fresh_pid()

    def _rewind(self, record: _Topic, pseq: int, hold: float) -> None:
        """Plan to send everything from a pseq on again, not before a time."""
        record.rewind += 1
        record.resend = deque(m for p, m in record.flight.items() if p >= pseq)
        for message in record.resend:
            message.rewind = record.rewind
        record.hold = hold
        self._schedule(record)

    def _delay(self, record: _Topic, result: Nacked, now: float, *, free: int) -> float:
        """Until when a topic rests after a refusal; the first `free` ones cost nothing."""
        failures, record.failures = record.failures, min(record.failures + 1, 16)
        wait = result.retry_after / 1000
        if failures >= free:
            bound = min(RETRY_MAX, RETRY_BASE * 2 ** (failures - free))
            wait = max(wait, self._random.uniform(bound / 2, bound))
        return now + wait if wait else 0.0

    def _condemn(self, record: _Topic, message: Publishing, code: str, result: Nacked) -> None:
        """A message is refused for good; those after it wait for their own refusals."""
        del record.flight[message.pseq]
        self._flying -= 1
        known = Code.named(code)
        told = result.message or (known.sentence if known else "the server refuses the message")
        # Only RETRY leaves open what became of an attempt; an earlier attempt is always open.
        if message.attempts == 1 and result.code != Code.RETRY.name:
            error: ClientError = NotPublished(message.topic, code, told, "correct the cause")
        else:
            error = OutcomeUnknown(message.topic, code, told)
        self._settle(message, error)
        record.condemned = code
        record.resend.clear()
        self._reopen(record)

    def _reopen(self, record: _Topic) -> None:
        """Once a condemned topic has nothing under way, go on with the next publisher id."""
        if record.condemned and not record.flight:
            record.condemned = ""
            self._renew(record)
            self._schedule(record)

    def _abandon(self, record: _Topic, code: str, told: str) -> None:
        """Call everything under way in a topic unknown, and go on with a fresh publisher id."""
        if not record.flight:
            return
        flight, record.flight = record.flight, {}
        self._flying -= len(flight)
        for message in flight.values():
            self._settle(message, OutcomeUnknown(message.topic, code, told))
        record.resend.clear()
        record.condemned = ""
        record.hold = 0.0
        self._renew(record)
        self._schedule(record)

    def _too_large(self, message: Publishing) -> NotPublished:
        told = f"the payload has {message.size} bytes, {self._limits.payload_bytes} are allowed"
        return NotPublished(message.topic, Code.TOO_LARGE.name, told, "send less")

    def _settle(self, message: Publishing, error: ClientError | None) -> None:
        message.done = True
        message.error = error
        if self.trace is not None:
            self.trace.settled(self._topics[message.topic].pid, message)
        message.data = b""
        del self._pending[message.number]
        self.settled.append(message)


class _Packer:
    """Packs messages into frames: one publisher id each, within the server's limits."""

    def __init__(self, next_id: Callable[[], int], limits: Limits) -> None:
        self._next_id = next_id
        self._count = limits.messages_per_frame
        # JSON may need six bytes for one; an eighth of the limit is safe in every encoding.
        self._bytes = limits.frame_bytes // 8
        self._open: dict[str, tuple[Publish, list[int]]] = {}
        self.built: list[Publish] = []
        self.sent: dict[int, list[Publishing]] = {}

    def add(self, pid: str, message: Publishing) -> None:
        """Append a message to the frame of its publisher id."""
        cost = message.size + len(message.topic)
        found = self._open.get(pid)
        if found is None or len(found[0].messages) >= self._count or found[1][0] < cost:
            frame = Publish(self._next_id(), pid, [])
            found = self._open[pid] = frame, [self._bytes]
            self.built.append(frame)
            self.sent[frame.id] = []
        frame, room = found
        room[0] -= cost
        frame.messages.append(Sent(message.topic, message.data, message.pseq, message.rewind))
        self.sent[frame.id].append(message)
