"""The keeper against a real ensemble: elections, lost outcomes, sessions, frozen servers."""

from __future__ import annotations

import contextlib
import math
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
import trio
from kazoo.client import KazooClient

from coordinator.boot import boot, register
from coordinator.events import KeeperAnswer, SessionOpened
from coordinator.keeper import (
    Booted,
    Check,
    CoordNode,
    Create,
    Delete,
    Elected,
    Fault,
    GroupNode,
    KeeperOp,
    MemberNode,
    Multi,
    Node,
    NotElected,
    Paths,
    Procedure,
    Set,
    decode_group,
    elect,
    read_many,
    read_one,
    reattach,
)
from migratory.shell.bell import Bell
from migratory.shell.ensemble import Ensemble
from migratory.shell.zookeeper import Keeper, open_keeper

SESSION = 4.0
PATIENCE = 60
GROUPS = 100
NOBODY: frozenset[str] = frozenset()


@pytest.fixture
def paths(request: pytest.FixtureRequest) -> Paths:
    """A cluster of its own for each test."""
    return Paths(request.node.name[5:37].replace("_", "-"))


@contextlib.asynccontextmanager
async def keeper_of(ensemble: Ensemble) -> AsyncIterator[tuple[Keeper, Bell]]:
    """A keeper of these servers."""
    bell = Bell()
    async with open_keeper(ensemble.hosts, SESSION, bell) as keeper:
        yield keeper, bell


def enter(paths: Paths, me: str) -> Procedure:
    """The boot of a member."""
    return boot(paths, me, f"uuid-of-{me}", b"{}", GROUPS, f"{me}:8900", f"{me}:8800")


async def answers(keeper: Keeper, bell: Bell, count: int) -> list[Any]:
    """Wait for so many values of procedures, in the order of their tokens."""
    found: dict[int, Any] = {}
    with trio.fail_after(PATIENCE):
        while len(found) < count:
            await bell.wait()
            for event in keeper.take():
                if isinstance(event, KeeperAnswer):
                    found[event.token] = event.value
    return [found[token] for token in sorted(found)]


def connected_server(ensemble: Ensemble, keeper: Keeper) -> int:
    """The number of the server that the keeper talks to."""
    port = int(keeper.server.rpartition(":")[2])
    return next(i for i, ports in ensemble.ports.items() if ports.client == port)


async def longest_pause(result: list[float]) -> None:
    """Measure for how long the loop did not turn."""
    last = trio.current_time()
    while True:
        await trio.sleep(0.005)
        now = trio.current_time()
        result[0] = max(result[0], now - last)
        last = now


async def test_each_boot_is_one_more_and_sees_the_members(ensemble: Ensemble, paths: Paths) -> None:
    """A member that enters again gets the next number; leaving takes its node away at once."""
    async with keeper_of(ensemble) as (one, _), keeper_of(ensemble) as (two, _):
        first = await one.run(enter(paths, "a"))
        other = await two.run(enter(paths, "b"))
        assert isinstance(first, Booted)
        assert (first.boot.n, sorted(first.boots)) == (1, ["a"])
        assert isinstance(other, Booted)
        assert sorted(other.boots) == ["a", "b"]
    async with keeper_of(ensemble) as (again, _):
        assert await again.run(read_one(paths.member("a"))) is Fault.NO_NODE
        second = await again.run(enter(paths, "a"))
        assert isinstance(second, Booted)
        assert (second.boot.n, sorted(second.boots)) == (2, ["a"])


async def test_two_candidates_never_win_the_same_epoch(ensemble: Ensemble, paths: Paths) -> None:
    """Both stand for all groups at once, pipelined: each group has exactly one winner."""
    async with keeper_of(ensemble) as (one, rings), keeper_of(ensemble) as (two, rung):
        a, b = await one.run(enter(paths, "a")), await two.run(enter(paths, "b"))
        for g in range(GROUPS):
            one.start(g, elect(paths, g, "a", a.boot, may_depose=NOBODY))
            two.start(g, elect(paths, g, "b", b.boot, may_depose=NOBODY))
        of_a, of_b = await answers(one, rings, GROUPS), await answers(two, rung, GROUPS)
        for mine, theirs in zip(of_a, of_b, strict=True):
            assert isinstance(mine, Elected) != isinstance(theirs, Elected)


