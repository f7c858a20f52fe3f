"""The engine's loop: everything that came in, one turn of the deciders, everything that goes out.

A turn has no `await` in it, so nothing happens between its parts:

1. What came from peers, ZooKeeper and the operator is stepped, and its effects are taken.
2. Requests of the front are answered by the desk. It reads the applied state, so it must have been
   told of everything delivered before (1) and of nothing more: publications come after it.
3. Publications, barriers and the timer are stepped, and their effects are taken.
4. The trace is flushed, if there is one: nobody knows of anything that it does not have.
   Frames for the peers are written first: while they travel, this member serves its clients.
5. The front gets its messages, what was delivered before the answers to publishers.

One turn takes all that waits, and each side gets one batch of it. Between two turns the loop waits
for the bell, or for the time that the member named.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Protocol

import msgspec
import trio

from coordinator.boot import register
from coordinator.events import (
    BarrierWanted,
    DrainWanted,
    Event,
    KeeperAnswer,
    Note,
    Procedure,
    Publish,
    Ready,
    RecoverWanted,
    SessionOpened,
    Tick,
)
from coordinator.keeper import Elected, MemberNode, Paths
from coordinator.member import Member
from migratory.delivery.desk import Desk
from migratory.delivery.views import GroupView
from migratory.observability.logs import get_logger
from migratory.observability.trace import MemberTrace
from migratory.shell.bell import Bell
from migratory.shell.peer_link import LinkEvent, Superseded
from migratory.wire.codes import Code
from migratory.wire.ids import Boot, group_of
from migratory.wire.peer import CONTROL, PeerMessage, Publication
from migratory.wire.shard import Answers, Closing, PubAck, Pubs, Serving, ToEngine, ToFront

REGISTRATION = 0  # the token of the driver's own procedure; a member's tokens begin at 1
SHARD = 0  # the number of the one front that runs in this process
CLOSE_PACE = 500  # milliseconds over which clients that are told to leave are spread
CLOSE_PATIENCE = 3.0  # seconds for clients to leave before the end of a drained member

QUIET = ("promise", "normal")  # notes that come once per group in every takeover and recovery

log = get_logger("engine")


class Links(Protocol):
    """The engine's side of the mesh."""

    def take(self) -> list[LinkEvent]:
        """Everything that came in, in order; it counts as processed now."""

    def linked(self) -> list[str]:
        """The peers that can be sent to."""

    def room(self, peer: str) -> int:
        """How many bytes of entries the peer can be sent now."""

    def send(self, peer: str, control: list[PeerMessage], data: list[PeerMessage]) -> None:
        """One frame on each connection of the link, if there is a link."""

    def learn(self, boots: Mapping[str, Boot]) -> None:
        """Boots that were read in ZooKeeper."""


class KeeperPort(Protocol):
    """The engine's side of ZooKeeper."""

    def start(self, token: int, procedure: Procedure) -> None:
        """Begin a procedure."""

    def take(self) -> list[KeeperAnswer | SessionOpened]:
        """Values of procedures that ended, and new sessions, in order."""


class FrontPort(Protocol):
    """The engine's side of the FIFO to a front."""

    def take(self) -> list[ToEngine]:
        """What the front wants, in order."""

    def put(self, messages: list[ToFront]) -> None:
        """What the front gets, in order."""

    def clients(self) -> int:
        """How many clients are connected."""


class Counts(msgspec.Struct):
    """What the engine has done since its start."""

    turns: int = 0
    publications: int = 0
    acknowledged: int = 0
    refused: int = 0
    delivered: int = 0
    longest_turn_ms: float = 0.0


