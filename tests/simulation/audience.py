"""Simulated subscribers, served by the real desk over a FIFO between engine and front.

Each one follows a topic, comes and goes between members and keeps its position. It checks what the
project promises to subscribers: everything in order, or an explicit and honest GAP or RESET.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from coordinator.events import Ready
from migratory.delivery.desk import Desk
from migratory.delivery.views import GroupView
from migratory.wire.entry import Entry
from migratory.wire.ids import Position, group_of
from migratory.wire.shard import (
    HISTORY_LOST,
    UNKNOWN_POSITION,
    Gap,
    Live,
    More,
    NotServed,
    Page,
    Reattach,
    Reset,
    Resumed,
    Sub,
    ToEngine,
    ToFront,
    Unsub,
)
from tests.simulation.checker import Violation
from tests.simulation.clients import TOPICS

if TYPE_CHECKING:
    from tests.simulation.world import Process, World

SHARD = 0


class Front:
    """The front of one process: subscriptions on the live list, or waiting for a page."""

    def __init__(self, world: World, process: Process) -> None:
        self.world = world
        self.process = process
        self.desk = Desk(self._view)
        self.subs: dict[int, Subscriber] = {}
        self.live: dict[str, dict[int, Subscriber]] = {}
        self.requests: list[ToEngine] = []  # arrived at the engine
        self._down: list[ToFront] = []  # on the way to the front, in order
        self._up: list[ToEngine] = []  # on the way to the engine, in order

    def _view(self, topic: str) -> GroupView:
        member = self.process.member
        assert member is not None
        replica = member.replicas[group_of(topic, len(member.replicas))]
        refusal = "" if replica.normal else "UNAVAILABLE"
        return GroupView(replica.g, replica.floor, replica.state, refusal)

    # ---- the engine's side ---------------------------------------------------------------------

    def effects(self, ready: Ready) -> None:
        """What the driver tells the desk of a step; what was replaced before what follows it."""
        if ready.installed:
            self.desk.installed(ready.installed)
        for delivered in ready.delivered:
            self.desk.delivered(delivered.entries)
        for barrier in ready.barriers:
            self.desk.barrier(barrier.ref, barrier.ok)
        self.pump()

    def ask(self) -> list[tuple[int, int]]:
        """Answer what came from the front; the barriers that this needs."""
        requests, self.requests = self.requests, []
        for request in requests:
            self.desk.handle(SHARD, request)
        self.pump()
        return self.desk.take_barriers()

    def pump(self) -> None:
        """Put the desk's words on the FIFO."""
        for _, message in self.desk.take():
            self._down.append(message)
            self._later(self._deliver)

    def _later(self, action: object) -> None:
        delay = self.world.weather.fifo_delay
        if delay and not self.world.healed:
            self.world.later(self.world.random.uniform(0, delay), action)  # type: ignore[arg-type]
        else:
            self.world.later(0.0, action)  # type: ignore[arg-type]

    # ---- the front's side ----------------------------------------------------------------------

    def say(self, message: ToEngine) -> None:
        """Ask the engine for something."""
        self._up.append(message)
        self._later(self._arrive)

    def _arrive(self) -> None:
        self.requests.append(self._up.pop(0))
        self.world.turn_soon(self.process)

    def _deliver(self) -> None:
        message = self._down.pop(0)
        if isinstance(message, Page):
            sub = self.subs.get(message.sub)
            if sub is not None:
                sub.page(message)
        elif isinstance(message, Live):
            for sub in list(self.live.get(message.topic, {}).values()):
                for entry in message.entries:
                    sub.take(entry)
        elif isinstance(message, Reattach):
            for sub in self.live.pop(message.topic, {}).values():
                sub.attached = False
                self.say(Sub(sub.number, sub.topic, sub.position))
        elif isinstance(message, NotServed) and message.sub in self.subs:
            self.subs[message.sub].leave()

    def forget(self, sub: Subscriber) -> None:
        """A subscription ends here; the engine hears of it when it was the topic's last one."""
        self.subs.pop(sub.number, None)
        self.live.get(sub.topic, {}).pop(sub.number, None)
        if all(other.topic != sub.topic for other in self.subs.values()):
            self.say(Unsub(sub.topic))

    def close(self) -> None:
        """Everybody goes elsewhere."""
        for sub in list(self.subs.values()):
            sub.leave()


