"""The engine's desk for its shards: who is interested in what, and what each one is told next.

The driver must call `delivered` and `installed` for the effects of a step before it hands in the
next request: then a page shows exactly what was announced, and what is announced after it follows
it without a gap or a repetition. Nothing is kept per subscription except while it waits for a
barrier, and those waits end with the barrier.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from migratory.delivery.resume import Start, fresh, resume
from migratory.delivery.views import Groups, GroupView
from migratory.wire.entry import MSG, Entry
from migratory.wire.ids import Position
from migratory.wire.shard import (
    PAGE_BYTES,
    Live,
    More,
    NotServed,
    Outcome,
    Page,
    Reattach,
    Reset,
    Resumed,
    Sub,
    ToEngine,
    ToFront,
    Unsub,
)

BEHIND = "BEHIND"  # the code of a subscriber who knows more than this member could find out


class _Waiter(msgspec.Struct, frozen=True):
    """A request that is ahead of this member, which asks for a barrier to learn whether it is."""

    shard: int
    sub: int
    topic: str
    position: Position
    first: bool


class _Barriers(msgspec.Struct):
    """One barrier of a group is under way for `asked`; those who came later are in `later`."""

    asked: list[_Waiter]
    later: list[_Waiter]


class Desk:
    """Answers the requests of all shards, and fans committed entries out to the interested."""

    def __init__(self, groups: Groups) -> None:
        self._groups = groups
        self._interests: dict[str, int] = {}  # topic -> one bit for each interested shard
        self._waiting: dict[int, _Barriers] = {}  # by group
        self._refs: dict[int, int] = {}  # from a barrier under way to its group
        self._last_ref = 0
        self._out: list[tuple[int, ToFront]] = []
        self._barriers: list[tuple[int, int]] = []
        self.outcomes: Counter[str] = Counter()  # of subscriptions, by name; resets by reason

    def __repr__(self) -> str:
        waits = sum(len(b.asked) + len(b.later) for b in self._waiting.values())
        return f"<Desk {len(self._interests)} topics, {waits} behind a barrier>"

    def handle(self, shard: int, message: ToEngine) -> None:
        """Take a request of a shard. Publications are not the desk's business."""
        match message:
            case Sub(sub, topic, position, depth):
                self._interests[topic] = self._interests.get(topic, 0) | 1 << shard
                view = self._groups(topic)
                if view.refusal:
                    self._out.append((shard, NotServed(sub, topic, view.refusal)))
                elif position is None:
                    start = fresh(view, topic, depth)
                    self._page(view, _Waiter(shard, sub, topic, start.position, first=True), start)
                else:
                    self._resume(view, _Waiter(shard, sub, topic, position, first=True))
            case More(sub, topic, after):
                view = self._groups(topic)
                if view.refusal:
                    self._out.append((shard, NotServed(sub, topic, view.refusal)))
                else:
                    self._resume(view, _Waiter(shard, sub, topic, after, first=False))
            case Unsub(topic):
                self._forget(shard, topic)
            case _:
                raise TypeError("publications go to the coordinator, not to the desk")

    def delivered(self, entries: Iterable[Entry]) -> None:
        """Announce entries just committed in one group, in order, to the interested shards."""
        interests, lives = self._interests, dict[str, list[Entry]]()
        if not interests:
            return
        for entry in entries:
            topic = entry.topic
            if topic in interests and entry.kind == MSG:
                lives.setdefault(topic, []).append(entry)
        for topic, found in lives.items():
            live = Live(topic, found)
            for shard in _bits(interests[topic]):
                self._out.append((shard, live))

    def installed(self, groups: Iterable[int]) -> None:
        """The whole state of these groups was replaced: every subscription must ask again."""
        replaced = set(groups)
        for topic, shards in self._interests.items():
            if self._groups(topic).g in replaced:
                for shard in _bits(shards):
                    self._out.append((shard, Reattach(topic)))

    def barrier(self, ref: int, ok: bool) -> None:
        """The barrier `ref` was applied here, or could not be had."""
        g = self._refs.pop(ref)
        barriers = self._waiting.pop(g)
        for waiter in barriers.asked:
            view = self._groups(waiter.topic)
            code = view.refusal or ("" if ok else BEHIND)
            start = None if code else resume(view, waiter.topic, waiter.position, confirmed=True)
            if start is None:
                self.outcomes["behind"] += 1
                self._out.append((waiter.shard, NotServed(waiter.sub, waiter.topic, code)))
            else:
                self._page(view, waiter, start)
        if barriers.later:
            # An older barrier says nothing of what was committed after it, so these need their own.
            self._ask(g, barriers.later)

    def drop(self, shard: int) -> None:
        """A shard is gone: it is interested in nothing any more."""
        for topic in list(self._interests):
            self._forget(shard, topic)
        for barriers in self._waiting.values():
            barriers.asked = [w for w in barriers.asked if w.shard != shard]
            barriers.later = [w for w in barriers.later if w.shard != shard]

    def take(self) -> list[tuple[int, ToFront]]:
        """Messages for the shards since the last call, in order."""
        out, self._out = self._out, []
        return out

    def take_barriers(self) -> list[tuple[int, int]]:
        """Barriers wanted since the last call: (group, ref)."""
        wanted, self._barriers = self._barriers, []
        return wanted

    def _forget(self, shard: int, topic: str) -> None:
        left = self._interests.get(topic, 0) & ~(1 << shard)
        if left:
            self._interests[topic] = left
        else:
            self._interests.pop(topic, None)

    def _resume(self, view: GroupView, waiter: _Waiter) -> None:
        start = resume(view, waiter.topic, waiter.position, confirmed=False)
        if start is not None:
            self._page(view, waiter, start)
        elif (barriers := self._waiting.get(view.g)) is not None:
            barriers.later.append(waiter)
        else:
            self._ask(view.g, [waiter])

    def _ask(self, g: int, waiters: list[_Waiter]) -> None:
        self._last_ref += 1
        self._refs[self._last_ref] = g
        self._waiting[g] = _Barriers(waiters, [])
        self._barriers.append((g, self._last_ref))

    def _page(self, view: GroupView, waiter: _Waiter, start: Start) -> None:
        outcome: Outcome | None = start.outcome
        if waiter.first or not isinstance(outcome, Resumed):
            name = outcome.reason if isinstance(outcome, Reset) else type(outcome).__name__.lower()
            self.outcomes[name] += 1
        else:
            outcome = None  # the next page of a subscription that goes on needs no word about it
        topic, (epoch, seq) = waiter.topic, (start.position.epoch, start.position.sequence)
        record = view.state.topics.get(topic)
        entries, attached = list[Entry](), True
        if record is not None and seq < record.seq:
            entries = record.history.after(seq, PAGE_BYTES)
            attached = entries[-1].seq == record.seq
        page = Page(waiter.sub, topic, outcome, epoch, seq, entries, attached)
        self._out.append((waiter.shard, page))


def _bits(mask: int) -> list[int]:
    """The numbers of the bits that are set."""
    return [shard for shard in range(mask.bit_length()) if mask >> shard & 1]
