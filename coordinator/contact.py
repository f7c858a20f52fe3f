"""The contact's part: publications of its own clients on their way through the coordinator.

A publication waits under its identity (topic, publisher, publisher sequence). It is acknowledged
when the entry with that identity is committed here, whoever coordinated it: so the answer names an
entry that is committed at its index, by construction. Other answers come from the coordinator.

Bounds: the front holds back publishers with too many unanswered publications; each one waits
PUBLISH_PATIENCE, then its client is told to retry with the same publisher sequence.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.cluster import BARRIER_PATIENCE, PUBLISH_PATIENCE
from coordinator.events import BarrierDone
from migratory.wire.entry import Entry, checksum
from migratory.wire.ids import Position
from migratory.wire.peer import (
    Barrier,
    BarrierReq,
    Pub,
    Publication,
    PubResult,
    Refusal,
)
from migratory.wire.shard import PubAck

if TYPE_CHECKING:
    from coordinator.replica import Replica

Identity = tuple[str, str, int]


class Waiting(msgspec.Struct, gc=False):
    """One publication and everybody here who waits for its answer."""

    item: Publication
    since: float
    refs: list[tuple[int, int]]  # (ref, rewind) of each copy


class Contact:
    """Publications and barriers of one group that wait for an answer."""

    __slots__ = ("barriers", "replica", "waiting")

    def __init__(self, replica: Replica) -> None:
        self.replica = replica
        self.waiting: dict[Identity, Waiting] = {}  # in the order of arrival
        self.barriers: dict[int, tuple[float, int, int]] = {}  # ref: (since, epoch, idx)

    # ---- publications --------------------------------------------------------------------------

    def submit(self, items: list[Publication]) -> None:
        """Take publications of own clients and pass them to the coordinator."""
        waiting, ctx = self.waiting, self.replica.ctx
        reused = False
        for item in items:
            if not item.pid:
                continue
            key = (item.topic, item.pid, item.pseq)
            known = waiting.get(key)
            if known is None:
                waiting[key] = Waiting(item, ctx.now, [(item.ref, item.rewind)])
            elif known.item.payload == item.payload:
                del waiting[key]  # it goes to the end: what waits is in the order of arrival
                refs = [*known.refs, (item.ref, item.rewind)]
                waiting[key] = Waiting(item, ctx.now, refs)
            else:
                # Answers name a publication by its identity, so only one message may wait under it.
                ctx.ready.answers.append(Refusal(item.ref, "PSEQ_REUSED", item.rewind))
                reused = True
        if reused:
            items = [item for item in items if self._waits(item)]
        if items and not self._forward(items):
            self._refuse_unanswerable(items)

    def _waits(self, item: Publication) -> bool:
        """Whether this very copy of a publication is to be forwarded."""
        wait = self.waiting.get((item.topic, item.pid, item.pseq))
        return not item.pid or (wait is not None and wait.item.payload == item.payload)

    def _refuse_unanswerable(self, items: list[Publication]) -> None:
        """Without a coordinator, what cannot wait (no publisher id) is refused at once."""
        answers = self.replica.ctx.ready.answers
        leader = self.replica.leader
        for item in items:
            if not item.pid:
                answers.append(Refusal(item.ref, "RETRY", item.rewind, 0, leader))

    def _forward(self, items: list[Publication]) -> bool:
        """Pass publications on; False when nobody is known who would take them."""
        replica = self.replica
        if replica.leading is not None:
            replica.leading.publish(replica.ctx.me, items)
            return True
        route = self._route()
        if route:
            message = Pub(replica.g, replica.floor, replica.ctx.me, items)
            replica.ctx.send(route, message)
        return bool(route)

    def _route(self) -> str:
        """The coordinator, or a member that reaches it when this one does not."""
        replica, peers = self.replica, self.replica.ctx.peers
        leader = replica.leader
        if not leader or leader == replica.ctx.me:
            return ""
        if peers[leader].reached:
            return leader
        for peer in replica.ctx.reached():
            if leader in peer.reaches:
                return peer.member
        return ""

    def _other_leader(self, peer: str) -> str:
        """The coordinator, if it is neither this member nor that peer and can be reached."""
        leader = self.replica.leader
        if leader in ("", peer, self.replica.ctx.me):
            return ""
        return leader if self.replica.ctx.peers[leader].reached else ""

    def forward_all(self) -> None:
        """A new coordinator is known: everything unanswered goes to it, in publisher order."""
        if self.waiting:
            items = sorted((w.item for w in self.waiting.values()), key=lambda item: item.pseq)
            self._forward(items)

    def on_pub(self, peer: str, message: Pub) -> None:
        """Publications of another contact: for this coordinator, or to be passed on once."""
        replica = self.replica
        if replica.leading is not None:
            replica.leading.publish(message.contact, message.items, via=peer)
            return
        if peer == message.contact and (leader := self._other_leader(peer)):
            replica.ctx.send(leader, message)
            return
        # A wrong guess: say who it is. The contact forwards again when it knows better.
        result = PubResult(replica.g, replica.floor, message.contact, replica.leader, [], [])
        replica.ctx.send(peer, result)

    def on_result(self, peer: str, message: PubResult) -> None:
        """The coordinator's answers; those for another contact are passed on to it."""
        ctx = self.replica.ctx
        if message.contact != ctx.me:
            if message.contact in ctx.peers and message.contact != peer:
                ctx.send(message.contact, message)
            return
        if not message.refused and not message.settled and self.replica.leader == peer:
            self.replica.forget_leader()  # a wrong guess
        for refused in message.refused:
            self._refuse(refused.item, refused.code, refused.expected)
        for settled in message.settled:
            item = settled.item
            key = (item.topic, item.pid, item.pseq)
            wait = self.waiting.get(key)
            # An answer to an earlier copy, given up here since, may speak of another payload.
            if wait is not None and any(ref == item.ref for ref, _ in wait.refs):
                del self.waiting[key]
                for ref, _ in wait.refs:
                    ctx.ready.answers.append(PubAck(ref, settled.position, duplicate=True))

    def _refuse(self, item: Publication, code: str, expected: int) -> None:
        """Answer exactly the copy that was refused: a later copy of it may still be under way."""
        answers, leader = self.replica.ctx.ready.answers, self.replica.leader
        if not item.pid:
            answers.append(Refusal(item.ref, code, item.rewind, expected, leader))
            return
        key = (item.topic, item.pid, item.pseq)
        wait = self.waiting.get(key)
        if wait is None:
            return
        left = [(ref, rewind) for ref, rewind in wait.refs if ref != item.ref]
        if len(left) == len(wait.refs):
            return
        answers.append(Refusal(item.ref, code, item.rewind, expected, leader))
        wait.refs = left
        if not left:
            del self.waiting[key]

    def settle(self, entries: list[Entry]) -> None:
        """Entries were committed here: acknowledge those that someone waits for."""
        waiting = self.waiting
        if not waiting and not self.barriers:
            return
        answers = self.replica.ctx.ready.answers
        for entry in entries:
            wait = waiting.pop((entry.topic, entry.pid, entry.pseq), None)
            if wait is None:
                continue
            if wait.item.payload == entry.payload:
                position = Position(entry.epoch, entry.seq)
                answers.extend([PubAck(ref, position) for ref, _ in wait.refs])
            else:
                for ref, rewind in wait.refs:
                    answers.append(Refusal(ref, "PSEQ_REUSED", rewind))
        if self.barriers:
            self._pass_barriers()

    def settle_installed(self) -> None:
        """The whole state was replaced: answer what it shows as done, retry the rest."""
        state, answers = self.replica.state, self.replica.ctx.ready.answers
        for key, wait in list(self.waiting.items()):
            known = state.publisher(key[0], key[1])
            if known is None or known.pseq < key[2]:
                continue
            del self.waiting[key]
            position = Position(known.epoch, known.seq) if known.pseq == key[2] else None
            if position is not None and checksum(wait.item.payload) != known.crc:
                answers.extend([Refusal(ref, "PSEQ_REUSED", rewind) for ref, rewind in wait.refs])
            else:
                answers.extend([PubAck(ref, position, duplicate=True) for ref, _ in wait.refs])
        self._pass_barriers()

    def expire(self) -> None:
        """Tell those that waited too long to retry; the outcome of this try is open."""
        ctx = self.replica.ctx
        deadline = ctx.now - PUBLISH_PATIENCE
        for key, wait in list(self.waiting.items()):
            if wait.since > deadline:
                break
            del self.waiting[key]
            code = "UNAVAILABLE" if self.replica.waits_for_operator else "RETRY"
            for ref, rewind in wait.refs:
                ctx.ready.answers.append(Refusal(ref, code, rewind, 0, self.replica.leader))
        for barrier, (since, _, _) in list(self.barriers.items()):
            if since + BARRIER_PATIENCE <= ctx.now:
                del self.barriers[barrier]
                ctx.ready.barriers.append(BarrierDone(barrier, ok=False))

    # ---- barriers ------------------------------------------------------------------------------

    def want_barrier(self, ref: int) -> None:
        """Someone must know whether this member has everything committed until now."""
        replica = self.replica
        self.barriers[ref] = (replica.ctx.now, 0, 0)
        if replica.leading is not None:
            replica.leading.want_barrier(replica.ctx.me, replica.ctx.me, ref)
        elif route := self._route():
            replica.ctx.send(route, BarrierReq(replica.g, replica.floor, replica.ctx.me, ref))

    def on_barrier_req(self, peer: str, message: BarrierReq) -> None:
        """A contact asks; only the coordinator can answer, others pass it on once."""
        replica = self.replica
        if replica.leading is not None:
            replica.leading.want_barrier(peer, message.contact, message.ref)
        elif peer == message.contact and (leader := self._other_leader(peer)):
            replica.ctx.send(leader, message)

    def on_barrier(self, message: Barrier) -> None:
        """The index to wait for is known; one for another contact is passed on to it."""
        ctx = self.replica.ctx
        if message.contact != ctx.me:
            if message.contact in ctx.peers:
                ctx.send(message.contact, message)
        elif message.ref in self.barriers:
            since, _, _ = self.barriers[message.ref]
            self.barriers[message.ref] = (since, message.epoch, message.idx)
            self._pass_barriers()

    def _pass_barriers(self) -> None:
        replica = self.replica
        for ref, (_, epoch, idx) in list(self.barriers.items()):
            if not 0 < idx <= replica.commit:
                continue
            del self.barriers[ref]
            # Another entry at that index, or one that is gone, proves nothing.
            passed = idx >= replica.log.base and replica.log.epoch_at(idx) == epoch
            replica.ctx.ready.barriers.append(BarrierDone(ref, ok=passed))
