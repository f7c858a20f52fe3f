"""The mesh over real sockets on loopback: greetings, refusals, credit, broken links."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import trio

from coordinator.events import LinkDown, LinkUp, Received
from migratory.shell import peer_socket
from migratory.shell.bell import Bell
from migratory.shell.peer_hello import CONTROL_CHANNEL, DATA, Identity
from migratory.shell.peer_link import WINDOW, LinkEvent, Mesh, Superseded, answers_hello
from migratory.shell.peer_socket import Address, PeerSocket, connect, listen, reach
from migratory.wire.entry import Entry
from migratory.wire.ids import NO_BOOT, Boot
from migratory.wire.peer import Ack, App, Goodbye, Heartbeat, Hello, PeerMessage
from migratory.wire.peer_codec import MAX_FRAME
from tests.unit.hanging_cable import HangingCable

MEMBERS = ("a", "b", "c")
FIRST = Boot(1, "u1")
BEAT = Heartbeat([], [], [], [], draining=False)


Net = dict[str, Address]


@pytest.fixture
def net() -> Iterator[Net]:
    """An address for every member, where nobody listens until its side does."""
    with contextlib.ExitStack() as held:
        sockets = {name: held.enter_context(socket.socket()) for name in MEMBERS}
        for sock in sockets.values():
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(("127.0.0.1", 0))
        yield {name: sock.getsockname() for name, sock in sockets.items()}


class Side:
    """A member's mesh, its listener and everything that it has told its engine."""

    def __init__(
        self,
        net: Net,
        name: str,
        boot: int = 1,
        *,
        cluster: str = "test",
        config: str = "hash",
        known: dict[str, Boot] | None = None,
        session: float = 4.0,
    ) -> None:
        self.listener = listen(net[name])
        self.me = Identity(cluster, config, MEMBERS, name, Boot(boot, f"u{boot}"))
        self.net = net
        self.known = known or {}
        self.session = session
        self.bell = Bell()
        self.events: list[LinkEvent] = []
        self.scope = trio.CancelScope()
        self.took = trio.Event()
        self.dialed: list[PeerSocket] = []

    async def run(self) -> None:
        """Run the mesh and a little engine that takes and beats."""
        self.mesh = Mesh(self.me, self.net, self.known, self.session, self.bell)
        with self.scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.mesh.run, self.listener)
                while True:
                    self.events += self.mesh.take()
                    self.took.set()
                    await self.bell.wait(trio.current_time() + 0.02)
                    for peer in self.mesh.linked():
                        self.mesh.send(peer, [BEAT], [])

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for something that the events will show."""
        with trio.fail_after(10):
            while not condition():
                await self.took.wait()
                self.took = trio.Event()

    def got(self, kind: type[LinkEvent]) -> list[LinkEvent]:
        """All events of a kind so far."""
        return [event for event in self.events if isinstance(event, kind)]

    def messages(self) -> list[PeerMessage]:
        """All messages received so far but the heartbeats."""
        return [
            message
            for event in self.events
            if isinstance(event, Received)
            for message in event.messages
            if message != BEAT
        ]

    async def linked(self, times: int = 1) -> None:
        """Wait until a link has come up so many times."""
        await self.until(lambda: len(self.got(LinkUp)) >= times)

    def close(self) -> None:
        """End as a killed process ends: every socket closes without a word."""
        self.scope.cancel()
        self.listener.close()


@contextlib.asynccontextmanager
async def running(*sides: Side) -> AsyncIterator[trio.Nursery]:
    """Run these sides for the length of the block."""
    async with trio.open_nursery() as nursery:
        for side in sides:
            nursery.start_soon(side.run)
        try:
            yield nursery
        finally:
            nursery.cancel_scope.cancel()
            for side in sides:
                for connection in side.dialed:
                    connection.close()


async def dial(side: Side, me: Identity, channel: str, link: int = 1) -> PeerSocket:
    """Connect by hand and say Hello."""
    connection = await connect(side.net[side.me.member], MAX_FRAME)
    side.dialed.append(connection)
    connection.write([me.hello(channel, link)])
    return connection


def identity(name: str = "a", boot: Boot = FIRST, **other: str) -> Identity:
    """An identity that fits, or does not fit in the named respect."""
    return Identity(other.get("cluster", "test"), other.get("config", "hash"), MEMBERS, name, boot)


async def test_both_sides_learn_of_the_link_and_messages_keep_their_order(net: Net) -> None:
    """The lower id dials; each side hears one LinkUp with the other's boot, then what is sent."""
    a, b = Side(net, "a", 5), Side(net, "b", 9)
    async with running(a, b):
        await a.linked()
        await b.linked()
        assert a.got(LinkUp) == [LinkUp("b", b.me.boot)]
        assert b.got(LinkUp) == [LinkUp("a", a.me.boot)]
        for i in range(100):
            a.mesh.send("b", [], [Ack(1, 0, 1, i), Ack(2, 0, 1, i)])
            b.mesh.send("a", [], [Ack(3, 0, 1, i)])
        await b.until(lambda: len(b.messages()) == 200)
        await a.until(lambda: len(a.messages()) == 100)
        assert b.messages() == [Ack(g, 0, 1, i) for i in range(100) for g in (1, 2)]
        assert a.messages() == [Ack(3, 0, 1, i) for i in range(100)]


