"""What faults promise to each other; a disk that is full for one process; an interrupted run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from chaos import faults_of_processes as processes
from chaos.cluster import Cluster, possible_kinds
from chaos.faults_of_network import late, lossy, slow
from chaos.kinds import KINDS
from chaos.network import NamespaceNetwork, Network, open_network
from chaos.plan import make_plan
from chaos.processes import Program
from chaos.scenarios import SCENARIOS

GROWS = """
import contextlib, sys, time
while True:
    with contextlib.suppress(OSError), open(sys.argv[1], "ab", buffering=0) as file:
        file.write(b"x")
    time.sleep(0.01)
"""


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """Three members of which one may fail; nothing runs."""
    plan = make_plan(SCENARIOS["kill-storm"], 1, 1.0, frozenset(KINDS))
    return Cluster(plan, Network(), tmp_path, "run")


async def test_one_process_is_replaced_by_one_fault_at_a_time(cluster: Cluster) -> None:
    """A second fault of the same member waits for the first: no process runs twice."""
    order = []

    async def replace(name: str) -> None:
        async with cluster.replacing("m1"):
            order.append(f"{name} begins")
            await trio.sleep(0.05)
            order.append(f"{name} ends")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(replace, "one")
        nursery.start_soon(replace, "other")
    assert [each.split()[1] for each in order] == ["begins", "ends"] * 2
    assert order[0].split()[0] == order[1].split()[0]


async def test_one_fault_at_a_time_has_a_cable(tmp_path: Path) -> None:
    """Faults of the same cable that meet, since one came late, wait for each other."""
    network, lacking = open_network()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    plan = make_plan(SCENARIOS["kill-storm"], 1, 1.0, frozenset(KINDS))
    cluster = Cluster(plan, network, tmp_path, "run")
    held = []

    async def hold(hit: str) -> None:
        held.append(hit)
        await trio.sleep(0.1)

    try:
        with trio.fail_after(10):
            async with trio.open_nursery() as nursery:
                for fault in (slow, late, lossy, slow):
                    nursery.start_soon(fault, cluster, "m1", hold)
    finally:
        network.close()
    assert held == ["m1"] * 4


async def test_no_member_forgets_while_another_has(cluster: Cluster) -> None:
    """With one member without memory, only that one and ZooKeeper may be replaced."""
    cluster.forgetful.add("m2")
    for free in ("m2", "z1"):
        async with cluster.replacing(free):
            pass
    with trio.move_on_after(0.3) as waited:
        async with cluster.replacing("m1"):
            raise AssertionError("two members without memory")
    assert waited.cancelled_caught


async def test_a_member_has_forgotten_as_soon_as_it_is_killed(
    cluster: Cluster, tmp_path: Path
) -> None:
    """Two faults that wait for the same moment do not both get it."""
    killed = []

    async def kill(name: str) -> None:
        async with cluster.replacing(name):
            cluster.kill(name)
            killed.append(name)
            await trio.sleep(1)

    for name in ("m1", "m2"):
        cluster.programs[name] = Program(["this"], "-", tmp_path / "log")
    with trio.move_on_after(0.5):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kill, "m1")
            nursery.start_soon(kill, "m2")
    await cluster.close()
    assert len(killed) == 1


class Told:
    """The hold of a fault: whom it hit, one after another."""

    def __init__(self) -> None:
        self.hits: list[str] = []
        self.go_on = trio.Event()
        self.lacking = False

    def begin(self, hit: str) -> None:
        """It is told when it holds."""

    async def __call__(self, hit: str) -> None:
        """Wait until the test has seen enough."""
        self.hits.append(hit)
        await self.go_on.wait()

    async def rest(self) -> None:
        """As if no time were left."""

    def missed(self) -> None:
        """Its moment did not come."""
        self.lacking = True

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """A member's turn."""
        self.hits.append(name)
        yield


async def test_who_ends_as_it_should_not_is_told_once(cluster: Cluster, tmp_path: Path) -> None:
    """A crash that is seen, one that a kill comes upon, and a drain that ends with a signal."""
    for name in ("m1", "m2"):
        cluster.programs[name] = Program(["no_such_module"], "-", tmp_path / "log")
        await cluster.programs[name].ended()
    cluster.programs["m3"] = Program(["http.server", "0"], "-", tmp_path / "log")
    try:
        cluster.kill("m2")
        assert await cluster.stop("m3") == -signal.SIGTERM
        assert set(cluster.revive()) == {
            ("m1", 1, "by itself"), ("m2", 1, "by itself"),
            ("m3", -signal.SIGTERM, "when it was drained"),
        }  # fmt: skip
        assert cluster.revive() == []
    finally:
        await cluster.close()


