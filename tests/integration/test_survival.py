"""Real processes, a real ZooKeeper, real signals: what is acknowledged survives them all."""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from client_sdk.client import open_client
from migratory.shell.ensemble import Ensemble
from migratory.shell.local_cluster import LocalCluster, open_members
from migratory.wire.ids import group_of
from tests.integration.traffic import TOPICS, live_traffic

_numbers = itertools.count()

Start = Callable[..., AbstractAsyncContextManager[LocalCluster]]


@pytest.fixture
def start(ensemble: Ensemble, tmp_path: Path) -> Start:
    """Start members of a cluster of its own on the shared ensemble; it is NORMAL when entered."""

    @asynccontextmanager
    async def started(members: int = 3, **options: Any) -> AsyncIterator[LocalCluster]:
        name = f"survival-{os.getpid()}-{next(_numbers)}"
        async with open_members(ensemble, members, tmp_path, name=name, **options) as cluster:
            await cluster.wait_normal()
            yield cluster

    return started


async def coordinator_of(cluster: LocalCluster, topic: str) -> str:
    """The member that orders a topic now."""
    for status in (await cluster.statuses()).values():
        if status is not None:
            name: str = status["groups"][group_of(topic, cluster.groups)]["coordinator"]
            if name:
                return name
    raise AssertionError("nobody coordinates")


async def test_kill_9_of_the_coordinator_loses_nothing(start: Start) -> None:
    """A coordinator is killed under load: no error, nothing lost, doubled or reordered."""
    async with start() as cluster, live_traffic(cluster) as traffic:
        victim = await coordinator_of(cluster, TOPICS[0])
        cluster.kill(victim)
        await traffic.acks(300)
        cluster.start(victim)
        await cluster.wait_normal()
        await traffic.acks(100)
        await traffic.finish()
        traffic.check()


async def test_quick_restart_with_the_same_id(start: Start) -> None:
    """A member that is killed and back before its session ends forgets, and says so."""
    async with start() as cluster, live_traffic(cluster) as traffic:
        for name in cluster.names:
            cluster.kill(name)
            cluster.start(name)
            await cluster.wait_normal()
            await traffic.acks(50)
        await traffic.finish()
        traffic.check()


async def test_a_coordinator_that_sleeps_past_its_session(start: Start) -> None:
    """SIGSTOP longer than the session, then SIGCONT: the old coordinator is fenced and follows."""
    async with start() as cluster, live_traffic(cluster) as traffic:
        victim = await coordinator_of(cluster, TOPICS[0])
        cluster.pause(victim)
        await traffic.acks(300)
        await trio.sleep(6.0)  # the fault itself: longer than the session of 4 s
        cluster.resume(victim)
        await cluster.wait_normal()
        assert await coordinator_of(cluster, TOPICS[0]) != victim
        await traffic.acks(100)
        await traffic.finish()
        traffic.check()


async def test_zookeepers_leader_is_killed(start: Start, ensemble: Ensemble) -> None:
    """Members do not depend on which ZooKeeper server leads."""
    async with start() as cluster, live_traffic(cluster) as traffic:
        leader = ensemble.leader()
        assert leader is not None
        ensemble.kill(leader)
        try:
            await traffic.acks(200)
        finally:
            ensemble.start(leader)
            await trio.to_thread.run_sync(ensemble.wait_ready)
        victim = await coordinator_of(cluster, TOPICS[0])
        cluster.kill(victim)
        await traffic.acks(100)
        cluster.start(victim)
        await cluster.wait_normal()
        await traffic.finish()
        traffic.check()


async def test_publishing_goes_on_without_zookeeper(start: Start, ensemble: Ensemble) -> None:
    """The whole ensemble stalls beyond every session: no publish fails; then elections work."""
    async with start() as cluster, live_traffic(cluster) as traffic:
        for server in ensemble.numbers:
            ensemble.pause(server)
        try:
            with trio.move_on_after(8.0):  # the fault itself: twice the session
                while True:
                    await traffic.acks(20, patience=5.0)
        finally:
            for server in ensemble.numbers:
                ensemble.resume(server)
            await trio.to_thread.run_sync(ensemble.wait_ready)
        victim = await coordinator_of(cluster, TOPICS[0])
        cluster.kill(victim)
        await traffic.acks(200)
        cluster.start(victim)
        await cluster.wait_normal()
        await traffic.finish()
        traffic.check()


async def test_two_of_five_are_killed_at_once(start: Start) -> None:
    """N = 5 and f = 2: two members die together, one of them a coordinator."""
    async with start(5, faults=2) as cluster, live_traffic(cluster) as traffic:
        first = await coordinator_of(cluster, TOPICS[0])
        second = next(name for name in cluster.names if name != first)
        cluster.kill(first)
        cluster.kill(second)
        await traffic.acks(300)
        cluster.start(first)
        cluster.start(second)
        await cluster.wait_normal()
        await traffic.acks(50)
        await traffic.finish()
        traffic.check()


async def test_rolling_restart_is_not_seen_by_clients(start: Start) -> None:
    """Each member drains on SIGTERM, leaves with code 0 and comes back; no client sees an error."""
    async with start() as cluster, live_traffic(cluster) as traffic:
        for name in cluster.names:
            assert await cluster.stop(name) == 0
            cluster.start(name)
            await cluster.wait_normal()
        await traffic.acks(50)
        await traffic.finish()
        traffic.check()
        assert traffic.slowest < 2.0


