"""The desk over the real cache: every answer is what a plain list of all messages says."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from cache.retention import Retention
from cache.state import GroupState
from migratory.delivery.desk import Desk
from migratory.delivery.views import GroupView
from migratory.wire.entry import FIRST, MSG, TICK, Entry
from migratory.wire.ids import Position
from migratory.wire.shard import Fresh, Gap, More, Page, Reset, Resumed, Sub

TOPIC = "/t"
RETENTION = Retention(max_messages=5, max_age_ms=100, dedup_ttl_ms=200, topic_ttl_ms=500)

# (what, how much): publish so many, let so much group time pass, resume at the n-th message.
steps = st.lists(
    st.one_of(
        st.tuples(st.just("publish"), st.integers(1, 7)),
        st.tuples(st.just("pass"), st.sampled_from([1, 60, 101, 501])),
        st.tuples(st.just("resume"), st.integers(0, 40)),
        st.tuples(st.just("page"), st.integers(0, 40)),
        st.tuples(st.just("fresh"), st.integers(0, 8)),
    ),
    max_size=40,
)


class World:
    """One group with one topic, and everything that was ever published in it."""

    def __init__(self) -> None:
        self.state, self.gt = GroupState(RETENTION), 0
        self.all: list[Entry] = []
        self.desk = Desk(lambda _: GroupView(0, 1, self.state))

    def apply(self, kind: int) -> None:
        """One more entry, as a coordinator would stamp it."""
        idx, record = self.state.applied + 1, self.state.topics.get(TOPIC)
        # Forgetting happens when an entry is applied, so a tick before it shows what is left.
        if kind == TICK:
            self.state.apply(idx, Entry(1, TICK, 0, self.gt))
            return
        if record is None:
            entry = Entry(1, MSG, 0, self.gt, TOPIC, idx, FIRST)
        else:
            entry = Entry(1, MSG, 0, self.gt, TOPIC, record.seq + 1)
        self.all.append(entry)
        self.state.apply(idx, entry)

    def answer(self, request: Sub | More) -> Page:
        """The page that comes at once, or after the barrier that was asked for."""
        self.desk.handle(0, request)
        for _, ref in self.desk.take_barriers():
            self.desk.barrier(ref, ok=True)
        [(_, page)] = self.desk.take()
        assert isinstance(page, Page)
        return page


@given(steps)
@example([("publish", 1), ("pass", 501), ("publish", 1), ("resume", 1)])
def test_nothing_is_left_out_in_silence(plan: list[tuple[str, int]]) -> None:
    """A resume without GAP or RESET brings everything published since; a GAP tells the truth.

    Only to a position from before the topic was forgotten a GAP may be needless: whether anything
    was published between the two is forgotten as well.
    """
    world = World()
    for what, much in plan:
        if what == "publish":
            for _ in range(much):
                world.apply(TICK)
                world.apply(MSG)
        elif what == "pass":
            world.gt += much
            world.apply(TICK)
        elif what == "fresh":
            page = world.answer(Sub(1, TOPIC, None, much))
            assert page.outcome == Fresh()
            assert page.attached
            assert page.entries == world.all[len(world.all) - len(page.entries) :]
            assert len(page.entries) <= much
        else:
            known = world.all[-1 - much % len(world.all)].seq if world.all else 0
            at = Position(1, known)
            check(
                world, at, world.answer(More(1, TOPIC, at) if what == "page" else Sub(1, TOPIC, at))
            )


def check(world: World, at: Position, page: Page) -> None:
    """Compare a page with the plain list."""
    since = [entry for entry in world.all if entry.seq > at.sequence]
    outcome = page.outcome
    if outcome is None or isinstance(outcome, Resumed):
        assert page.entries == since
        assert outcome is None or outcome.missed == len(since)
    elif isinstance(outcome, Gap):
        assert outcome.asked == at.sequence + 1
        held = [entry for entry in since if entry.seq >= outcome.first]
        assert page.entries == held
        assert len(held) < len(since) or at.sequence < world.state.topics[TOPIC].vacant
    else:
        # Only who knew a topic that is forgotten has a position that nobody knows.
        assert outcome == Reset("unknown_position")
        assert TOPIC not in world.state.topics
        assert page.entries == []