async def test_what_does_not_belong_is_refused_by_name(net: Net) -> None:
    """Another protocol, cluster, configuration or member gets a Goodbye that says so."""
    b = Side(net, "b", known={"a": Boot(4, "u4")})
    wrong = {
        "WRONG_CLUSTER": identity(cluster="other"),
        "CONFIG_MISMATCH": identity(config="else"),
        "UNKNOWN_MEMBER": identity("z"),
        "STALE_BOOT": identity(boot=Boot(3, "u3")),
    }
    async with running(b):
        for code, me in wrong.items():
            connection = await dial(b, me, DATA)
            answer = await connection.read_first()
            assert isinstance(answer, Goodbye)
            assert answer.code == code
        connection = await connect(net["b"], MAX_FRAME)
        b.dialed.append(connection)
        connection.write([Ack(1, 0, 1, 1)])
        answer = await connection.read_first()
        assert isinstance(answer, Goodbye)
        assert answer.code == "NO_HELLO"
        assert not b.got(LinkUp)


async def test_a_life_that_was_replaced_is_told_to_end(net: Net) -> None:
    """A member whose peer knows a later boot of it learns that it is superseded."""
    a, b = Side(net, "a", 3), Side(net, "b", known={"a": Boot(4, "u4")})
    async with running(a, b):
        await a.until(lambda: bool(a.got(Superseded)))
        assert not a.got(LinkUp)


async def test_the_dialing_side_refuses_a_stale_acceptor(net: Net) -> None:
    """The check works in both directions: here the accepting process is the old one."""
    a, b = Side(net, "a", known={"b": Boot(4, "u4")}), Side(net, "b", 3)
    async with running(a, b):
        await b.until(lambda: bool(b.got(Superseded)))
        assert not a.got(LinkUp)


async def test_a_second_process_with_my_id_is_refused_or_ends_me(net: Net) -> None:
    """An earlier boot under my own id is refused; a later one means that I am superseded."""
    b = Side(net, "b", 5)
    async with running(b):
        assert await answers_hello(identity("b", NO_BOOT), net["b"], 2.0)
        assert not b.got(Superseded)
        await dial(b, identity("b", Boot(6, "u6")), DATA)
        await b.until(lambda: bool(b.got(Superseded)))
    assert not await answers_hello(identity("b", NO_BOOT), net["b"], 0.2)


