"""A cluster in calm weather, for stories told by hand: nothing happens but what is asked for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.events import BarrierDone, BarrierWanted, Note, Publish
from coordinator.member import Member
from coordinator.replica import Replica
from migratory.delivery.views import GroupView
from migratory.wire.entry import MSG, Entry
from migratory.wire.peer import PeerMessage, Publication, Refusal
from migratory.wire.shard import PubAck
from tests.simulation.weather import NEVER, Weather
from tests.simulation.world import Process, World

CALM = Weather(
    drop=0.0, double=0.0, delay=0.001, room=1 << 20, chunk=256 << 10, crash_every=NEVER,
    twin_every=NEVER, pause_every=NEVER, cut_every=NEVER, expire_every=NEVER, depose_every=NEVER,
    drain_every=NEVER, keeper_loss=0.0, stale_reads=0.0, fifo_delay=0.0, batch_delay=0.0,
    careless=0.0, all_crash=False, disaster=False,
)  # fmt: skip
PID = "storyteller-0001"
TOPIC = "/story"

Judge = Callable[[str, str, PeerMessage], bool]  # of sender, receiver and message


class CalmWorld(World):
    """One group; the storyteller publishes, loses messages, cuts links, kills and pauses."""

    def __init__(self, members: int = 3, faults: int = 1, seed: int = 1) -> None:
        self.lost: Judge = lambda _from, _to, _message: False
        self.answers: dict[int, PubAck | Refusal] = {}
        self.asked: set[int] = set()  # barriers of the story, not of a front
        self.barriers: list[BarrierDone] = []
        self.notes: list[tuple[str, Note]] = []
        super().__init__(seed, members, faults, groups=1, weather=CALM)
        self.subscribers = []
        self.publishers = []
        self.go(3.0)

    def go(self, seconds: float) -> None:
        """Let time pass."""
        self.run_until(self.now + seconds)

    def send(self, process: Process, peer: str, messages: list[Any]) -> None:
        """The network, without what the story says is lost."""
        kept = [m for m in messages if not self.lost(process.name, peer, m)]
        if kept:
            super().send(process, peer, kept)

    def _carry_out(self, process: Process, member: Member) -> None:
        ready = member.ctx.ready
        self.notes += [(process.name, note) for note in ready.notes]
        self.barriers += [done for done in ready.barriers if done.ref in self.asked]
        ready.barriers = [done for done in ready.barriers if done.ref not in self.asked]
        for answer in ready.answers:
            assert answer.ref not in self.answers, "a publication is answered once"
            self.answers[answer.ref] = answer
        super()._carry_out(process, member)

    # ---- deeds ---------------------------------------------------------------------------------

    def publish(
        self, contact: str, pseq: int, payload: bytes = b"", pid: str = PID, topic: str = TOPIC
    ) -> int:
        """A client of a member publishes; the number of its answer."""
        self.last_ref += 1
        item = Publication(topic, payload or b"%d" % pseq, 0, pid, pseq, self.last_ref)
        self.give(self.processes[contact], Publish([item]))
        return self.last_ref

    def published(
        self, contact: str, pseq: int, payload: bytes = b"", topic: str = TOPIC
    ) -> PubAck:
        """The same, and the acknowledgement that must come."""
        ref = self.publish(contact, pseq, payload, topic=topic)
        self.go(0.1)
        answer = self.answers[ref]
        assert isinstance(answer, PubAck), answer
        return answer

    def act(self, name: str, deed: Callable[[Member], None]) -> None:
        """Let a member do something by itself, now."""
        process = self.processes[name]
        member = process.member
        assert member is not None
        member.ctx.now = process.clock.local(self.now)
        deed(member)
        self._carry_out(process, member)

    def stand(self, name: str, *depose: str) -> None:
        """A member stands for the group."""
        self.act(name, lambda m: m.elections.stand(m.replicas[0], frozenset(depose)))

    def hand_over(self, name: str, to: str) -> None:
        """A coordinator gives the group away."""
        self.act(name, lambda m: m.balance.hand_over(m.replicas[0], to))

    def pause(self, name: str) -> None:
        """A process stops, and ZooKeeper ends its session."""
        self.processes[name].paused = True
        self.keeper.expire(self.processes[name])

    def cut_off(self, a: str, b: str) -> None:
        """Two members do not hear each other any more; the link stays open and silent."""
        self.cut[a, b] = None
        self.cut[b, a] = None

    def join(self, a: str, b: str) -> None:
        """The end of a cut."""
        self.cut.pop((a, b), None)
        self.mend((b, a))

    def barrier(self, name: str) -> int:
        """Somebody at a member wants to know whether it is up to date."""
        ref = -1 - len(self.asked)
        self.asked.add(ref)
        self.give(self.processes[name], BarrierWanted(0, ref))
        return ref

    # ---- looks ---------------------------------------------------------------------------------

    def replica(self, name: str) -> Replica:
        """The group at a member."""
        member = self.processes[name].member
        assert member is not None
        return member.replicas[0]

    def coordinators(self) -> list[str]:
        """Who coordinates now, or believes so."""
        return [
            p.name
            for p in self.processes.values()
            if p.member is not None and not p.dead and p.member.replicas[0].leading is not None
        ]

    def cast(self) -> tuple[str, str, str]:
        """The coordinator and the two others."""
        (leader,) = self.coordinators()
        others = [name for name in self.cluster.members if name != leader]
        return leader, others[0], others[1]

    def messages(self, name: str) -> list[Entry]:
        """The messages of the story's topic that are committed at a member."""
        replica = self.replica(name)
        log = replica.log.between(replica.log.base, replica.commit)
        return [entry for entry in log if entry.kind == MSG and entry.topic == TOPIC]

    def view(self, name: str) -> GroupView:
        """What a subscriber's resume is decided by at a member."""
        replica = self.replica(name)
        return GroupView(0, replica.floor, replica.state, "")
