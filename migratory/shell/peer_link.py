"""The mesh: one link, of a data and a control connection, to every other member.

The member with the lower id dials both connections of a link under one link number; the other
accepts them and pairs them by that number. A link is bound to the boots of both ends by its Hello:
a later boot or a later number replaces what was there, an earlier boot is refused.

Invariants: per peer, LinkUp and LinkDown alternate (but a LinkDown with `refused` may follow a
LinkDown), and Received only comes between them; one bad link disturbs no other; every refusal is
told to the other side by a Goodbye and logged once on both.

A link may hang long after a cut has healed, as TCP repeats what was lost after ever longer pauses,
on each connection by itself. So when nothing came for S/8 over one of its two, the side that dials
dials anew beside it: the new link takes its place, unless the old one is heard meanwhile. One that
is silent for S/2 is broken, by either side. Whenever something is said by control, something is
said by data too: an empty frame, if there is nothing else.

Flow control: at most `WINDOW` bytes of the data connection are unprocessed at the peer; it says
by Credit how far it is. Received frames need no queue bound of their own: each reader hands over
one chunk at a time and the engine takes everything before the reader's next turn.
"""

from __future__ import annotations

import contextlib
import random
import socket
from collections.abc import Mapping

import msgspec
import trio

from coordinator.events import LinkDown, LinkUp, Received
from migratory.observability.logs import get_logger
from migratory.shell.bell import Bell
from migratory.shell.peer import Half, Link, Peer
from migratory.shell.peer_hello import (
    CONTROL_CHANNEL,
    DATA,
    LEAVING,
    NO_HELLO,
    STALE_BOOT,
    UNKNOWN_MEMBER,
    Identity,
    refusal,
    stale,
)
from migratory.shell.peer_socket import Address, PeerSocket, connect, reach
from migratory.wire.ids import NO_BOOT, Boot
from migratory.wire.peer import Credit, Goodbye, Hello, PeerMessage
from migratory.wire.peer_codec import MAX_FRAME, FrameError

WINDOW = 4 << 20
CREDIT_STEP = 256 << 10
MAX_HELLO = 4096
MAX_STRANGERS = 64  # connections that have not said Hello yet: further ones are closed
BACKOFF_FIRST, BACKOFF_LAST = 0.02, 0.5

log = get_logger("peer_link")


class Superseded(msgspec.Struct, frozen=True):
    """A later life of this very member runs: this process must end."""

    detail: str


LinkEvent = Received | LinkUp | LinkDown | Superseded


class _RefusedError(Exception):
    """One side of a handshake refused the other, who has to repair something first."""


class _NotMissedError(Exception):
    """The link that was to be replaced has been heard."""


