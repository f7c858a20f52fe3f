"""The desk: resume outcomes in their order, pages, live fan-out, barriers and interests."""

from __future__ import annotations

import pytest

from migratory.delivery.desk import Desk
from migratory.delivery.views import GroupView
from migratory.wire.entry import MSG, NOOP, Entry
from migratory.wire.ids import Position
from migratory.wire.shard import (
    PAGE_BYTES,
    Fresh,
    Gap,
    Live,
    More,
    NotServed,
    Page,
    Pubs,
    Reattach,
    Reset,
    Resumed,
    Sub,
    ToFront,
    Unsub,
)

P = Position


def entry(seq: int, epoch: int = 1, topic: str = "/t", payload: bytes = b"x") -> Entry:
    """A message of a topic."""
    return Entry(epoch, MSG, 0, 0, topic, seq, payload=payload)


class Topic:
    """A topic on a plain list: both the record and its history."""

    def __init__(self, entries: list[Entry], start: int = 1, vacant: int = 0) -> None:
        self.entries, self.start, self.vacant = entries, start, vacant
        self.epoch, self.seq = entries[-1].epoch, entries[-1].seq

    @property
    def history(self) -> Topic:
        """Its own history."""
        return self

    @property
    def first_seq(self) -> int:
        """The first cached sequence."""
        return self.entries[0].seq if self.entries else self.seq + 1

    def epoch_of(self, seq: int) -> int | None:
        """The epoch of a cached message."""
        return next((e.epoch for e in self.entries if e.seq == seq), None)

    def after(self, seq: int, max_bytes: int) -> list[Entry]:
        """A page."""
        page: list[Entry] = []
        for one in self.entries:
            if one.seq > seq and (not page or sum(e.size for e in page) + one.size <= max_bytes):
                page.append(one)
        return page


class State:
    """A group on a plain dict."""

    def __init__(self) -> None:
        self.topics: dict[str, Topic] = {}
        self.epoch, self.vacant = 3, 0
        self.floor, self.refusal = 1, ""

    def view(self, topic: str) -> GroupView:
        """Topics below /other are in group 1, all others in group 0, with one state."""
        return GroupView(int(topic.startswith("/other")), self.floor, self, self.refusal)


@pytest.fixture
def state() -> State:
    """A group whose topic /t has sequences 3 to 6 of two epochs cached."""
    made = State()
    made.topics["/t"] = Topic([entry(3), entry(4), entry(5, 2), entry(6, 2)])
    return made


@pytest.fixture
def desk(state: State) -> Desk:
    """A desk over that group."""
    return Desk(state.view)


def ask(desk: Desk, position: Position | None, depth: int = 0, topic: str = "/t") -> ToFront:
    """The one answer to a Sub of shard 0."""
    desk.handle(0, Sub(1, topic, position, depth))
    [(shard, answer)] = desk.take()
    assert shard == 0
    return answer


def seqs(answer: ToFront) -> list[int]:
    """The sequences on a page."""
    assert isinstance(answer, Page)
    return [e.seq for e in answer.entries]


@pytest.mark.parametrize(
    ("asked", "outcome", "start", "sent"),
    [
        (P(2, 6), Resumed(0), P(2, 6), []),
        (P(1, 4), Resumed(2), P(1, 4), [5, 6]),
        (P(1, 2), Resumed(4), P(1, 2), [3, 4, 5, 6]),
        (P(1, 1), Gap(2, 3, 6), P(1, 2), [3, 4, 5, 6]),
        (P(0, 6), Reset("history_lost"), P(2, 6), []),
        (P(1, 6), Reset("diverged"), P(2, 6), []),
        (P(2, 4), Resumed(2), P(2, 4), [5, 6]),  # the epoch of 5 stands in for that of 4
    ],
)
def test_a_position_that_is_not_ahead_is_answered_at_once(
    desk: Desk, asked: Position, outcome: object, start: Position, sent: list[int]
) -> None:
    """Rules 1 to 4 of resumption give exactly the outcome, position and messages they say."""
    page = ask(desk, asked)
    assert isinstance(page, Page)
    assert (page.outcome, P(page.epoch, page.seq), seqs(page)) == (outcome, start, sent)
    assert page.attached
    assert not desk.take_barriers()


