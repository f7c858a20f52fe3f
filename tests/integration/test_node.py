"""Whole members as processes: how they start, refuse to start, take over and end."""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from migratory.shell.ensemble import Ensemble
from migratory.shell.local_cluster import LocalCluster, ask_soon
from migratory.shell.ports import Ports
from migratory.shell.tether import tethered

PATIENCE = 60


@contextlib.asynccontextmanager
async def members(
    ensemble: Ensemble, directory: Path, count: int = 3
) -> AsyncIterator[LocalCluster]:
    """A cluster of its own name on the shared ensemble, NORMAL everywhere."""
    cluster = LocalCluster(ensemble, count, directory, groups=30)
    _rename(directory)
    try:
        for name in cluster.names:
            cluster.start(name)
        await cluster.wait_normal()
        yield cluster
    finally:
        with trio.CancelScope(shield=True):
            await cluster.close()


def _rename(directory: Path) -> None:
    """Give the cluster a name that no other test on this ensemble has."""
    name = directory.name.replace("_", "-")[:32]
    for path in directory.glob("*.toml"):
        path.write_text(path.read_text().replace('name = "local"', f'name = "{name}"'))


async def until(condition: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again: processes tell nobody when something changes in them."""
    with trio.fail_after(PATIENCE):
        while not await condition():  # noqa: ASYNC110
            await trio.sleep(0.01)


async def serve(path: Path) -> subprocess.CompletedProcess[str]:
    """Run a member that is expected to refuse."""
    command = [sys.executable, "-m", "migratory", "serve", str(path)]
    with trio.fail_after(PATIENCE):
        return await trio.to_thread.run_sync(
            lambda: subprocess.run(
                command, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        )


async def status_of(cluster: LocalCluster, name: str) -> dict[str, Any]:
    """The status of a member that answers."""
    status = await cluster.status(name)
    assert status is not None
    return status


async def coordinated_by(cluster: LocalCluster, asked: str, some: set[str]) -> bool:
    """Whether, as far as a member knows, these coordinate all groups."""
    status = await status_of(cluster, asked)
    return {group["coordinator"] for group in status["groups"]} <= some


async def test_a_twin_disturbs_nobody(ensemble: Ensemble, tmp_path: Path) -> None:
    """A second process with the file of a living member fails by name; the first goes on."""
    async with members(ensemble, tmp_path) as cluster:
        before = await status_of(cluster, "m1")
        refused = await serve(tmp_path / "m1.toml")
        assert refused.returncode == 1
        assert "ADDRESS_IN_USE" in refused.stderr
        after = await status_of(cluster, "m1")
        assert after["boot"] == before["boot"]
        assert [g["epoch"] for g in after["groups"]] == [g["epoch"] for g in before["groups"]]


async def test_an_id_in_use_and_another_membership_are_refused(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """The same id elsewhere is ID_IN_USE while it lives; another membership never fits."""
    async with members(ensemble, tmp_path) as cluster:
        text = (tmp_path / "m1.toml").read_text()
        mine = cluster.file.members["m1"]
        with Ports() as ports:
            free = [f"127.0.0.1:{port}" for port in ports.free(3)]
            for old, new in zip((mine.peer, mine.client, mine.admin), free, strict=True):
                text = text.replace(old, new)
            moved = tmp_path / "moved.toml"
            moved.write_text(text)
            refused = await serve(moved)
            assert refused.returncode == 1
            assert "ID_IN_USE" in refused.stderr
            assert mine.peer in refused.stderr
            cluster.kill("m1")
            refused = await serve(moved)
            assert refused.returncode == 2
            assert "CONFIG_MISMATCH" in refused.stderr


async def test_groups_of_a_killed_member_are_taken_over_and_it_comes_back(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """After kill -9 others coordinate its groups soon; restarted, it is NORMAL again."""
    async with members(ensemble, tmp_path) as cluster:
        cluster.kill("m2")
        began = time.monotonic()
        await until(partial(coordinated_by, cluster, "m1", {"m1", "m3"}))
        assert time.monotonic() - began < 4  # generous: the machine may be busy
        cluster.start("m2")
        await cluster.wait_normal()
        assert (await status_of(cluster, "m2"))["boot"].startswith("2-")


async def test_a_drained_member_leaves_with_code_0_and_holds_nothing(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """SIGTERM: groups are handed over first, so the others never lack a coordinator."""
    async with members(ensemble, tmp_path) as cluster:
        assert await cluster.stop("m3") == 0
        for name in ("m1", "m2"):
            status = await status_of(cluster, name)
            assert {g["coordinator"] for g in status["groups"]} <= {"m1", "m2"}
            assert not status["peers"]["m3"]["reached"]


async def test_a_cluster_that_is_stopped_as_a_whole_ends(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """When everybody drains there is nobody to hand over to, and nobody waits for it."""
    async with members(ensemble, tmp_path) as cluster:
        for process in cluster.processes.values():
            process.send_signal(signal.SIGTERM)
        with trio.fail_after(PATIENCE):
            codes = [await trio.to_thread.run_sync(p.wait) for p in cluster.processes.values()]
        assert codes == [0, 0, 0]


async def test_a_paused_coordinator_is_replaced_and_returns_as_a_follower(
    ensemble: Ensemble, tmp_path: Path
) -> None:
    """SIGSTOP: its groups move; when it wakes it follows, with the same boot, and is NORMAL."""
    async with members(ensemble, tmp_path) as cluster:
        boot = (await status_of(cluster, "m1"))["boot"]
        cluster.pause("m1")
        await until(partial(coordinated_by, cluster, "m2", {"m2", "m3"}))
        cluster.resume("m1")
        await cluster.wait_normal()
        status = await status_of(cluster, "m1")
        assert status["boot"] == boot
        views = {name: await status_of(cluster, name) for name in cluster.names}
        coordinators = [
            tuple(views[name]["groups"][g]["coordinator"] for name in cluster.names)
            for g in range(30)
        ]
        assert all(len(set(seen)) == 1 for seen in coordinators)


@pytest.mark.parametrize("log", ["/dev/null", "/dev/full"])
async def test_the_admin_port_answers_before_zookeeper_does(tmp_path: Path, log: str) -> None:
    """Without an ensemble a member waits, says so, and ends on the first signal, log or no log."""
    with Ports() as ports:
        peer, client, admin, nowhere = (f"127.0.0.1:{port}" for port in ports.free(4))
        path = tmp_path / "alone.toml"
        path.write_text(
            f'[cluster]\nname = "alone"\nfaults = 0\nzookeeper = "{nowhere}"\n'
            f'[[cluster.member]]\nid = "a"\npeer = "{peer}"\nclient = "{client}"\n'
            f'[member]\nid = "a"\n[admin]\naddress = "{admin}"\n'
        )
        process = _start(path, log)

        async def waits() -> bool:
            expected = {"member": "a", "status": "waiting for ZooKeeper"}
            return bool(await ask_soon(admin, "/health") == expected)

        try:
            await until(waits)
            assert _status_code(admin, "/ready") == 503
            process.send_signal(signal.SIGTERM)
            assert await trio.to_thread.run_sync(lambda: process.wait(PATIENCE)) == 0
        finally:
            process.kill()
            process.communicate()


def _start(path: Path, log: str = "/dev/null") -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "migratory", "serve", str(path)]
    # As it is by default: what its log does not take waits in the process until the end.
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    with Path(log).open("wb") as out:
        return subprocess.Popen(tethered(command), stderr=out, env=buffered)


def _status_code(address: str, path: str) -> int:
    connection = http.client.HTTPConnection(address, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        return connection.getresponse().status
    finally:
        connection.close()


async def test_one_member_alone_serves_and_takes_orders(ensemble: Ensemble, tmp_path: Path) -> None:
    """The development cluster: ready by itself; a bad order is refused, a drain is taken."""
    async with members(ensemble, tmp_path, 1) as cluster:
        admin = cluster.file.members["m1"].admin
        assert _status_code(admin, "/ready") == 200
        wrong = await ask_soon(admin, "/recover", "POST", msgspec.json.encode({"groups": [99]}))
        assert wrong == {"error": "BAD_REQUEST"}
        taken = await ask_soon(admin, "/drain", "POST", b'{"now": true}')
        assert taken == {"member": "m1", "status": "draining"}
        with trio.fail_after(PATIENCE):
            assert await trio.to_thread.run_sync(cluster.processes["m1"].wait) == 0