class Driver:
    """Runs one member; `run` returns the name of the reason why it ended."""

    def __init__(
        self,
        member: Member,
        node: MemberNode,
        links: Links,
        keeper: KeeperPort,
        front: FrontPort,
        bell: Bell,
        *,
        elsewhere: list[str],
        clock: Callable[[], float] = trio.current_time,
    ) -> None:
        self.member = member
        self.counts = Counts()
        self.desk = Desk(self._view)
        self._node = node
        self._links = links
        self._keeper = keeper
        self._front = front
        self._bell = bell
        self._elsewhere = elsewhere  # where clients can go: the other members
        self._clock = clock
        self._wanted: list[Event] = []
        self._control: dict[str, list[PeerMessage]] = {}
        self._data: dict[str, list[PeerMessage]] = {}
        self._out: list[ToFront] = []
        self._serving = False
        self._ends_at: float | None = None  # drained, and waiting for clients to leave
        self._exit = ""
        self.observe: Callable[[Note], None] = _log_note
        self.trace: MemberTrace | None = None

    # ---- running -------------------------------------------------------------------------------

    async def run(self) -> str:
        """Take turns until there is a reason to end."""
        while not self._exit:
            began = time.perf_counter()
            self.turn()
            took = (time.perf_counter() - began) * 1000
            self.counts.longest_turn_ms = max(self.counts.longest_turn_ms, took)
            if not self._exit:
                await self._bell.wait(self._next_wake())
        return self._exit

    def want(self, event: DrainWanted | RecoverWanted) -> None:
        """The operator, or a signal, asks for something."""
        self._wanted.append(event)
        self._bell.ring()

    def _next_wake(self) -> float:
        wake = self.member.next_wake()
        return wake if self._ends_at is None else min(wake, self._clock() + 0.02)

    # ---- one turn ------------------------------------------------------------------------------

    def turn(self) -> None:
        """See the module's docstring."""
        self.counts.turns += 1
        now = self._clock()
        if self._step_world(now):
            self._take_effects()
        publications = self._ask_desk()
        if self._step_clients(publications, now):
            self._take_effects()
        if self.trace is not None:
            self.trace.flush()
        self._write_peers()
        self._serve(now)
        if self._out:
            out, self._out = self._out, []
            self._front.put(out)

    def _step_world(self, now: float) -> bool:
        """Peers, ZooKeeper, the operator; True when something was stepped."""
        step = self.member.step
        events: list[Event] = [*self._wanted]
        self._wanted.clear()
        for event in self._links.take():
            if isinstance(event, Superseded):
                log.error("superseded", detail=event.detail)
                self._exit = "SUPERSEDED"
            else:
                events.append(event)
        for answer in self._keeper.take():
            self._look_at(answer)
            events.append(answer)
        for each in events:
            step(each, now)
        return bool(events)

    def _look_at(self, answer: KeeperAnswer | SessionOpened) -> None:
        """What the shell itself learns from ZooKeeper."""
        if isinstance(answer, SessionOpened):
            ctx = self.member.ctx
            log.warning("session_opened", detail="the old ZooKeeper session has ended")
            self._keeper.start(REGISTRATION, register(Paths(ctx.cluster.name), ctx.me, self._node))
        elif answer.token == REGISTRATION and answer.value is False:
            log.error("superseded", detail="a later boot of this member is registered")
            self._exit = "SUPERSEDED"
        elif isinstance(answer.value, Elected):
            self._links.learn(answer.value.boots)

    def _ask_desk(self) -> list[Publication]:
        """Have requests answered; publications are for the member."""
        publications: list[Publication] = []
        handle = self.desk.handle
        for message in self._front.take():
            if isinstance(message, Pubs):
                publications += message.items
            else:
                handle(SHARD, message)
        self._take_desk()
        return publications

    def _step_clients(self, publications: list[Publication], now: float) -> bool:
        """Publications, barriers, time; True when something was stepped."""
        step = self.member.step
        barriers = self.desk.take_barriers()
        if publications:
            self.counts.publications += len(publications)
            step(Publish(publications), now)
        for g, ref in barriers:
            step(BarrierWanted(g, ref), now)
        due = self.member.next_wake() <= now
        if due:
            step(Tick(), now)
        return bool(publications or barriers or due)

    # ---- effects -------------------------------------------------------------------------------

    def _take_effects(self) -> None:
        ready = self.member.take_ready()
        for peer, message in ready.sends:
            lane = self._control if isinstance(message, CONTROL) else self._data
            lane.setdefault(peer, []).append(message)
        if ready.installed:
            self.desk.installed(ready.installed)
        for delivered in ready.delivered:
            self.counts.delivered += len(delivered.entries)
            self.desk.delivered(delivered.entries)
        for barrier in ready.barriers:
            self.desk.barrier(barrier.ref, barrier.ok)
        self._take_desk()
        if ready.answers:
            self._out.append(self._answers(ready))
        for token, procedure in ready.procedures:
            self._keeper.start(token, procedure)
        for note in ready.notes:
            self.observe(note)
        self._close_or_end(ready)

    def _take_desk(self) -> None:
        messages = [message for _, message in self.desk.take()]
        if self.trace is not None:
            self.trace.answered(messages)
        self._out += messages

    def _answers(self, ready: Ready) -> Answers:
        acknowledged = sum(type(answer) is PubAck for answer in ready.answers)
        self.counts.acknowledged += acknowledged
        self.counts.refused += len(ready.answers) - acknowledged
        return Answers(ready.answers)

    def _close_or_end(self, ready: Ready) -> None:
        if ready.close_clients:
            self._close_clients(ready.close_clients)
        if ready.drained and self._ends_at is None:
            self._leave()
        if ready.exit:
            self._exit = ready.exit

    def _everybody_leaves(self) -> bool:
        """Whether the whole cluster is being stopped: nobody is left to take a group over."""
        ctx = self.member.ctx
        return ctx.draining and all(peer.draining for peer in ctx.peers.values())

    def _leave(self) -> None:
        self._ends_at = self._clock() + CLOSE_PATIENCE
        self._close_clients(Code.DRAINING.name)

    def _close_clients(self, reason: str) -> None:
        """Tell clients to go; codes that clients do not know mean the same to them."""
        code = reason if reason in Code.__members__ else Code.GO_ELSEWHERE.name
        self._serving = False
        if self.trace is not None:
            self.trace.isolated(code)
        self._out += [Serving(ready=False), Closing(code, self._elsewhere, CLOSE_PACE)]

    # ---- out -----------------------------------------------------------------------------------

    def _write_peers(self) -> None:
        """One frame for each connection of each peer, with as many entries as its link takes."""
        control, self._control = self._control, {}
        data, self._data = self._data, {}
        for peer in self._links.linked():
            bulk = data.get(peer, [])
            room = self._links.room(peer)
            if room > 0:
                bulk += self.member.collect(peer, room)
            urgent = control.get(peer, [])
            if bulk or urgent:
                self._links.send(peer, urgent, bulk)

    def _serve(self, now: float) -> None:
        """The front listens while the member says so; a drained one ends when clients are gone."""
        if self._ends_at is None and self._everybody_leaves():
            self._leave()
        serving = self.member.serving and self._ends_at is None
        if serving != self._serving:
            self._serving = serving
            self._out.append(Serving(serving))
        if self._ends_at is not None and (now >= self._ends_at or not self._front.clients()):
            self._exit = self._exit or "DRAINED"

    def _view(self, topic: str) -> GroupView:
        """What the desk sees of a topic's group."""
        replica = self.member.replicas[group_of(topic, len(self.member.replicas))]
        refusal = "" if replica.normal else Code.UNAVAILABLE.name
        return GroupView(replica.g, replica.floor, replica.state, refusal)


def _log_note(note: Note) -> None:
    fields: dict[str, int | str] = {}
    if note.g >= 0:
        fields = {"group": note.g, "epoch": note.epoch, "index": note.idx}
    if note.detail:
        fields["detail"] = note.detail
    log.log(logging.DEBUG if note.kind in QUIET else logging.INFO, note.kind, **fields)