async def test_a_later_boot_replaces_the_link(net: Net) -> None:
    """A restarted peer gets a new link at once, though the old one has not ended yet."""
    b = Side(net, "b")
    async with running(b):
        for channel in (DATA, CONTROL_CHANNEL):
            await dial(b, identity(), channel)
        await b.linked()
        for channel in (CONTROL_CHANNEL, DATA):
            await dial(b, identity(boot=Boot(2, "u2")), channel)
        await b.linked(2)
        changes = [
            event
            for event in b.events
            if isinstance(event, LinkUp) or event == LinkDown("a", refused=False)
        ]
        assert changes == [
            LinkUp("a", Boot(1, "u1")),
            LinkDown("a", refused=False),
            LinkUp("a", Boot(2, "u2")),
        ]


async def test_a_link_to_an_earlier_life_ends_when_a_later_one_is_known(net: Net) -> None:
    """Read in ZooKeeper or told by a knock: the old life is told to end, its link is given up."""
    later = Boot(2, "u2")
    a, b, c = Side(net, "a"), Side(net, "b"), Side(net, "c")
    async with running(a, b, c):
        for side in (a, b, c):
            await side.linked(2)
        a.mesh.learn({"b": later})
        knock = await dial(a, identity("c", later), DATA, 0)
        await b.until(lambda: bool(b.got(Superseded)))
        await c.until(lambda: bool(c.got(Superseded)))
        await a.until(lambda: LinkDown("b", refused=False) in a.events)
        await a.until(lambda: LinkDown("c", refused=False) in a.events)
        with pytest.raises(EOFError):
            await knock.read_first()


async def test_a_life_that_knocks_says_who_it_is_and_hears_the_answer(net: Net) -> None:
    """The higher id never dials, so its knock must tell of a new life, or that its own is over."""
    b = Side(net, "b", 3)
    with listen(net["a"]) as door:
        async with running(b):
            await trio.lowlevel.wait_readable(door)
            visitor = PeerSocket(door.accept()[0], MAX_FRAME)
            b.dialed.append(visitor)
            hello = await visitor.read_first()
            assert isinstance(hello, Hello)
            assert (hello.member, hello.boot) == ("b", b.me.boot)
            visitor.finish([Goodbye("STALE_BOOT", "boot 4 runs")])
            await b.until(lambda: bool(b.got(Superseded)))


async def test_a_killed_peer_is_refused_on_both_sides_of_the_rule(net: Net) -> None:
    """The dialing and the accepting neighbour of a dead process both learn that nobody listens."""
    a, b, c = Side(net, "a"), Side(net, "b"), Side(net, "c")
    async with running(a, b, c):
        for side in (a, b, c):
            await side.linked(2)
        b.close()
        await a.until(lambda: LinkDown("b", refused=True) in a.events)
        await c.until(lambda: LinkDown("b", refused=True) in c.events)
        assert a.events.count(LinkDown("b", refused=False)) == 1
        assert LinkDown("c", refused=False) not in a.events


async def test_a_restarted_peer_is_linked_again_with_its_new_boot(net: Net) -> None:
    """After a crash the next life is found by the same address."""
    a, b = Side(net, "a"), Side(net, "b", 1)
    async with running(a, b) as nursery:
        await a.linked()
        b.close()
        await a.until(lambda: LinkDown("b", refused=True) in a.events)
        again = Side(net, "b", 2)
        nursery.start_soon(again.run)
        await a.linked(2)
        assert a.got(LinkUp)[-1] == LinkUp("b", Boot(2, "u2"))


async def test_a_corrupt_frame_breaks_one_link_only(net: Net) -> None:
    """Noise on a link is answered by CORRUPT_FRAME; other links never notice."""
    b, c = Side(net, "b"), Side(net, "c")
    async with running(b, c):
        data, _control = [await dial(b, identity(), ch) for ch in (DATA, CONTROL_CHANNEL)]
        await b.until(lambda: len(b.got(LinkUp)) == 2)
        await data.read_first()
        data._socket.send(b"\x00\x00\x00\x03\xc1\xc1\xc1")
        answer = await data.read_first()
        assert isinstance(answer, Goodbye)
        assert answer.code == "CORRUPT_FRAME"
        await b.until(lambda: LinkDown("a", refused=False) in b.events)
        assert LinkDown("c", refused=False) not in b.events


