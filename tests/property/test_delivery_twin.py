"""The desk and a subscriber against a plain list: consecutive sequences, or an explicit gap."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from migratory.delivery.desk import Desk
from migratory.delivery.views import GroupView
from migratory.wire.entry import MSG, Entry
from migratory.wire.ids import Position
from migratory.wire.shard import Gap, Live, More, Page, Reattach, Reset, Sub, ToFront, Unsub

TOPIC = "/t"


class Group:
    """One topic of a group on a plain list, of which only the end is cached."""

    def __init__(self) -> None:
        self.everything: list[Entry] = []
        self.cached = 0  # how many of the last entries are cached
        self.vacant, self.epoch, self.floor, self.start = 0, 1, 1, 1

    @property
    def topics(self) -> dict[str, Group]:
        """The topic, once it has a message."""
        return {TOPIC: self} if self.everything else {}

    @property
    def seq(self) -> int:
        """The head's sequence."""
        return len(self.everything)

    @property
    def history(self) -> Group:
        """Its own history."""
        return self

    @property
    def first_seq(self) -> int:
        """The first cached sequence."""
        return len(self.everything) - self.cached + 1

    def epoch_of(self, seq: int) -> int | None:
        """The epoch of a cached message."""
        cached = self.first_seq <= seq <= self.seq
        return self.everything[seq - 1].epoch if cached else None

    def after(self, seq: int, max_bytes: int) -> list[Entry]:
        """Two at a time, to have many pages."""
        assert max_bytes > 0
        assert seq >= self.first_seq - 1, "asked for what is not cached"
        return self.everything[seq : seq + 2]

    def view(self, topic: str) -> GroupView:
        """The only group."""
        assert topic == TOPIC
        return GroupView(0, self.floor, self)


class Subscriber:
    """What a front does for one client, as plainly as possible."""

    def __init__(self) -> None:
        self.seen: list[Position] = []
        self.position: Position | None = None
        self.state = "away"  # away, asking, paging, live
        self.explained = False

    def take(self, entries: list[Entry]) -> None:
        """Every message follows the one before, unless a gap or reset was told."""
        for one in entries:
            position = Position(one.epoch, one.seq)
            if self.position is not None and not self.explained:
                assert one.seq == self.position.sequence + 1, "a silent gap or a repetition"
            self.explained = False
            self.position = position
            self.seen.append(position)


class Twin(RuleBasedStateMachine):
    """Publications, expiry, takeovers, lost histories, subscribers that come, page and go."""

    def __init__(self) -> None:
        super().__init__()
        self.group = Group()
        self.desk = Desk(self.group.view)
        self.clients = [Subscriber() for _ in range(3)]
        self.fifo: list[ToFront] = []

    def pump(self) -> None:
        """Move what the desk said onto the FIFO."""
        self.fifo += [m for shard, m in self.desk.take() if shard == 0]

    @rule(n=st.integers(1, 4), takeover=st.booleans())
    def publish(self, n: int, takeover: bool) -> None:
        """Entries are committed, perhaps in a new epoch."""
        group = self.group
        group.epoch += takeover
        new = [Entry(group.epoch, MSG, 0, 0, TOPIC, group.seq + 1 + k) for k in range(n)]
        group.everything += new
        group.cached += n
        self.desk.delivered(new)
        self.pump()

    @rule(keep=st.integers(0, 5))
    def expire(self, keep: int) -> None:
        """The history is cut."""
        self.group.cached = min(self.group.cached, keep)

    @rule(who=st.integers(0, 2), forget=st.booleans())
    def come(self, who: int, forget: bool) -> None:
        """A client subscribes, at its position or afresh."""
        client = self.clients[who]
        if client.state != "away":
            return
        if forget:
            client.position, client.explained = None, True
        client.state = "asking"
        self.desk.handle(0, Sub(who, TOPIC, client.position, 3))
        self.pump()

    @rule(who=st.integers(0, 2))
    def go(self, who: int) -> None:
        """A live client leaves; the last one ends the interest."""
        if self.clients[who].state == "live":
            self.clients[who].state = "away"
            if all(c.state == "away" for c in self.clients):
                self.desk.handle(0, Unsub(TOPIC))

    @rule(ok=st.booleans())
    def barrier(self, ok: bool) -> None:
        """Barriers end."""
        for _, ref in self.desk.take_barriers():
            self.desk.barrier(ref, ok)
        self.pump()

    @rule()
    def lose_history(self) -> None:
        """The operator accepted a loss: a new floor, an empty group, a new state installed."""
        group = self.group
        group.epoch += 1
        group.floor = group.epoch
        group.everything, group.cached = [], 0
        self.desk.installed([0])
        self.pump()

    @rule(n=st.integers(1, 6))
    def hear(self, n: int) -> None:
        """The front handles some of what waits on the FIFO."""
        for message in self.fifo[:n]:
            self.front(message)
        del self.fifo[:n]
        self.pump()

    def front(self, message: ToFront) -> None:
        """One message at the front."""
        match message:
            case Live(_, entries):
                for client in self.clients:
                    if client.state == "live":
                        client.take(entries)
            case Reattach():
                for who, client in enumerate(self.clients):
                    if client.state == "live":
                        client.state = "asking"
                        self.desk.handle(0, Sub(who, TOPIC, client.position))
            case Page():
                self.page(message)
            case _:
                client = self.clients[getattr(message, "sub", 0)]
                client.state = "away"

    def page(self, page: Page) -> None:
        """A page: adopt its position where the outcome says so, then take its entries."""
        client = self.clients[page.sub]
        if isinstance(page.outcome, Gap):
            assert page.outcome.asked < page.outcome.first
            client.explained = True
        elif isinstance(page.outcome, Reset) or client.position is None:
            client.explained = False
            client.position = Position(page.epoch, page.seq)
        client.take(page.entries)
        if not page.entries:
            client.position, client.explained = Position(page.epoch, page.seq), False
        client.state = "live" if page.attached else "paging"
        if not page.attached:
            assert client.position is not None
            self.desk.handle(0, More(page.sub, TOPIC, client.position))

    @invariant()
    def agree(self) -> None:
        """Who is live, with nothing on its way, stands at the head."""
        if not self.fifo:
            for client in self.clients:
                if client.state == "live":
                    assert client.position is not None
                    assert client.position.sequence == self.group.seq


Twin.TestCase.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
TestTwin = Twin.TestCase
