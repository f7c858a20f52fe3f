"""Acknowledged publishing at 2 of 3 copies: messages per CPU second of the coordinator's engine.

    ./dev python -m tests.benchmarks.publish [--batch 1 64] [--seconds 8] [--profile DIR]

`--trace full` measures members that write traces.

One client pipelines over loopback to one member, on topics spread over all groups that this
member coordinates, so that its engine does everything for each message: read, order, replicate,
count copies, acknowledge. CPU seconds are read from the kernel, so other load on the machine
hardly matters. The client is bare: the SDK's own cost is not measured here.
"""

from __future__ import annotations

import argparse
import base64
import os
import re
import secrets
import select
import socket
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import trio

from migratory.shell.local_cluster import LocalCluster, open_cluster
from migratory.wire.client import PATH, Ack, Connect, Publish, Sent
from migratory.wire.codec import MSGPACK
from migratory.wire.ids import group_of

PAYLOAD = "x" * 140
TOPICS_PER_GROUP = 3
PART = re.compile(r"\((?:\S*/)?((?:migratory|coordinator|cache)/\w+(?:/\w+)?)\.py")
TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """User and system time of a process until now."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


class BareClient:
    """A WebSocket publisher with as little code as possible; its mask is zero."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self.sock = socket.create_connection((host, int(port)))
        self.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        key = base64.b64encode(secrets.token_bytes(16)).decode()
        self.sock.sendall(
            f"GET {PATH} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n"
            f"Sec-WebSocket-Protocol: {MSGPACK.subprotocol}\r\n\r\n".encode()
        )
        self.buffer = b""
        while b"\r\n\r\n" not in self.buffer:
            self.buffer += self.sock.recv(65536)
        self.buffer = self.buffer.partition(b"\r\n\r\n")[2]
        self.sock.sendall(frame(MSGPACK.encode_request(Connect(1))))
        self.acked = 0
        self.refused = 0
        self.sock.setblocking(False)

    def read(self) -> None:
        """Take whatever has come."""
        try:
            self.buffer += self.sock.recv(1 << 20)
        except BlockingIOError:
            return
        while (found := unframe(self.buffer)) is not None:
            payload, self.buffer = found
            message = MSGPACK.decode_answer(payload)
            if isinstance(message, Ack):
                self.acked += len(message.results)
            elif type(message).__name__ == "Nack":
                self.refused += len(message.results)  # type: ignore[union-attr]
                raise SystemExit(f"refused: {message}")


def frame(payload: bytes) -> bytes:
    """A masked binary frame."""
    size = len(payload)
    if size < 126:
        head = bytes((0x82, 0x80 | size))
    elif size < 65536:
        head = bytes((0x82, 0x80 | 126)) + size.to_bytes(2, "big")
    else:
        head = bytes((0x82, 0x80 | 127)) + size.to_bytes(8, "big")
    return head + b"\0\0\0\0" + payload


def unframe(data: bytes) -> tuple[bytes, bytes] | None:
    """The first whole frame of a server, and the rest."""
    if len(data) < 2:
        return None
    size, at = data[1], 2
    if size == 126:
        size, at = int.from_bytes(data[2:4], "big"), 4
    elif size == 127:
        size, at = int.from_bytes(data[2:10], "big"), 10
    if len(data) < at + size:
        return None
    return data[at : at + size], data[at + size :]


def pump(client: BareClient, topics: list[str], batch: int, seconds: float, window: int) -> float:
    """Publish with a window of unanswered messages; how long it took."""
    pid = secrets.token_urlsafe(16)
    pseqs = dict.fromkeys(topics, 0)
    sent, number, at = client.acked, 0, 0
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        out = bytearray()
        while sent - client.acked + batch <= window and len(out) < 1 << 18:
            messages = []
            for _ in range(batch):
                topic = topics[at]
                at = (at + 1) % len(topics)
                pseqs[topic] += 1
                messages.append(Sent(topic, PAYLOAD, pseqs[topic]))
            number += 1
            out += frame(MSGPACK.encode_request(Publish(number, pid, messages)))
            sent += batch
        view = memoryview(out)
        while view:
            ready, writable, _ = select.select([client.sock], [client.sock], [], 1)
            if writable:
                view = view[client.sock.send(view) :]
            if ready:
                client.read()
        select.select([client.sock], [], [], 1)
        client.read()
    while client.acked < sent:
        select.select([client.sock], [], [], 1)
        client.read()
    return time.monotonic() - began