def test_a_lost_history_is_told_before_anything_is_compared(desk: Desk, state: State) -> None:
    """A position below the floor is history_lost even where its sequence would be cached."""
    state.floor = 2
    page = ask(desk, P(1, 4))
    assert isinstance(page, Page)
    assert page.outcome == Reset("history_lost")


@pytest.mark.parametrize(
    ("depth", "sent"), [(0, []), (2, [5, 6]), (4, [3, 4, 5, 6]), (9, [3, 4, 5, 6])]
)
def test_a_first_subscription_gets_the_history_it_asked_for(
    desk: Desk, depth: int, sent: list[int]
) -> None:
    """FRESH starts `depth` messages before the head, or where the history starts."""
    page = ask(desk, None, depth)
    assert isinstance(page, Page)
    assert (page.outcome, seqs(page), page.seq) == (Fresh(), sent, 6 - len(sent))


def test_the_position_before_cached_history_has_a_true_epoch(desk: Desk) -> None:
    """A FRESH position inside the history carries the epoch of that very message."""
    page = ask(desk, None, 2)
    assert isinstance(page, Page)
    assert P(page.epoch, page.seq) == P(1, 4)


def test_an_unknown_topic_starts_where_topics_were_last_forgotten(desk: Desk, state: State) -> None:
    """FRESH on an unknown topic, and a resume from there, lose nothing and need no barrier."""
    state.vacant = 17
    assert ask(desk, None, 5, "/new") == Page(1, "/new", Fresh(), 3, 17, [], True)
    assert ask(desk, P(3, 17), 0, "/new") == Page(1, "/new", Resumed(0), 3, 17, [], True)


def test_before_anything_is_applied_the_floor_is_the_epoch(desk: Desk, state: State) -> None:
    """A position given out by an empty group is not below the group's floor."""
    state.epoch, state.floor = 0, 5
    assert ask(desk, None, 0, "/new") == Page(1, "/new", Fresh(), 5, 0, [], True)


def test_whoever_waited_for_a_topic_resumes_at_its_start(desk: Desk, state: State) -> None:
    """A position between vacant and start resumes: no message existed in between."""
    state.topics["/t"] = Topic([entry(40), entry(41)], start=40, vacant=17)
    page = ask(desk, P(1, 17))
    assert isinstance(page, Page)
    assert (page.outcome, page.seq, seqs(page)) == (Resumed(2), 39, [40, 41])
    page = ask(desk, P(1, 16))
    assert isinstance(page, Page)
    assert page.outcome == Gap(17, 40, 41)


def test_a_start_that_is_no_longer_cached_is_a_gap(desk: Desk, state: State) -> None:
    """Who waited for the topic but came too late for its first messages is told so."""
    state.topics["/t"] = Topic([entry(42)], start=40, vacant=17)
    page = ask(desk, P(1, 17))
    assert isinstance(page, Page)
    assert (page.outcome, seqs(page)) == (Gap(18, 42, 42), [42])


def test_an_empty_history_begins_after_the_head(desk: Desk, state: State) -> None:
    """With nothing cached the head resumes and anything older is a gap to the head."""
    state.topics["/t"].entries = []
    assert ask(desk, P(2, 6)) == Page(1, "/t", Resumed(0), 2, 6, [], True)
    assert ask(desk, P(2, 5)) == Page(1, "/t", Gap(6, 7, 6), 2, 6, [], True)
    assert ask(desk, None, 3) == Page(1, "/t", Fresh(), 2, 6, [], True)


def test_who_is_ahead_waits_for_a_barrier(desk: Desk, state: State) -> None:
    """Ahead of this member: resumed if the barrier shows the messages, else a reset."""
    desk.handle(0, Sub(1, "/t", P(2, 7)))
    desk.handle(0, Sub(2, "/t", P(2, 9)))
    assert desk.take() == []
    [(g, ref)] = desk.take_barriers()
    assert g == 0
    state.topics["/t"] = Topic([entry(6, 2), entry(7, 2), entry(8, 2)])
    desk.barrier(ref, ok=True)
    assert desk.take() == [(0, Page(1, "/t", Resumed(1), 2, 7, [entry(8, 2)], True))]
    # The second one came after the first barrier was asked for, so it has a barrier of its own.
    [(_, ref)] = desk.take_barriers()
    desk.barrier(ref, ok=True)
    page = Page(2, "/t", Reset("unknown_position"), 2, 8, [], True)
    assert desk.take() == [(0, page)]
    assert desk.take_barriers() == []


