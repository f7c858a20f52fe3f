"""Real processes write traces: what is known of a killed member is in the rows that it left."""

from __future__ import annotations

import os
from collections import defaultdict
from pathlib import Path

import trio

from client_sdk import Message, Receipt, Subscribed, open_client, open_trace
from migratory.shell.ensemble import Ensemble
from migratory.shell.local_cluster import open_members
from migratory.wire.ids import group_of
from migratory.wire.trace import Row, decode_rows

TOPIC = "/traced"
GROUPS = 8
COPIES = 2


def read(directory: Path) -> dict[str, list[Row]]:
    """The rows of each process."""
    found: dict[str, list[Row]] = defaultdict(list)
    for path in sorted(directory.iterdir()):
        for row in decode_rows(path.read_bytes()):
            found[row.proc].append(row)
    return found


async def run(ensemble: Ensemble, directory: Path, traces: Path) -> str:
    """Publish, kill the coordinator in the middle, start it again; the victim's name."""
    settings = f'[trace]\nmode = "full"\ndirectory = "{traces}"\nrun = "r1"\n'
    name = f"trace-{os.getpid()}"
    async with (
        open_members(
            ensemble, 3, directory, name=name, groups=GROUPS, settings=settings
        ) as cluster,
        open_trace(traces, run="r1", node="c1", groups=GROUPS) as writer,
    ):
        await cluster.wait_normal()
        async with (
            open_client(cluster.servers, trace=writer) as client,
            client.subscribe(TOPIC) as messages,
        ):
            assert isinstance(await anext(messages), Subscribed)
            status = (await cluster.statuses())["m1"]
            assert status is not None
            victim: str = status["groups"][group_of(TOPIC, GROUPS)]["coordinator"]
            receipts: list[Receipt] = []
            for n in range(200):
                receipts.append(await client.publish_soon(TOPIC, f"message {n}"))
                if n == 100:
                    cluster.kill(victim)
            for receipt in receipts:
                await receipt
            cluster.start(victim)
            await cluster.wait_normal()
            taken = 0
            async for item in messages:
                taken += isinstance(item, Message)
                if taken == 200:
                    break
    return victim


async def test_the_trace_of_a_killed_coordinator(ensemble: Ensemble, tmp_path: Path) -> None:
    """Every acknowledged message was stored by two processes before, also by a killed one."""
    with trio.fail_after(120):
        victim = await run(ensemble, tmp_path / "cluster", tmp_path / "traces")
    traces = read(tmp_path / "traces")
    client = traces.pop("c1")
    assert sorted(traces) == sorted(["m1-1", "m2-1", "m3-1", f"{victim}-2"])
    stored: dict[tuple[int | None, int | None, str | None], set[str]] = defaultdict(set)
    for proc, rows in traces.items():
        assert [row.n for row in rows] == list(range(len(rows)))
        assert (rows[0].kind, rows[0].run, rows[0].proc) == ("boot", "r1", proc)
        appended = {(row.group, row.idx, row.epoch) for row in rows if row.kind == "append"}
        applied = {(row.group, row.idx, row.epoch) for row in rows if row.kind == "commit"}
        assert applied <= appended
        for row in rows:
            if row.kind == "append" and row.topic == TOPIC:
                stored[row.epoch, row.seq, row.mid].add(proc)
    acked = [(row.epoch, row.seq, row.mid) for row in client if row.kind == "pub_ack"]
    assert len(acked) == 200
    assert [place for place in acked if len(stored[place]) < COPIES and place[0]] == []
    seen = [(row.epoch, row.seq, row.mid) for row in client if row.kind == "deliver"]
    assert [seq for _, seq, _ in seen] == list(range(1, 201))
    assert all(len(stored[place]) >= COPIES for place in seen)
    opened = [
        (row.group, row.epoch) for rows in traces.values() for row in rows if row.kind == "open"
    ]
    assert len(opened) == len(set(opened)) > GROUPS