async def measure(cluster: LocalCluster, batch: int, seconds: float, profile: Path | None) -> str:
    """One figure: a warm-up, then the run."""
    statuses = await cluster.statuses()
    leads = {
        name: [g["group"] for g in status["groups"] if g["role"] == "coordinator"]
        for name, status in statuses.items()
        if status is not None
    }
    contact = max(leads, key=lambda name: len(leads[name]))
    wanted = dict.fromkeys(leads[contact], TOPICS_PER_GROUP)
    topics = []
    for n in range(100_000):
        topic = f"/bench/{n}"
        g = group_of(topic, cluster.groups)
        if wanted.get(g):
            wanted[g] -= 1
            topics.append(topic)
    pids = {name: process.pid for name, process in cluster.processes.items()}
    client = BareClient(cluster.file.members[contact].client)
    window = 900 if batch == 1 else 960
    await trio.to_thread.run_sync(pump, client, topics, batch, 2.0, window)
    spy = None
    if profile is not None:
        out = profile / f"publish-{batch}.txt"
        spy = subprocess.Popen(  # noqa: ASYNC220 (it starts at once)
            [sys.executable.replace("python", "py-spy"), "record", "-d", str(int(seconds)), "-r",
             "400", "-f", "raw", "-o", str(out), "-p", str(pids[contact])],
            stdout=subprocess.DEVNULL,
        )  # fmt: skip
    before = {name: cpu_seconds(pid) for name, pid in pids.items()}
    acked = client.acked
    took = await trio.to_thread.run_sync(pump, client, topics, batch, seconds, window)
    used = {name: cpu_seconds(pid) - before[name] for name, pid in pids.items()}
    count = client.acked - acked
    if spy is not None:
        spy.wait()
    others = ", ".join(f"{used[n] / count * 1e6:.1f}" for n in used if n != contact)
    return (
        f"batch {batch:3}: {count / used[contact]:8,.0f} messages per CPU second"
        f" ({used[contact] / count * 1e6:.1f} us each; followers {others} us),"
        f" {count / took:8,.0f}/s on the clock, {len(topics)} topics, {len(leads[contact])} groups"
    )


def where(samples: Path) -> str:
    """The share of each part of the engine in its busy time, from py-spy's samples."""
    parts: Counter[str] = Counter()
    for line in samples.read_text().splitlines():
        stack, _, count = line.rpartition(" ")
        frames = stack.split(";")
        if any(idle in frames[-1] for idle in ("Condition.wait", "EpollSelector.select")):
            continue
        ours = [found[1] for frame in frames if (found := PART.search(frame))]
        name = ours[-1].replace("/", ".") if ours else "migratory.cli"
        parts["trio itself" if name == "migratory.cli" else name] += int(count)
    total = parts.total()
    rows = [f"    {share / total:6.1%}  {name}" for name, share in parts.most_common(16)]
    return "\n".join(rows)


async def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--seconds", type=float, default=8.0)
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--profile", type=Path)
    parser.add_argument("--trace", choices=["off", "sampled", "full"], default="off")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="migratory-bench-") as made:
        settings = f'[trace]\nmode = "{args.trace}"\ndirectory = "{made}/traces"\nfiles = 2\n'
        async with open_cluster(3, Path(made), settings=settings) as cluster:
            await cluster.wait_normal()
            for _ in range(args.repeat):
                for batch in args.batch:
                    print(await measure(cluster, batch, args.seconds, args.profile), flush=True)
            if args.profile is not None:
                for batch in args.batch:
                    print(f"batch {batch}, busy time by innermost module:")
                    print(where(args.profile / f"publish-{batch}.txt"))


if __name__ == "__main__":
    trio.run(main)