class Mesh:
    """All links of this member; the engine takes what came in and sends what goes out."""

    def __init__(
        self,
        me: Identity,
        addresses: Mapping[str, Address],
        known: Mapping[str, Boot],
        session: float,
        bell: Bell,
    ) -> None:
        self._me = me
        self._peers = {
            name: Peer(name, address) for name, address in addresses.items() if name != me.member
        }
        self._known = {name: boot for name, boot in known.items() if name != me.member}
        self._session = session
        self._bell = bell
        self._events: list[LinkEvent] = []
        self._strangers = 0
        self._leaving = False
        self._nursery: trio.Nursery | None = None

    # ---- for the engine ------------------------------------------------------------------------

    def take(self) -> list[LinkEvent]:
        """Everything that came in since the last call, in order; it counts as processed now."""
        events, self._events = self._events, []
        for peer in self._peers.values():
            link = peer.link
            if link is not None and link.data.frames.consumed - link.credited >= CREDIT_STEP:
                link.credited = link.data.frames.consumed
                self._write(peer, link, link.control, [Credit(link.credited)])
        return events

    def room(self, peer: str) -> int:
        """How many bytes of entries may be sent to the peer now; 0 while a write is waiting."""
        link = self._peers[peer].link
        if link is None or link.data.waiting:
            return 0
        return max(0, WINDOW - (link.data.sent - link.data.acked))

    def send(self, peer: str, control: list[PeerMessage], data: list[PeerMessage]) -> None:
        """One frame on each connection; without a link the messages are lost, as they may be."""
        at = self._peers[peer]
        if control and at.link is not None:
            self._write(at, at.link, at.link.control, control)
        if at.link is not None and (data or not at.link.data.waiting):
            self._write(at, at.link, at.link.data, data)

    def linked(self) -> list[str]:
        """The peers that can be sent to."""
        return [name for name, peer in self._peers.items() if peer.link is not None]

    def learn(self, boots: Mapping[str, Boot]) -> None:
        """Boots that were read in ZooKeeper: earlier ones of the same member are stale."""
        for name, boot in boots.items():
            peer = self._peers.get(name)
            if peer is not None and boot > self._known.get(name, NO_BOOT):
                self._known[name] = boot
                self._forsake(peer, boot)

    # ---- running -------------------------------------------------------------------------------

    async def run(self, listener: socket.socket) -> None:
        """Accept, dial and watch, until cancelled."""
        try:
            async with trio.open_nursery() as self._nursery:
                self._nursery.start_soon(self._accept, listener)
                self._nursery.start_soon(self._watch_silence)
                for peer in self._peers.values():
                    dials = self._me.member < peer.name
                    self._nursery.start_soon(self._dial if dials else self._probe, peer)
        finally:
            for peer in self._peers.values():
                if peer.half is not None:
                    peer.half.connection.close()
                if peer.link is not None:
                    self._drop(peer, peer.link)

    def leave(self, detail: str) -> None:
        """Say goodbye on every link and dial no more: the end of this process is no crash."""
        self._leaving = True
        for peer in self._peers.values():
            if peer.link is not None:
                last: list[PeerMessage] = [Goodbye(LEAVING, detail)]
                peer.link.data.finish(last)
                peer.link.control.finish(last)
                self._drop(peer, peer.link)

    async def _watch_silence(self) -> None:
        pause = self._session / 8
        while True:
            asleep = trio.current_time()
            await trio.sleep(pause)
            now = trio.current_time()
            late = now - asleep > 2 * pause  # this process was paused: what came is not read yet
            for peer in self._peers.values():
                link = peer.link
                if link is None:
                    continue
                if late:
                    link.hear(now)
                elif now - link.heard > self._session / 2:
                    log.warning("link_silent", peer=peer.name, seconds=round(now - link.heard, 2))
                    self._drop(peer, link)

    # ---- links ---------------------------------------------------------------------------------

    def _open(self, peer: Peer, hello: Hello, data: PeerSocket, control: PeerSocket) -> Link:
        """Both connections have been greeted: this is the peer's link from now on."""
        if peer.link is not None:
            silent = round(trio.current_time() - peer.link.heard, 2)
            log.info("link_replaced", peer=peer.name, seconds=silent)
            self._drop(peer, peer.link)
        link = Link(hello.boot, hello.link, data, control, trio.current_time())
        peer.link = link
        peer.refused = False
        peer.complaint = ""
        peer.up.set()
        peer.down = trio.Event()
        self._post(LinkUp(peer.name, link.boot))
        log.info("link_up", peer=peer.name, boot=str(link.boot))
        return link

    def _drop(self, peer: Peer, link: Link) -> None:
        """The link is broken; once."""
        link.scope.cancel()
        link.data.close()
        link.control.close()
        if peer.link is link:
            peer.link = None
            peer.down.set()
            peer.up = trio.Event()
            self._post(LinkDown(peer.name, refused=False))
            log.info("link_down", peer=peer.name, boot=str(link.boot))

    def _forsake(self, peer: Peer, boot: Boot) -> None:
        """A link to an earlier life would keep the later one from being dialed."""
        link = peer.link
        if link is not None and link.boot < boot:
            last: list[PeerMessage] = [stale(peer.name, link.boot, boot)]
            link.data.finish(last)
            link.control.finish(last)
            self._drop(peer, link)

    async def _serve(self, peer: Peer, link: Link) -> None:
        """Read both connections until the link breaks."""
        with link.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, peer, link, link.data)
                nursery.start_soon(self._read, peer, link, link.control)
        self._drop(peer, link)

    async def _read(self, peer: Peer, link: Link, connection: PeerSocket) -> None:
        try:
            messages = connection.early
            while peer.link is link:
                if messages:
                    self._received(peer, link, connection, messages)
                messages = await connection.read()
                connection.heard = trio.current_time()  # any byte is a sign of life
        except FrameError as error:
            log.warning("peer_sent_bad_frame", peer=peer.name, code=error.code, detail=error.detail)
            connection.finish([Goodbye(error.code, error.detail)])
        except (EOFError, OSError, trio.ClosedResourceError):
            pass
        self._drop(peer, link)

    def _received(
        self, peer: Peer, link: Link, connection: PeerSocket, messages: list[PeerMessage]
    ) -> None:
        if isinstance(last := messages[-1], Goodbye):
            self._told(peer, last)
            messages = messages[:-1]
        if connection is link.control:
            messages = [one for one in messages if not self._credited(link, one)]
        if messages:
            self._events.append(Received(peer.name, link.boot, messages))
        self._bell.ring()

    def _credited(self, link: Link, message: PeerMessage) -> bool:
        if isinstance(message, Credit):
            link.data.acked = max(link.data.acked, message.seen)
            return True
        return False

    def _write(
        self, peer: Peer, link: Link, connection: PeerSocket, messages: list[PeerMessage]
    ) -> None:
        try:
            if connection.write(messages):
                assert self._nursery is not None
                self._nursery.start_soon(self._flush, peer, link, connection)
        except OSError as error:
            log.info("link_broken_by_write", peer=peer.name, error=str(error))
            self._drop(peer, link)

    async def _flush(self, peer: Peer, link: Link, connection: PeerSocket) -> None:
        try:
            await connection.flush()
        except (OSError, trio.ClosedResourceError):
            self._drop(peer, link)
        self._bell.ring()

    def _post(self, event: LinkEvent) -> None:
        self._events.append(event)
        self._bell.ring()

    def _told(self, peer: Peer, goodbye: Goodbye) -> None:
        """The other side closes, and says why."""
        if goodbye.code == STALE_BOOT:
            self._post(Superseded(goodbye.detail))
        if peer.complaint == goodbye.code:
            return
        peer.complaint = goodbye.code
        if goodbye.code == LEAVING:
            log.info("peer_leaves", peer=peer.name, detail=goodbye.detail)
        else:
            log.error("refused_by_peer", peer=peer.name, code=goodbye.code, detail=goodbye.detail)

    def _complain(self, name: str, goodbye: Goodbye) -> None:
        """Log that this side refuses, once per outage and reason."""
        peer = self._peers.get(name)
        if peer is None or peer.complaint != goodbye.code:
            log.error("peer_refused", peer=name, code=goodbye.code, detail=goodbye.detail)
        if peer is not None:
            peer.complaint = goodbye.code

    def _examine(self, hello: Hello) -> Goodbye | None:
        """Check a Hello; one of a later boot makes all earlier ones stale."""
        goodbye = refusal(self._me, hello, self._known)
        if goodbye is None and hello.member == self._me.member:
            self._post(Superseded(f"boot {hello.boot} of {hello.member} runs"))
            return Goodbye(UNKNOWN_MEMBER, "that is my own id; this process ends")
        if goodbye is None:
            self.learn({hello.member: hello.boot})
        return goodbye

    # ---- the dialing side ----------------------------------------------------------------------

    async def _dial(self, peer: Peer) -> None:
        assert self._nursery is not None
        backoff = BACKOFF_FIRST
        while not self._leaving:
            try:
                link = await self._greet(peer)
            except (trio.TooSlowError, _NotMissedError):
                await self._until_missed(peer)
                continue
            except (OSError, EOFError, FrameError, _RefusedError) as error:
                self._note_refusal(peer, error)
            else:
                before = trio.current_time()
                self._nursery.start_soon(self._serve, peer, link)
                await self._until_missed(peer)
                # A link that breaks is redialed at once; one that never stands is not.
                if trio.current_time() - before > BACKOFF_LAST:
                    backoff = BACKOFF_FIRST
                    continue
            await trio.sleep(backoff * random.uniform(0.5, 1))
            backoff = min(2 * backoff, BACKOFF_LAST)

    async def _until_missed(self, peer: Peer) -> None:
        """Wait until there is no link, or one over which nothing comes."""
        while (left := self._patience(peer)) > 0:
            with trio.move_on_after(left):
                await peer.down.wait()

    def _patience(self, peer: Peer) -> float:
        """How long the present link may still be silent; 0 without one."""
        link = peer.link
        due = 0.0 if link is None else link.heard + self._session / 8
        return max(0.0, due - trio.current_time())

    async def _greet(self, peer: Peer) -> Link:
        """Dial both connections and exchange Hellos on them."""
        peer.number += 1
        made: dict[str, tuple[Hello, PeerSocket]] = {}
        opened: list[PeerSocket] = []
        try:
            for channel in (DATA, CONTROL_CHANNEL):
                with trio.fail_after(
                    self._session / 4
                ):  # each: the second answer ends the old link
                    connection = await reach(peer.address, MAX_FRAME, self._session / 16)
                    opened.append(connection)
                    made[channel] = (await self._welcome(peer, connection, channel), connection)
        except BaseException:
            for connection in opened:
                connection.close()
            raise
        (hello, data), (twin, control) = made[DATA], made[CONTROL_CHANNEL]
        if hello.boot != twin.boot:
            data.close()
            control.close()
            raise EOFError("the peer was restarted between its two answers")
        return self._open(peer, hello, data, control)

    async def _welcome(self, peer: Peer, connection: PeerSocket, channel: str) -> Hello:
        """Say Hello and hear the answer, if there is still a need for it."""
        if self._leaving or self._patience(peer):
            raise _NotMissedError
        connection.write([self._me.hello(channel, peer.number)])
        answer = await connection.read_first()
        if isinstance(answer, Goodbye):
            self._told(peer, answer)
            raise _RefusedError(answer.code)
        goodbye: Goodbye | None = Goodbye(NO_HELLO, "a link begins with a Hello")
        if isinstance(answer, Hello):
            goodbye = self._examine(answer)
            if goodbye is None and answer.member != peer.name:
                goodbye = Goodbye(UNKNOWN_MEMBER, f"{peer.name} expected, not {answer.member}")
            if goodbye is None:
                return answer
        assert goodbye is not None
        self._complain(peer.name, goodbye)
        connection.finish([goodbye])
        raise _RefusedError(goodbye.code)

    def _note_refusal(self, peer: Peer, error: Exception) -> None:
        refused = isinstance(error, ConnectionRefusedError) and not peer.refused
        if refused and not self._patience(peer):
            if peer.link is not None:
                self._drop(peer, peer.link)
            peer.refused = True
            self._post(LinkDown(peer.name, refused=True))

    # ---- the accepting side --------------------------------------------------------------------

    async def _probe(self, peer: Peer) -> None:
        """While no link is there, find out whether anybody listens where the peer should be.

        It is told who knocks: its link may lead to an earlier life of this member, which was
        stopped and goes on elsewhere.
        """
        backoff = BACKOFF_FIRST
        while not self._leaving:
            await peer.down.wait()
            if peer.link is not None:  # another one has taken its place already
                continue
            if peer.refused:
                await peer.up.wait()
                continue
            try:
                with trio.fail_after(self._session / 4):
                    await self._knock(peer)
            except (OSError, EOFError, trio.TooSlowError, FrameError) as error:
                self._note_refusal(peer, error)
            with trio.move_on_after(backoff * random.uniform(0.5, 1)):
                await peer.up.wait()
                backoff = BACKOFF_FIRST
            backoff = min(2 * backoff, BACKOFF_LAST)

    async def _knock(self, peer: Peer) -> None:
        connection = await connect(peer.address, MAX_HELLO)
        try:
            connection.write([self._me.hello(DATA, 0)])
            if isinstance(answer := await connection.read_first(), Goodbye):
                self._told(peer, answer)
        finally:
            connection.close()

    async def _accept(self, listener: socket.socket) -> None:
        assert self._nursery is not None
        with listener:
            while True:
                await trio.lowlevel.wait_readable(listener)
                try:
                    sock, _ = listener.accept()
                except BlockingIOError:
                    continue
                except OSError as error:  # out of descriptors, or the stranger is gone already
                    log.warning("accept_failed", error=str(error))
                    await trio.sleep(0.05)
                    continue
                if self._strangers >= MAX_STRANGERS:
                    sock.close()
                    continue
                self._strangers += 1
                self._nursery.start_soon(self._meet, PeerSocket(sock, MAX_HELLO))

    async def _meet(self, connection: PeerSocket) -> None:
        """Find out who has connected, and refuse or admit it."""
        try:
            with trio.fail_after(self._session):
                hello = await connection.read_first()
        except (OSError, EOFError, trio.TooSlowError):  # a probe, or nobody who knows us
            connection.close()
            return
        except FrameError as error:
            log.warning("stranger_sent_bad_frame", code=error.code, detail=error.detail)
            connection.finish([Goodbye(error.code, error.detail)])
            return
        except trio.Cancelled:
            connection.close()
            raise
        finally:
            self._strangers -= 1
        if not isinstance(hello, Hello):
            connection.finish([Goodbye(NO_HELLO, "a link begins with a Hello")])
            return
        goodbye = self._examine(hello)
        if goodbye is not None:
            self._complain(hello.member, goodbye)
            connection.finish([goodbye])
        elif hello.member > self._me.member or connection.abandoned():
            # A knock (the lower id dials), or somebody who has lost patience.
            connection.close()
        else:
            peer = self._peers[hello.member]
            half = self._admit(peer, hello, connection)
            if half is not None:
                await self._hear_out(peer, half)

    async def _hear_out(self, peer: Peer, half: Half) -> None:
        """Before its twin comes, a connection can only be ended, with or without a word."""
        with half.scope:
            with contextlib.suppress(OSError, EOFError, FrameError, trio.ClosedResourceError):
                for message in await half.connection.read():
                    if isinstance(message, Goodbye):
                        self._told(peer, message)
            half.connection.close()
            if peer.half is half:
                peer.half = None

    def _admit(self, peer: Peer, hello: Hello, connection: PeerSocket) -> Half | None:
        """Answer a Hello, and open the link when both connections of it are there."""
        present, half = peer.link, peer.half
        late = present is not None and (hello.boot, hello.link) <= (present.boot, present.number)
        if late or (half is not None and half.is_later_than(hello)):
            connection.close()  # dialed before what is there now was, and met only now
            return None
        connection.frames.limit = MAX_FRAME
        try:
            connection.write([self._me.hello(hello.channel, hello.link)])
        except OSError:
            connection.close()
            return None
        half, peer.half = peer.half, None
        if half is not None:
            half.scope.cancel()
            if half.fits(hello):
                self._pair(peer, hello, connection, half.connection)
                return None
            half.connection.close()
        peer.half = Half(hello, connection)
        return peer.half

    def _pair(self, peer: Peer, hello: Hello, connection: PeerSocket, twin: PeerSocket) -> None:
        is_data = hello.channel == DATA
        data, control = (connection, twin) if is_data else (twin, connection)
        link = self._open(peer, hello, data, control)
        assert self._nursery is not None
        self._nursery.start_soon(self._serve, peer, link)


async def answers_hello(me: Identity, address: Address, patience: float) -> bool:
    """Whether a process of this protocol lives there; it refuses us, but it answers."""
    connection: PeerSocket | None = None
    with contextlib.suppress(OSError, EOFError, FrameError), trio.move_on_after(patience):
        try:
            connection = await connect(address, MAX_HELLO)
            connection.write([me.hello(CONTROL_CHANNEL, 0)])
            return isinstance(await connection.read_first(), Hello | Goodbye)
        finally:
            if connection is not None:
                connection.close()
    return False