def _parts(paths: Paths) -> Iterator[KeeperOp]:
    root = paths.root
    yield Multi((Create(root + "/x", b"1"), Create(root + "/y", b"1")))
    yield Multi((Set(root + "/x", b"2", 0), Create(root + "/y", b"2"), Delete(root + "/x", 1)))
    yield Multi((Check(root + "/x", 7), Set(root + "/y", b"2", 0)))
    yield Multi((Check(root + "/x", 0), Set(root + "/nowhere", b"2", 0)))
    yield Multi((Delete(root + "/x", 0), Check(root + "/y", 0)))


async def test_every_part_of_a_transaction_has_its_outcome(
    ensemble: Ensemble, paths: Paths
) -> None:
    """A transaction that fails names the part that did, and nothing of it took place."""

    def procedure() -> Procedure:
        outcomes: list[Any] = []
        for op in _parts(paths):
            outcomes += [(yield op)]
        return outcomes

    rolled = Fault.ROLLED_BACK
    async with keeper_of(ensemble) as (keeper, _):
        await keeper.run(enter(paths, "a"))
        assert await keeper.run(procedure()) == [
            [None, None],
            [rolled, Fault.NODE_EXISTS, rolled],
            [Fault.BAD_VERSION, rolled],
            [rolled, Fault.NO_NODE],
            [None, None],
        ]


async def test_lost_outcomes_are_found_out(ensemble: Ensemble, paths: Paths) -> None:
    """The server dies amid many elections: who is told to have won has won, nobody else has."""
    async with keeper_of(ensemble) as (keeper, bell), trio.open_nursery() as nursery:
        pause = [0.0]
        nursery.start_soon(longest_pause, pause)
        mine = (await keeper.run(enter(paths, "a"))).boot
        victim = connected_server(ensemble, keeper)
        for g in range(GROUPS):
            keeper.start(g, elect(paths, g, "a", mine, may_depose=NOBODY))
        await bell.wait()  # the first has been decided, the others are under way
        assert len(keeper._in_flight) > 10
        ensemble.kill(victim)
        values = [event.value for event in keeper.take() if isinstance(event, KeeperAnswer)]
        values += await answers(keeper, bell, GROUPS - len(values))
        nursery.cancel_scope.cancel()
        ensemble.start(victim)
    await trio.to_thread.run_sync(ensemble.wait_ready)
    assert pause[0] < SESSION / 4  # kazoo never held the loop up
    won = {value.g for value in values if isinstance(value, Elected)}
    assert {value.g for value in values if isinstance(value, NotElected)} == {*range(GROUPS)} - won
    async with keeper_of(ensemble) as (reader, _):
        groups = await reader.run(read_many([paths.group(g) for g in range(GROUPS)]))
    for g, node in enumerate(groups):
        expected = GroupNode(1, 0, "a", mine) if g in won else GroupNode(0, 0, "", mine)
        assert decode_group(node).epoch == expected.epoch


async def test_everything_waits_while_all_servers_stall(ensemble: Ensemble, paths: Paths) -> None:
    """Nothing is decided and nothing blocks; afterwards the answer comes, once.

    Whether the session outlives the stall is up to the servers: a new leader counts sessions anew.
    """
    async with keeper_of(ensemble) as (keeper, bell), trio.open_nursery() as nursery:
        pause = [0.0]
        nursery.start_soon(longest_pause, pause)
        await keeper.run(enter(paths, "a"))
        before = keeper.session_id
        for i in ensemble.numbers:
            ensemble.pause(i)
        keeper.start(1, read_one(paths.cfg))
        await trio.sleep(1.5 * SESSION)
        assert keeper.take() == []
        assert not keeper.connected
        for i in ensemble.numbers:
            ensemble.resume(i)
        events: list[object] = []
        with trio.fail_after(PATIENCE):
            while not any(isinstance(event, KeeperAnswer) for event in events):
                await bell.wait()
                events += keeper.take()
        assert events.count(SessionOpened()) == (keeper.session_id != before)
        assert pause[0] < SESSION / 4
        nursery.cancel_scope.cancel()
    await trio.to_thread.run_sync(ensemble.wait_ready)