async def test_leaving_says_goodbye(net: Net) -> None:
    """A clean end reaches the peers as a Goodbye, then the link is down."""
    b = Side(net, "b")
    async with running(b):
        data, _control = [await dial(b, identity(), ch) for ch in (DATA, CONTROL_CHANNEL)]
        await b.linked()
        await data.read_first()
        b.mesh.leave("drained")
        answer = await data.read_first()
        assert answer == Goodbye("LEAVING", "drained")


def bulk(size: int) -> App:
    """An App of about this many bytes."""
    return App(1, 0, 1, 0, 0, 0, [Entry(1, 0, 0, 0, "/t", 1, payload=b"x" * size)])


async def test_room_shrinks_with_what_is_unprocessed_and_grows_by_credit(net: Net) -> None:
    """A sender that respects its room is held at the window and released as the peer takes."""
    a, b = Side(net, "a"), Side(net, "b")
    async with running(a, b):
        await a.linked()
        assert a.mesh.room("c") == 0
        assert WINDOW - 1000 < a.mesh.room("b") <= WINDOW
        sent = 0
        with trio.fail_after(20):
            while sent < 5 * WINDOW:
                if a.mesh.room("b") >= 1 << 20:
                    a.mesh.send("b", [], [bulk(1 << 20)])
                    sent += 1 << 20
                else:
                    await trio.sleep(0.001)
        await b.until(lambda: len(b.messages()) == 20)
        await a.until(lambda: a.mesh.room("b") > WINDOW - (1 << 20))


async def test_a_peer_that_takes_nothing_gives_no_room(net: Net) -> None:
    """While the kernel takes no more, room is 0 and the engine is not held up."""
    b = Side(net, "b")
    async with running(b):
        data, _control = [await dial(b, identity(), ch) for ch in (DATA, CONTROL_CHANNEL)]
        await b.linked()
        await data.read_first()
        while b.mesh.room("a") > 1 << 20:
            b.mesh.send("a", [], [bulk(1 << 20)])
        b.mesh.send("a", [], [bulk(6 << 20)])
        assert b.mesh.room("a") == 0
        count = 0
        with trio.fail_after(10):
            while count < 4:
                count += len(await data.read())
        assert b.mesh.room("a") == 0  # nothing of it was credited


async def test_a_silent_link_is_broken(net: Net) -> None:
    """A peer that says nothing for half a session is cut off, so that it can be dialed anew."""
    b = Side(net, "b", session=0.8)
    async with running(b):
        began = trio.current_time()  # its silence cannot have begun before
        _data, _control = [await dial(b, identity(), ch) for ch in (DATA, CONTROL_CHANNEL)]
        await b.linked()
        await b.until(lambda: LinkDown("a", refused=False) in b.events)
        assert trio.current_time() - began >= 0.4


@pytest.mark.parametrize("which", [slice(None), slice(0, 1), slice(1, 2)], ids=str)
async def test_a_link_that_hangs_is_replaced(net: Net, which: slice) -> None:
    """Both connections or one can hang though the peer can be reached: it is dialed anew."""
    b = Side(net, "b", session=8.0)
    with socket.create_server(("127.0.0.1", 0)) as door:
        a = Side(net | {"b": door.getsockname()[:2]}, "a", session=8.0)
        async with running(a, b) as nursery:
            cable = HangingCable(door, net["b"])
            nursery.start_soon(cable.run)
            await a.linked()
            await b.linked()
            cable.hang(which=which)
            began = trio.current_time()
            await a.linked(2)
            await b.linked(2)
            assert trio.current_time() - began < 4.0  # it would have been broken after that
        assert a.events.count(LinkDown("b", refused=False)) == 1