async def test_cold_start_says_that_history_is_lost(start: Start) -> None:
    """All members die: epochs grow, subscribers get RESET, and publishing works again."""
    async with start() as cluster, live_traffic(cluster, subscribers=1) as traffic:
        await traffic.finish()
        before = max(p for acked in traffic.acked.values() for p in acked)
        for name in cluster.names:
            cluster.kill(name)
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_normal()
        async with open_client(cluster.servers) as client:
            position = await client.publish(TOPICS[0], "after")
        assert position.epoch > before.epoch
        with trio.fail_after(15):
            while len(traffic.resets) < len(TOPICS):  # noqa: ASYNC110 (noted by another task)
                await trio.sleep(0.05)
        assert {reset.reason for reset in traffic.resets} == {"history_lost"}


def migratory(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command as a person would."""
    command = [sys.executable, "-m", "migratory", *words]
    return subprocess.run(
        command, input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


async def command(*words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """The same beside the cluster's tasks."""
    return await trio.to_thread.run_sync(lambda: migratory(*words, stdin=stdin))


async def test_more_than_f_members_forget_and_an_operator_decides(start: Start) -> None:
    """Two of three forget at once: groups wait, `recover` asks first, then opens with RESET."""
    async with start(groups=4) as cluster:
        async with open_client(cluster.servers) as client:
            await client.publish(TOPICS[0], "kept")
        survivor, *lost = cluster.names
        for name in lost:
            cluster.kill(name)
        for name in lost:
            cluster.start(name)
        place = ("--dir", str(cluster.directory))
        with trio.fail_after(60):
            while "no group waits" in (await command("recover", *place)).stdout:
                pass
        refused = await command("recover", *place)
        assert refused.returncode == 1
        assert "LOSS_NOT_ACCEPTED" in refused.stderr
        unsure = await command("recover", "--accept-loss", *place, stdin="no\n")
        assert unsure.returncode == 1
        done = await command("recover", "--accept-loss", *place, stdin="lose\n")
        assert done.returncode == 0, done.stderr
        assert f"{survivor} stands" in done.stdout
        await cluster.wait_normal()
        async with open_client(cluster.servers) as client:
            with trio.fail_after(20):
                assert (await client.publish(TOPICS[0], "after")).sequence == 2


async def test_commands_for_people(start: Start) -> None:
    """Positions from pub, messages from sub after a position, a table from status."""
    async with start() as cluster:
        servers = ("--servers", ",".join(cluster.servers))
        # Which epoch it is depends on how the cluster started: a slow machine elects twice.
        one = await command("pub", "/people/1", "hello", *servers)
        assert re.fullmatch(r"/people/1 \d+:1\n", one.stdout), one
        many = await command("pub", "/people/1", "-", *servers, stdin="a\nb\n")
        assert re.fullmatch(r"/people/1 \d+:2\n/people/1 \d+:3\n", many.stdout), many
        first = one.stdout.split()[1]
        got = await command("sub", "/people/1", "--from", first, "--count", "2", *servers)
        assert re.fullmatch(r"/people/1 \d+:2 a\n/people/1 \d+:3 b\n", got.stdout), got
        assert one.returncode == many.returncode == got.returncode == 0
        wrong = await command("sub", "/people/1", "--from", "x", *servers)
        assert wrong.returncode == 1
        assert "BAD_POSITION" in wrong.stderr
        bad = await command("pub", "no-slash", "hello", *servers)
        assert bad.returncode == 1
        assert "BAD_TOPIC" in bad.stderr
        shown = await command("status", "--dir", str(cluster.directory))
        assert shown.returncode == 0
        assert "coordinator" in shown.stdout
        assert all(name in shown.stdout for name in cluster.names)


async def test_nobody_answers(tmp_path: Path) -> None:
    """Without a cluster, commands say so and end with an error instead of waiting for ever."""
    nowhere = await command("status", "--dir", str(tmp_path))
    assert nowhere.returncode == 1
    assert "NO_CLUSTER_FILE" in nowhere.stderr
    alone = await command("pub", "/a", "b", "--servers", "127.0.0.1:1", "--timeout", "1")
    assert alone.returncode == 1
    assert "migratory:" in alone.stderr


async def test_up_shows_every_member_and_leaves_nothing(tmp_path: Path) -> None:
    """`migratory up` runs a cluster until it is interrupted, and ends everything it started."""
    words = [sys.executable, "-m", "migratory", "up", "--zookeepers", "1", "--any-port"]
    process = await trio.lowlevel.open_process(
        [*words, "--dir", str(tmp_path)], stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    seen = b""
    with trio.fail_after(60):
        while seen.count(b"  NORMAL  ") < 3:
            seen += await process.stdout.receive_some()
    children = _processes_about(tmp_path) - {process.pid}
    assert len(children) == 4  # three members and one ZooKeeper server
    process.send_signal(signal.SIGINT)
    with trio.fail_after(30):
        assert await process.wait() == 0
    assert not _processes_about(tmp_path)


def _processes_about(place: Path) -> set[int]:
    """The processes that name a path on their command line."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(place) in path.read_text():
                found.add(int(path.parent.name))
    return found
