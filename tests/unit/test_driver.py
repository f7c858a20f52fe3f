"""The engine's loop with real members: the order of effects, room, drain, ends."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from coordinator.events import DrainWanted
from coordinator.keeper import Paths
from migratory.shell.peer_link import Superseded
from migratory.wire.ids import group_of
from migratory.wire.shard import Answers, Closing, Live, Page, Pubs, Serving, Sub
from tests.unit.driver_cluster import MemoryNode, World, cluster

TOPIC = "/scores/1"


def live(node: MemoryNode, topic: str = TOPIC) -> list[int]:
    """The sequences that a front was told of as they were committed."""
    lives = [m for m in node.front.got if isinstance(m, Live) and m.topic == topic]
    return [entry.seq for each in lives for entry in each.entries]


async def delivered(node: MemoryNode, sequences: list[int]) -> None:
    """Wait until exactly these have been delivered."""
    await node.until(lambda: live(node) == sequences)


def coordinator(world: World, topic: str = TOPIC) -> str:
    """Who coordinates a topic."""
    g = group_of(topic, world.cluster.groups)
    return next(n for n, x in world.nodes.items() if x.driver.member.replicas[g].leading)


async def test_one_member_serves_publishes_and_delivers(autojump_clock: MockClock) -> None:
    """A cluster of one opens all groups by itself; what is published is delivered, then acked."""
    async with cluster(1, 0) as world:
        a = world.nodes["a"]
        assert a.front.got == [Serving(ready=True)]
        a.front.subscribe(TOPIC)
        ref = a.front.publish(TOPIC)
        await a.until(lambda: a.front.acked() == [ref])
        page, seen, answers = a.front.got[1:]
        assert isinstance(page, Page)
        assert (page.seq, page.attached) == (0, True)
        assert isinstance(seen, Live)
        assert isinstance(answers, Answers)
        assert live(a) == [1]


async def test_a_page_and_what_follows_it_meet_exactly(autojump_clock: MockClock) -> None:
    """Requests and publications of the same turn: the page ends where the live part begins."""
    async with cluster(1, 0) as world:
        a = world.nodes["a"]
        for pseq in (1, 2):
            a.front.publish(TOPIC, pseq=pseq)
        a.front.ask(
            Pubs([a.front.publication(TOPIC, "p" * 16, 3)]),
            Sub(7, TOPIC, None),
            Pubs([a.front.publication(TOPIC, "p" * 16, 4)]),
        )
        await a.until(lambda: len(a.front.acked()) == 4)
        page = next(m for m in a.front.got if isinstance(m, Page))
        assert live(a) == list(range(page.seq + 1, 5))


async def test_three_members_deliver_everywhere(autojump_clock: MockClock) -> None:
    """A message published at any contact is delivered by all members, in one order."""
    async with cluster(3, 1) as world:
        for node in world.nodes.values():
            node.front.subscribe(TOPIC)
        for name, node in world.nodes.items():
            for pseq in (1, 2, 3):
                node.front.publish(TOPIC, pid=name * 16, pseq=pseq)
        for node in world.nodes.values():
            await delivered(node, list(range(1, 10)))
            assert len(node.front.acked()) == 3


async def test_publishing_goes_on_after_the_coordinator_is_killed(
    autojump_clock: MockClock,
) -> None:
    """Another member takes over within a second, and the sequence goes on without a gap."""
    async with cluster(3, 1) as world:
        dead = coordinator(world)
        survivors = [node for name, node in world.nodes.items() if name != dead]
        for node in survivors:
            node.front.subscribe(TOPIC)
        contact = survivors[0]
        contact.front.publish(TOPIC, pseq=1)
        await contact.until(lambda: len(contact.front.acked()) == 1)
        world.kill(dead)
        began = trio.current_time()
        contact.front.publish(TOPIC, pseq=2)
        await contact.until(lambda: len(contact.front.acked()) == 2)
        assert trio.current_time() - began < 1.0
        for node in survivors:
            await delivered(node, [1, 2])


async def test_a_link_without_room_gets_no_entries_until_it_has_some(
    autojump_clock: MockClock,
) -> None:
    """A slow follower only falls behind: the others go on, and it catches up when it has room."""
    async with cluster(3, 1) as world:
        leader = world.nodes[coordinator(world)]
        slow = next(node for node in world.nodes.values() if node is not leader)
        slow.front.subscribe(TOPIC)
        leader.links.full.add(slow.name)
        for pseq in range(1, 4):
            leader.front.publish(TOPIC, pseq=pseq)
        await leader.until(lambda: len(leader.front.acked()) == 3)
        assert live(slow) == []
        leader.links.full.clear()
        leader.bell.ring()
        await delivered(slow, [1, 2, 3])


async def test_a_drained_member_hands_over_and_waits_for_its_clients(
    autojump_clock: MockClock,
) -> None:
    """Drain: groups first, then clients are told to go, then the loop ends by that name."""
    async with cluster(3, 1) as world:
        node = world.nodes[coordinator(world)]
        node.front.connected = 1
        node.driver.want(DrainWanted())
        await node.until(lambda: any(isinstance(m, Closing) for m in node.front.got))
        assert not any(r.leading for r in node.driver.member.replicas)
        told = node.front.got[-2:]
        assert told[0] == Serving(ready=False)
        assert isinstance(told[1], Closing)
        assert told[1].code == "DRAINING"
        assert told[1].servers == ["elsewhere:8800"]
        assert not node.ended
        node.front.connected = 0
        await node.until(lambda: node.ended == "DRAINED")


async def test_a_cluster_that_is_stopped_as_a_whole_ends(autojump_clock: MockClock) -> None:
    """When everybody drains, nobody waits for somebody to take its groups."""
    async with cluster(3, 1) as world:
        for node in world.nodes.values():
            node.driver.want(DrainWanted())
        nodes = list(world.nodes.values())
        await nodes[0].until(lambda: all(node.ended == "DRAINED" for node in nodes))


async def test_a_lost_session_is_registered_again(autojump_clock: MockClock) -> None:
    """After a new ZooKeeper session the member and its groups are there again, same epochs."""
    async with cluster(3, 1) as world:
        node = world.nodes[coordinator(world)]
        path = Paths("sim").member(node.name)
        led = [(r.g, r.epoch) for r in node.driver.member.replicas if r.leading]
        node.keeper.lose_session()
        assert path not in world.keeper.tree
        await node.until(lambda: path in world.keeper.tree)
        await node.until(lambda: all(Paths("sim").coord(g) in world.keeper.tree for g, _ in led))
        assert led == [(r.g, r.epoch) for r in node.driver.member.replicas if r.leading]


async def test_a_superseded_process_ends(autojump_clock: MockClock) -> None:
    """When a peer says that a later life runs, the loop ends by that name."""
    async with cluster(3, 1) as world:
        node = world.nodes["b"]
        node.links.events.append(Superseded("boot 2 runs"))
        node.bell.ring()
        await node.until(lambda: node.ended == "SUPERSEDED")


async def test_a_restarted_member_recovers_and_serves(autojump_clock: MockClock) -> None:
    """A killed member comes back with its next boot, recovers everything and serves again."""
    async with cluster(3, 1) as world:
        a = world.nodes["a"]
        for pseq in range(1, 30):
            a.front.publish(f"/t/{pseq}", pseq=1)
        await a.until(lambda: len(a.front.acked()) == 29)
        world.kill("b")
        b = await world.start("b")
        assert b.boot.n == 2
        await b.served()
        topics = sum(len(r.state.topics) for r in b.driver.member.replicas)
        assert topics == 29