class Subscriber:
    """One subscription that outlives its connections."""

    def __init__(self, world: World, number: int) -> None:
        self.world = world
        self.topic = TOPICS[number % len(TOPICS)]
        self.g = group_of(self.topic, world.cluster.groups)
        self.number = 0  # of the present connection
        self.front: Front | None = None
        self.position: Position | None = None
        self.attached = False
        self.outcomes: dict[str, int] = {}

    def start(self) -> None:
        """Begin to listen, and go elsewhere from time to time."""
        self._connect()
        self.world.later(self.world.random.expovariate(0.3), self._wander)

    def _wander(self) -> None:
        if not self.world.healed:
            self.leave()
            self.world.later(self.world.random.expovariate(0.3), self._wander)

    def leave(self) -> None:
        """Disconnect, and come back somewhere after a while."""
        if self.front is None:
            return
        self.front.forget(self)
        self.front, self.attached = None, False
        pause = self.world.random.choice([0.05, 0.5, 4.0])
        self.world.later(0.1 if self.world.healed else pause, self._connect)

    def _connect(self) -> None:
        w = self.world
        if self.front is not None:
            return
        process = w.processes[w.random.choice(w.cluster.members)]
        member = process.member
        if member is None or process.dead or process.paused or not member.serving:
            w.later(0.2, self._connect)
            return
        w.last_ref += 1
        self.number, self.front = w.last_ref, process.front
        assert self.front is not None
        self.front.subs[self.number] = self
        self.front.say(Sub(self.number, self.topic, self.position))

    # ---- what arrives --------------------------------------------------------------------------

    def page(self, page: Page) -> None:
        """An outcome, some history, and perhaps the live list."""
        front = self.front
        assert front is not None
        before, after = self.position, Position(page.epoch, page.seq)
        self._judge(page, before, after)
        self.position = after
        for entry in page.entries:
            self.take(entry)
        if page.attached:
            self.attached = True
            front.live.setdefault(self.topic, {})[self.number] = self
        else:
            assert self.position is not None
            front.say(More(self.number, self.topic, self.position))

    def _judge(self, page: Page, before: Position | None, after: Position) -> None:
        """HONEST outcomes: nothing is skipped in silence, and nothing is excused without need."""
        outcome = page.outcome
        if outcome is None:
            if after != before:
                raise Violation(f"SILENT-SKIP {page} at {before}")
            return
        name = outcome.reason if isinstance(outcome, Reset) else type(outcome).__name__.lower()
        self.outcomes[name] = self.outcomes.get(name, 0) + 1
        if before is None:
            return
        if isinstance(outcome, Reset):
            self._judge_reset(outcome, before)
        elif isinstance(outcome, Gap):
            if not before.sequence < outcome.first or page.seq != outcome.first - 1:
                raise Violation(f"HONEST-GAP {page} at {before}")
        elif after != before and not (
            isinstance(outcome, Resumed) and self._nothing(before, after)
        ):
            raise Violation(f"SILENT-SKIP {page} at {before}")

    def _judge_reset(self, outcome: Reset, before: Position) -> None:
        checker = self.world.checker
        floor = max((f for g, f in checker.histories if g == self.g), default=0)
        honest = False
        if outcome.reason == HISTORY_LOST:
            honest = before.epoch < floor
        elif outcome.reason == UNKNOWN_POSITION:
            present = checker.present(self.g)
            head = present.heads.get(self.topic)
            latest = max((entry.gt for entry in present.log.values()), default=0)
            ttl = checker.retention.topic_ttl_ms
            honest = (
                head is None
                or head.seq < before.sequence
                or before.sequence < present.starts[self.topic]
                or latest - head.gt > ttl
            )
        if not honest:
            raise Violation(f"HONEST-RESET {outcome} at {before} of {self.topic}")

    def _nothing(self, before: Position, after: Position) -> bool:
        """Whether nothing was ever committed between two positions of the present history."""
        places = self.world.checker.present(self.g).places
        between = range(before.sequence + 1, after.sequence + 1)
        return not any((self.topic, seq) in places for seq in between)

    def take(self, entry: Entry) -> None:
        """NO-PHANTOM, AGREE, NO-GAP, EPOCH-MONO for one message."""
        known = self.world.checker.messages.get((self.topic, entry.epoch, entry.seq))
        if known != entry:
            raise Violation(f"PHANTOM {entry} is not {known}")
        before = self.position
        assert before is not None
        if entry.epoch < before.epoch or entry.seq <= before.sequence:
            raise Violation(f"SUBSCRIBER-ORDER {entry} after {before}")
        if entry.seq != before.sequence + 1:
            upto = Position(entry.epoch, entry.seq - 1)
            if not entry.first or not self._nothing(before, upto):
                raise Violation(f"SUBSCRIBER-GAP {entry} after {before}")
        self._same_history(entry, before)
        self.position = Position(entry.epoch, entry.seq)

    def _same_history(self, entry: Entry, before: Position) -> None:
        """A position of a lost history is not taken for one of the present history."""
        present = self.world.checker.present(self.g)
        here = present.places.get((self.topic, entry.seq))
        at = present.places.get((self.topic, before.sequence))
        if here is None or present.log[here] != entry or at is None:
            return
        if before.epoch < present.log[at].epoch:
            raise Violation(f"HISTORY-MIXED {entry} after {before}, not {present.log[at]}")

    def unfinished(self) -> str:
        """What it still lacks at rest."""
        head = self.world.checker.present(self.g).heads.get(self.topic)
        if not self.attached:
            return f"a subscriber of {self.topic} is not attached"
        if head is not None and self.position is not None and self.position.sequence < head.seq:
            return f"a subscriber of {self.topic} is at {self.position}, not at {head}"
        return ""