async def test_each_answer_to_a_greeting_may_take_its_time(net: Net) -> None:
    """The second one ends the old link at the peer: giving up before it would cost both."""
    b = Identity("test", "hash", MEMBERS, "b", FIRST)
    a = Side({"a": net["a"], "b": net["b"]}, "a", session=8.0)
    async with running(a) as nursery:
        with listen(net["b"]) as door:

            async def answer_slowly() -> None:
                for _ in (DATA, CONTROL_CHANNEL):
                    await trio.lowlevel.wait_readable(door)
                    connection = PeerSocket(door.accept()[0], MAX_FRAME)
                    a.dialed.append(connection)
                    hello = await connection.read_first()
                    assert isinstance(hello, Hello)
                    await trio.sleep(1.2)
                    connection.write([b.hello(hello.channel, hello.link)])

            nursery.start_soon(answer_slowly)
            await a.linked()


async def test_a_link_that_is_heard_in_time_is_kept(net: Net) -> None:
    """Whoever was silent for a moment needs no new link: what is under way would be lost."""
    b = Side(net, "b", session=8.0)
    with socket.create_server(("127.0.0.1", 0)) as door:
        a = Side(net | {"b": door.getsockname()[:2]}, "a", session=8.0)
        async with running(a, b) as nursery:
            cable = HangingCable(door, net["b"])
            nursery.start_soon(cable.run)
            await a.linked()
            await b.linked()
            old = len(cable.wires)
            cable.hang(new=True)
            await cable.until(lambda: len(cable.wires) > old)
            cable.go_on(old)
            b.mesh.send("a", [], [Ack(1, 0, 1, 1)])
            await a.until(lambda: a.messages() == [Ack(1, 0, 1, 1)])
            cable.go_on(len(cable.wires))
            await cable.until(lambda: not any(wire.open for wire in cable.wires[old:]))
        assert LinkDown("b", refused=False) not in a.events
        assert LinkDown("a", refused=False) not in b.events


async def test_a_dial_that_is_not_answered_is_repeated_beside_itself(
    net: Net, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The kernel repeats a lost SYN too late: further tries are made, and one of them is kept."""
    third = trio.Event()
    tries = 0

    dialed = peer_socket.dial

    async def counted(place: peer_socket.Place, limit: int) -> PeerSocket:
        nonlocal tries
        tries += 1
        if tries == 3:
            third.set()
        return await dialed(place, limit)

    monkeypatch.setattr(peer_socket, "dial", counted)
    with contextlib.ExitStack() as held:
        door = held.enter_context(socket.socket())
        door.bind(("127.0.0.1", 0))
        door.listen(1)
        door.setblocking(False)
        crowd = [held.enter_context(socket.socket()) for _ in range(3)]
        for one in crowd:  # a full queue: the kernel drops further SYNs
            one.setblocking(False)
            one.connect_ex(door.getsockname())

        async def make_room() -> None:
            await third.wait()
            while True:
                await trio.lowlevel.wait_readable(door)
                door.accept()[0].close()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(make_room)
            with trio.fail_after(10):
                (await reach(door.getsockname(), MAX_FRAME, 0.02)).close()
            nursery.cancel_scope.cancel()
    with pytest.raises(ConnectionRefusedError):
        await reach(net["b"], MAX_FRAME, 0.02)


async def test_strangers_are_harmless(net: Net) -> None:
    """A stranger's bytes and a probe that only connects leave the mesh as it was."""
    a, b = Side(net, "a"), Side(net, "b")
    async with running(a, b):
        await a.linked()
        for noise in (b"", b"GET / HTTP/1.1\r\n\r\n", b"\x00\x00\x00\x02\xc1\xc1"):
            with socket.create_connection(net["b"]) as stranger:
                stranger.sendall(noise)
        a.mesh.send("b", [], [Ack(1, 0, 1, 1)])
        await b.until(lambda: b.messages() == [Ack(1, 0, 1, 1)])
        assert len(a.got(LinkUp)) == 1
