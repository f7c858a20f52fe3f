"""What faults promise to each other; a disk that is full for one process; an interrupted run."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import pytest
import trio

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
