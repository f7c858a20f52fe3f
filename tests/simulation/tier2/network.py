"""The links between members, in memory: what `migratory.shell.peer_link` promises to the engine.

A link is a data and a control connection, each in order and without loss, like TCP. It can be
reset, which loses what is on its way; cut in one direction, which holds everything back until the
cut is mended or one end has had enough of the silence; slow; and full. The two ends of a link see
its beginning and its end at different times. A later life of a member replaces an earlier one's
links, and an earlier life that dials is told that it is over.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from functools import partial
from random import Random
from typing import Protocol

import trio

from coordinator.cluster import Cluster
from coordinator.events import LinkDown, LinkUp, Received
from migratory.shell.bell import Bell
from migratory.shell.peer_link import LinkEvent, Superseded
from migratory.wire.ids import NO_BOOT, Boot
from migratory.wire.peer import PeerMessage
from migratory.wire.peer_codec import FrameBuffer, encode_frames
from tests.simulation.tier2.scheduling import Agenda

BACKOFF_FIRST, BACKOFF_LAST = 0.02, 0.5
SLOWEST = 0.5  # seconds for one frame on a slow link


class Host(Protocol):
    """The process that a port belongs to."""

    name: str
    dead: bool
    paused: bool
    silent: bool  # dead, and so is its machine: nobody refuses or closes anything

    @property
    def bell(self) -> Bell:
        """Wakes its engine."""


class Lane:
    """One connection in one direction; None stands for its end."""

    def __init__(self) -> None:
        self.queue: deque[bytes | None] = deque()
        self.last = 0.0  # when the latest frame arrives


class End:
    """One side of a link, as its process sees it."""

    def __init__(self, port: Port, peer: str, boot: Boot) -> None:
        self.port = port
        self.peer = peer
        self.boot = boot  # of the peer
        self.far: End
        self.closed = False
        self.heard = 0.0
        self.data, self.control = Lane(), Lane()  # what goes out
        self.unprocessed = 0  # bytes of data that the far side has not taken yet
        self.arrived = 0  # bytes of data that this side takes next

    @property
    def way(self) -> tuple[str, str]:
        """The direction in which this end sends."""
        return (self.port.name, self.peer)


class Port:
    """The links of one process: `migratory.shell.driver.Links`."""

    def __init__(self, network: Network, host: Host) -> None:
        self.network = network
        self.host = host
        self.name = host.name
        self.boot = NO_BOOT
        self.greeting = False  # it answers who dials
        self.leaving = False
        self.known: dict[str, Boot] = {}
        self.ends: dict[str, End] = {}
        self.seeking: set[str] = set()
        self.refused: set[str] = set()  # told in this outage
        self.events: list[LinkEvent] = []

    # ---- for the engine ------------------------------------------------------------------------

    def take(self) -> list[LinkEvent]:
        """Everything that came in; it counts as processed now."""
        events, self.events = self.events, []
        for end in self.ends.values():
            if end.arrived:
                self.network.credit(end)
        return events

    def linked(self) -> list[str]:
        """The peers that can be sent to."""
        return [name for name in self.network.cluster.members if name in self.ends]

    def room(self, peer: str) -> int:
        """How many bytes of entries the peer can be sent now."""
        return max(0, self.network.window - self.ends[peer].unprocessed)

    def send(self, peer: str, control: list[PeerMessage], data: list[PeerMessage]) -> None:
        """One frame on each connection."""
        end = self.ends.get(peer)
        if end is None:
            return
        if control:
            self.network.push(end, end.control, encode_frames(control))
        if data:
            body = encode_frames(data)
            end.unprocessed += len(body)
            self.network.push(end, end.data, body)

    def learn(self, boots: Mapping[str, Boot]) -> None:
        """Boots that were read in ZooKeeper, or that somebody told: earlier lives must end."""
        for name, boot in boots.items():
            if name != self.name and boot > self.known.get(name, NO_BOOT):
                self.known[name] = boot
                end = self.ends.get(name)
                if end is not None and end.boot < boot:
                    self.network.forsake(end)

    # ---- for the process -----------------------------------------------------------------------

    def begin(self, boot: Boot, boots: Mapping[str, Boot]) -> None:
        """Greet, dial and probe from now on."""
        self.boot = boot
        self.known = {name: b for name, b in boots.items() if name != self.name}
        self.greeting = True
        for peer in self.network.cluster.members:
            if peer != self.name:
                self.network.seek(self, peer)

    def post(self, event: LinkEvent) -> None:
        """Something for the engine."""
        self.events.append(event)
        self.host.bell.ring()

    def woken(self) -> None:
        """After a pause, what was not heard says nothing of the others."""
        for end in self.ends.values():
            end.heard = trio.current_time()

    def close(self) -> None:
        """The process is over; its machine closes the connections, if that is still there."""
        self.greeting, self.leaving = False, True
        for end in list(self.ends.values()):
            if self.host.silent:
                end.closed = True
                del self.ends[end.peer]
            else:
                self.network.drop(end)


class Network:
    """All links, and what is wrong with them."""

    def __init__(
        self, cluster: Cluster, random: Random, agenda: Agenda, delay: float, window: int
    ) -> None:
        self.cluster = cluster
        self.random = random
        self.agenda = agenda
        self.delay = delay
        self.window = window
        self.ports: dict[str, Port] = {}  # who listens at the address of a member
        self.cut: dict[tuple[str, str], None] = {}
        self.slow: dict[tuple[str, str], float] = {}  # bytes per second
        self.held: dict[tuple[str, str], list[tuple[End, Lane]]] = {}
        self.frames = 0
        agenda.later(cluster.session / 8, self._watch_silence)

    def latency(self) -> float:
        """The time of one way."""
        return self.random.uniform(0.0002, self.delay)

    def parted(self, a: str, b: str) -> bool:
        """Whether no new link can be made between two members."""
        return (a, b) in self.cut or (b, a) in self.cut

    # ---- frames --------------------------------------------------------------------------------

    def push(self, end: End, lane: Lane, body: bytes | None) -> None:
        """Put a frame on its way, behind those before it."""
        now = trio.current_time()
        speed = self.slow.get(end.way)
        delay = self.latency() + (min(len(body) / speed, SLOWEST) if speed and body else 0.0)
        lane.last = max(lane.last, now + delay)
        lane.queue.append(body)
        self.agenda.later(lane.last - now, lambda: self._arrive(end, lane))

    def _arrive(self, end: End, lane: Lane) -> None:
        if end.way in self.cut:
            self.held.setdefault(end.way, []).append((end, lane))
            return
        if not lane.queue:
            return  # lost by a reset
        body, far = lane.queue.popleft(), end.far
        if far.closed or far.port.host.dead:
            return
        if body is None:
            self.drop(far)
            return
        self.frames += 1
        far.heard = trio.current_time()
        if lane is end.data:
            far.arrived += len(body)
        messages = FrameBuffer().feed(body)
        far.port.post(Received(far.peer, far.boot, messages))

    def credit(self, end: End) -> None:
        """Tell the far side how much was taken."""
        size, end.arrived = end.arrived, 0

        def credited() -> None:
            end.far.unprocessed -= size
            end.far.port.host.bell.ring()

        self.agenda.later(self.latency(), credited)

    # ---- ends ----------------------------------------------------------------------------------

    def drop(self, end: End) -> None:
        """An end is closed; the far one hears of it after what is on its way, or instead of it."""
        if end.closed:
            return
        end.closed = True
        port = end.port
        if port.ends.get(end.peer) is end:
            del port.ends[end.peer]
            port.post(LinkDown(end.peer, refused=False))
            self.seek(port, end.peer)
        reset = self.random.random() < 0.5
        for lane in (end.data, end.control):
            if reset:
                lane.queue.clear()
            self.push(end, lane, None)

    def forsake(self, end: End) -> None:
        """The far side is of an earlier life: it is told so, if it can be reached."""
        far = end.far

        def told() -> None:
            if end.way not in self.cut and not far.closed:
                far.port.post(Superseded("it must end"))

        self.agenda.later(self.latency(), told)
        self.drop(end)

    def reset(self, a: str, b: str) -> bool:
        """Break the link between two members, if there is one."""
        port = self.ports.get(a)
        end = port.ends.get(b) if port is not None else None
        if end is not None:
            self.drop(end)
        return end is not None

    def mend(self, way: tuple[str, str]) -> None:
        """A cut is over: what was held back arrives."""
        self.cut.pop(way, None)
        for end, lane in self.held.pop(way, []):
            self.agenda.later(self.latency(), partial(self._arrive, end, lane))

    def _watch_silence(self) -> None:
        session, now = self.cluster.session, trio.current_time()
        for port in list(self.ports.values()):
            if port.host.dead or port.host.paused:
                continue
            for end in list(port.ends.values()):
                if now - end.heard > session / 2:
                    self.drop(end)
        self.agenda.later(session / 8, self._watch_silence)

    # ---- dialing -------------------------------------------------------------------------------

    def seek(self, port: Port, peer: str) -> None:
        """The lower id dials; the higher one finds out whether anybody listens at all."""
        if peer not in port.seeking and not port.leaving:
            port.seeking.add(peer)
            self.agenda.later(self.latency(), lambda: self._try(port, peer, BACKOFF_FIRST))

    def _try(self, port: Port, peer: str, backoff: float) -> None:
        host = port.host
        if host.dead or port.leaving or peer in port.ends:
            port.seeking.discard(peer)
            return
        patience = self.cluster.session / 4
        if host.paused:
            self.agenda.later(0.05, lambda: self._try(port, peer, backoff))
            return
        at = self.ports.get(peer)
        if at is None or at.host.dead:
            if at is None or (not at.host.silent and not self.parted(port.name, peer)):
                patience = 0.0
                self._refuse(port, peer)
        elif not self.parted(port.name, peer) and not at.host.paused and at.greeting:
            patience = 0.0
            if port.name < peer:
                self._greet(port, at)
                patience = 2 * self.delay
            else:
                self.agenda.later(self.latency(), lambda: self._knock(port, at))
        pause = patience + backoff * self.random.uniform(0.5, 1)
        later = min(2 * backoff, BACKOFF_LAST)
        self.agenda.later(pause, lambda: self._try(port, peer, later))

    def _refuse(self, port: Port, peer: str) -> None:
        if peer not in port.refused:
            port.refused.add(peer)
            port.post(LinkDown(peer, refused=True))

    def _greet(self, dialer: Port, acceptor: Port) -> None:
        """Both ends look at the other's boot; the one that accepts is there first."""
        there = self.latency()
        back = there + self.latency()
        mine, other = (
            End(dialer, acceptor.name, acceptor.boot),
            End(acceptor, dialer.name, dialer.boot),
        )
        mine.far, other.far = other, mine
        for lane in (other.data, other.control):
            lane.last = trio.current_time() + back

        def accept() -> None:
            if not self._reaches(dialer, acceptor) or acceptor.host.paused:
                mine.closed = True
            elif self._admits(acceptor, dialer):
                self._open(other)
            else:
                mine.closed = True

        def answered() -> None:
            old = acceptor.boot < dialer.known.get(acceptor.name, acceptor.boot)
            if mine.closed or other.closed:
                return
            taken = acceptor.name in dialer.ends
            if old or taken or dialer.host.paused or not self._reaches(dialer, acceptor):
                self.drop(mine)
            else:
                self._open(mine)

        self.agenda.later(there, accept)
        self.agenda.later(back, answered)

    def _knock(self, port: Port, at: Port) -> None:
        """The higher id says who it is, and that is all."""
        if self._reaches(port, at) and not at.host.paused:
            self._admits(at, port)

    def _admits(self, port: Port, visitor: Port) -> bool:
        """Whether a visitor is of the latest life; one that is not is told so."""
        if visitor.boot < port.known.get(visitor.name, visitor.boot):
            self.agenda.later(self.latency(), lambda: visitor.post(Superseded("it must end")))
            return False
        port.learn({visitor.name: visitor.boot})
        return True

    def _reaches(self, a: Port, b: Port) -> bool:
        alive = not a.leaving and not b.leaving and not a.host.dead and not b.host.dead
        return alive and not self.parted(a.name, b.name)

    def _open(self, end: End) -> None:
        port = end.port
        before = port.ends.get(end.peer)
        if before is not None:
            self.drop(before)
        port.ends[end.peer] = end
        port.known[end.peer] = end.boot
        port.refused.discard(end.peer)
        end.heard = trio.current_time()
        port.post(LinkUp(end.peer, end.boot))