def test_a_later_epoch_at_the_head_waits_for_a_barrier(desk: Desk, state: State) -> None:
    """The head under a later epoch than here: its successor may be on its way, or it never was."""
    desk.handle(0, Sub(1, "/t", P(3, 6)))
    [(_, ref)] = desk.take_barriers()
    state.topics["/t"] = Topic([entry(6, 2), entry(7, 3)])
    desk.barrier(ref, ok=True)
    assert desk.take() == [(0, Page(1, "/t", Resumed(1), 3, 6, [entry(7, 3)], True))]
    desk.handle(0, Sub(2, "/t", P(4, 7)))
    [(_, ref)] = desk.take_barriers()
    desk.barrier(ref, ok=True)
    assert desk.take() == [(0, Page(2, "/t", Reset("diverged"), 3, 7, [], True))]


@pytest.mark.parametrize("seq", [1, 2, 4])  # below what is cached, right before it, within it
def test_a_later_epoch_waits_for_a_barrier_also_below_the_head(
    desk: Desk, state: State, seq: int
) -> None:
    """Who comes from a history that replaced this one is told nothing of the one that was lost."""
    desk.handle(0, Sub(1, "/t", P(3, seq)))
    assert desk.take() == []
    [(_, ref)] = desk.take_barriers()
    state.topics["/t"] = Topic([entry(seq, 3), entry(seq + 1, 3)])
    desk.barrier(ref, ok=True)
    after = [entry(seq + 1, 3)]
    assert desk.take() == [(0, Page(1, "/t", Resumed(1), 3, seq, after, True))]


@pytest.mark.parametrize("seq", [0, 1, 2, 4, 6])  # forgotten, right before the cached, cached, head
def test_a_later_epoch_that_no_barrier_explains_is_diverged(desk: Desk, seq: int) -> None:
    """An epoch above the head's is of another history, also where no cached message shows it."""
    desk.handle(0, Sub(1, "/t", P(3, seq)))
    [(_, ref)] = desk.take_barriers()
    desk.barrier(ref, ok=True)
    assert desk.take() == [(0, Page(1, "/t", Reset("diverged"), 2, 6, [], True))]


def test_a_later_epoch_of_an_unknown_topic_waits_for_a_barrier(desk: Desk, state: State) -> None:
    """It is resumed where the group has come to that epoch since, else it is of another history."""
    state.vacant = 17
    for epoch, outcome in ((4, Resumed(0)), (5, Reset("unknown_position"))):
        desk.handle(0, Sub(1, "/new", P(epoch, 17)))
        assert desk.take() == []
        [(_, ref)] = desk.take_barriers()
        state.epoch = 4
        desk.barrier(ref, ok=True)
        assert desk.take() == [(0, Page(1, "/new", outcome, 4, 17, [], True))]


def test_a_barrier_that_fails_says_behind(desk: Desk, state: State) -> None:
    """No barrier within its time: the subscriber is sent away, and so it is when unserved."""
    desk.handle(0, Sub(1, "/unknown", P(2, 7)))
    [(_, ref)] = desk.take_barriers()
    desk.barrier(ref, ok=False)
    assert desk.take() == [(0, NotServed(1, "/unknown", "BEHIND"))]
    desk.handle(0, Sub(1, "/unknown", P(2, 7)))
    [(_, ref)] = desk.take_barriers()
    state.refusal = "UNAVAILABLE"
    desk.barrier(ref, ok=True)
    assert desk.take() == [(0, NotServed(1, "/unknown", "UNAVAILABLE"))]


def test_groups_have_barriers_of_their_own(desk: Desk) -> None:
    """Two groups are asked about at the same time, one barrier each."""
    desk.handle(0, Sub(1, "/unknown", P(2, 7)))
    desk.handle(0, Sub(2, "/other", P(2, 7)))
    assert [g for g, _ in desk.take_barriers()] == [0, 1]
    assert "2 behind a barrier" in repr(desk)