def end_session(ensemble: Ensemble, keeper: Keeper) -> None:
    """Take a keeper's session over and close it: to the keeper it has expired."""
    other = KazooClient(ensemble.hosts, timeout=SESSION, client_id=keeper._client.client_id)
    other.start(PATIENCE)
    other.stop()
    other.close()


async def test_an_expired_session_is_replaced(ensemble: Ensemble, paths: Paths) -> None:
    """A new session begins, it is told once, and nodes come back under it."""
    async with keeper_of(ensemble) as (keeper, bell):
        booted = await keeper.run(enter(paths, "a"))
        assert isinstance(
            await keeper.run(elect(paths, 1, "a", booted.boot, may_depose=NOBODY)), Elected
        )
        before = keeper.session_id
        await trio.to_thread.run_sync(end_session, ensemble, keeper)
        with trio.fail_after(PATIENCE):
            await bell.wait()
        assert keeper.take() == [SessionOpened()]
        assert keeper.session_id != before
        assert await keeper.run(read_one(paths.coord(1))) is Fault.NO_NODE
        node = MemberNode(booted.boot, "a:8900", "a:8800")
        assert await keeper.run(register(paths, "a", node)) is True
        assert await keeper.run(reattach(paths, 1, "a", booted.boot, 1)) is None
        held = await keeper.run(read_one(paths.coord(1)))
        assert isinstance(held, Node)
        assert held.owner == keeper.session_id


async def test_a_frozen_server_is_left_though_requests_go_on(
    ensemble: Ensemble, paths: Paths
) -> None:
    """No ping is sent while requests flow; the keeper itself notices, within the session."""
    async with keeper_of(ensemble) as (keeper, bell):
        await keeper.run(enter(paths, "a"))
        session, victim = keeper.session_id, connected_server(ensemble, keeper)
        ensemble.pause(victim)
        began, count = trio.current_time(), 0
        try:
            with trio.fail_after(PATIENCE):
                while not keeper.take():
                    count += 1
                    keeper.start(count, read_one(paths.cfg))
                    await bell.wait(trio.current_time() + 0.1)
        finally:
            ensemble.resume(victim)
        assert trio.current_time() - began < SESSION
        assert keeper.session_id == session  # another server took it over in time
    await trio.to_thread.run_sync(ensemble.wait_ready)


async def test_leaving_is_possible_while_nobody_answers(ensemble: Ensemble, paths: Paths) -> None:
    """With all servers frozen, procedures wait and the end of the process does not."""
    ended = math.inf
    try:
        async with keeper_of(ensemble) as (keeper, _):
            await keeper.run(enter(paths, "a"))
            for i in ensemble.numbers:
                ensemble.pause(i)
            for g in range(GROUPS):
                keeper.start(g, read_one(paths.group(g)))
            await trio.sleep(0.5)
            began = trio.current_time()
        ended = trio.current_time() - began
    finally:
        for i in ensemble.numbers:
            ensemble.resume(i)
    assert ended < SESSION
    await trio.to_thread.run_sync(ensemble.wait_ready)


async def test_an_owner_is_deposed_only_when_that_is_allowed(
    ensemble: Ensemble, paths: Paths
) -> None:
    """A held group is taken from the named owner, and from nobody else."""
    async with keeper_of(ensemble) as (one, _), keeper_of(ensemble) as (two, _):
        a, b = await one.run(enter(paths, "a")), await two.run(enter(paths, "b"))
        await one.run(elect(paths, 3, "a", a.boot, may_depose=NOBODY))
        refused = await two.run(elect(paths, 3, "b", b.boot, may_depose=frozenset("c")))
        assert refused == NotElected(3, 1, 0, CoordNode(1, "a", a.boot))
        won = await two.run(elect(paths, 3, "b", b.boot, may_depose=frozenset("a")))
        assert isinstance(won, Elected)
        assert (won.epoch, sorted(won.boots)) == (2, ["a", "b"])