async def test_a_rolling_restart_ends_when_a_member_does_not_get_well(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It waits a bounded time for the others, and then leaves the rest as they are."""
    monkeypatch.setattr(processes, "PATIENCE", 0.2)
    cluster.forgetful.add("m2")
    told = Told()
    told.go_on.set()
    with trio.fail_after(5):
        await processes.rolling_restart(cluster, "all", told)
    assert told.hits == ["all"]


async def test_a_member_that_does_not_recover_is_not_killed_halfway(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault waits a bounded time for its moment, and says that it did not come."""
    network, lacking = open_network()
    if not isinstance(network, NamespaceNetwork):
        pytest.skip(lacking)
    monkeypatch.setattr(processes, "MOMENT", 0.2)
    plan = make_plan(SCENARIOS["kill-storm"], 1, 1.0, frozenset(KINDS))
    cluster = Cluster(plan, network, tmp_path, "run", ("no_such_module",))
    cluster.start("m1")
    told = Told()
    try:
        with trio.fail_after(10):
            await processes.kill_recovering(cluster, "m1", told)
        assert told.lacking
        assert "m1" not in cluster.down
    finally:
        await cluster.close()
        network.close()


async def test_nobody_ends_a_member_whose_rows_wait_for_room(
    cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While its disk is full, and until it has written what waited, a member is not replaced."""
    (tmp_path / "grows.py").write_text(GROWS)
    (tmp_path / "traces").mkdir()
    file = tmp_path / "traces" / "m1-1.0.jsonl"
    file.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    cluster.programs["m1"] = Program(["grows", str(file)], "-", tmp_path / "log")
    told = Told()
    try:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(processes.full_disk, cluster, "m1", told)
            await trio.testing.wait_all_tasks_blocked()
            size = file.stat().st_size
            with trio.move_on_after(0.3) as waited:
                async with cluster.replacing("m1"):
                    raise AssertionError("ended with rows in memory")
            assert waited.cancelled_caught
            told.go_on.set()
            async with cluster.replacing("m1"):
                assert file.stat().st_size > size
    finally:
        await cluster.close()


def test_a_full_disk_is_full_for_one_process_until_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No file of the process grows, and afterwards everything is as before."""
    (tmp_path / "grows.py").write_text(GROWS)
    file, log = tmp_path / "file", tmp_path / "log"

    def grown(wait: float) -> bool:
        before, deadline = file.stat().st_size, time.monotonic() + wait
        while file.stat().st_size == before and time.monotonic() < deadline:
            time.sleep(0.01)
        return file.stat().st_size > before

    file.write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    program = Program(["grows", str(file)], "-", log)
    try:
        assert grown(10)
        program.allow_files(grow=False)
        assert not grown(0.3)
        program.allow_files(grow=True)
        assert grown(10)
        assert program.running
    finally:
        program.kill()
    program.allow_files(grow=False)  # of one that has ended: nothing


def test_a_machine_says_what_it_can_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without namespaces and libraries there are still faults of processes."""
    network, _ = open_network()
    network.close()
    monkeypatch.setattr("chaos.cluster.find_faketime", str)
    poor = possible_kinds(Network())
    assert {"kill-quick", "pause", "full-disk", "zookeeper-disk", "stampede"} <= poor
    assert not poor & {"cut", "lossy-link", "late-link", "clock", "zombie"}
    assert poor <= possible_kinds(network)


def test_an_interrupted_run_takes_its_faults_back(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a fault: it is healed, that is written down, and the run says why."""
    out = tmp_path / "run"
    scenario = "bad-cables" if os.geteuid() == 0 else "p3"
    command = [sys.executable, "-m", "chaos", "run", "--scenario", scenario, "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as runner:
        assert runner.stdout is not None
        for line in runner.stdout:
            if b"broken: " in line and b"broken: -" not in line:
                break
        runner.send_signal(signal.SIGINT)
        told = runner.communicate(timeout=60)[0]
    assert b"INTERRUPTED" in told
    assert runner.returncode == 2
    lines = (out / "traces" / "runner.0.jsonl").read_bytes().splitlines()
    rows = [msgspec.json.decode(line) for line in lines]
    on = [row["extra"]["id"] for row in rows if row["kind"] == "fault_on"]
    off = [row["extra"]["id"] for row in rows if row["kind"] == "fault_off"]
    assert len(on) == 1
    assert on == off