def test_a_group_that_is_not_served_says_so(desk: Desk, state: State) -> None:
    """Every request about it is answered with the reason."""
    state.refusal = "UNAVAILABLE"
    assert ask(desk, None) == NotServed(1, "/t", "UNAVAILABLE")
    desk.handle(0, More(1, "/t", P(1, 3)))
    assert desk.take() == [(0, NotServed(1, "/t", "UNAVAILABLE"))]


def test_history_comes_in_pages(desk: Desk, state: State) -> None:
    """Each page is at most 64 KB, the last one attaches, and no page repeats the outcome."""
    payload = b"x" * 30_000
    state.topics["/t"] = Topic([entry(s, payload=payload) for s in range(1, 6)])
    page = ask(desk, P(1, 0))
    assert isinstance(page, Page)
    assert (page.outcome, seqs(page), page.attached) == (Resumed(5), [1, 2], False)
    assert sum(e.size for e in page.entries) <= PAGE_BYTES
    desk.handle(0, More(1, "/t", P(1, 2)))
    desk.handle(0, More(1, "/t", P(1, 4)))
    (_, second), (_, third) = desk.take()
    assert isinstance(second, Page)
    assert isinstance(third, Page)
    assert (second.outcome, seqs(second), second.attached) == (None, [3, 4], False)
    assert (third.outcome, seqs(third), third.attached) == (None, [5], True)


def test_a_page_that_begins_later_than_asked_starts_with_a_gap(desk: Desk) -> None:
    """What expired between two pages is named; so is a history that was lost in between."""
    desk.handle(0, More(1, "/t", P(1, 1)))
    desk.handle(0, More(1, "/t", P(0, 5)))
    (_, gap), (_, reset) = desk.take()
    assert isinstance(gap, Page)
    assert isinstance(reset, Page)
    assert gap.outcome == Gap(2, 3, 6)
    assert reset.outcome == Reset("history_lost")
    assert desk.outcomes == {"gap": 1, "history_lost": 1}


def test_live_entries_go_to_the_interested_shards_only(desk: Desk) -> None:
    """Entries of one topic travel together, in order; NOOPs and unwanted topics do not travel."""
    desk.delivered([entry(7)])
    for shard in (0, 2):
        desk.handle(shard, Sub(1, "/t", None))
    desk.handle(2, Sub(2, "/u", None))
    desk.take()
    noop = Entry(2, NOOP, 0, 0)
    desk.delivered([noop, entry(7), entry(1, 2, "/u"), entry(8), entry(1, 2, "/v")])
    lives = {Live("/t", [entry(7), entry(8)]).topic: [0, 2], "/u": [2]}
    sent = desk.take()
    for topic, shards in lives.items():
        assert [s for s, m in sent if isinstance(m, Live) and m.topic == topic] == shards
    assert (0, Live("/t", [entry(7), entry(8)])) in sent


def test_interest_ends_with_unsub_and_with_the_shard(desk: Desk) -> None:
    """A shard that left a topic, or is gone, hears nothing and waits for nothing."""
    for shard in (0, 1):
        desk.handle(shard, Sub(1, "/t", None))
    desk.handle(1, Sub(2, "/unknown", P(9, 9)))
    desk.handle(0, Sub(2, "/unknown", P(9, 9)))
    desk.handle(0, Unsub("/t"))
    desk.handle(0, Unsub("/never"))
    desk.take()
    desk.delivered([entry(7)])
    assert desk.take() == [(1, Live("/t", [entry(7)]))]
    desk.drop(1)
    desk.delivered([entry(8)])
    [(_, ref)] = desk.take_barriers()
    desk.barrier(ref, ok=False)
    assert desk.take() == []
    assert "1 topics" in repr(desk)


def test_an_installed_group_reattaches_its_topics(desk: Desk) -> None:
    """Every interested shard is told for each of its topics in the group, and no other."""
    desk.handle(0, Sub(1, "/t", None))
    desk.handle(3, Sub(1, "/t", None))
    desk.handle(0, Sub(1, "/other/x", None))
    desk.take()
    desk.installed([0])
    assert desk.take() == [(0, Reattach("/t")), (3, Reattach("/t"))]


def test_publications_are_somebody_elses() -> None:
    """The desk refuses what is the coordinator's."""
    with pytest.raises(TypeError):
        Desk(State().view).handle(0, Pubs([]))
