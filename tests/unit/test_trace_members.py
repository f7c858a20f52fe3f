"""The rows of whole members: their order within a process, and that nothing is missing."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from trio.testing import MockClock

from coordinator.events import DrainWanted
from migratory.wire.ids import Position, group_of
from migratory.wire.shard import Sub
from migratory.wire.trace import Row, decode_rows, keeps, mid_of
from tests.unit.driver_cluster import MemoryNode, World, cluster

TOPIC = "/scores/1"


def read(directory: Path) -> dict[str, list[Row]]:
    """The rows of each process in their order."""
    found: dict[str, list[Row]] = {}
    for path in sorted(directory.iterdir()):
        for row in decode_rows(path.read_bytes()):
            found.setdefault(row.proc, []).append(row)
    return found


def of(rows: Iterable[Row], kind: str) -> list[Row]:
    """The rows of a kind."""
    return [row for row in rows if row.kind == kind]


def check(rows: list[Row]) -> None:
    """What must hold in every process: numbers, and everything after what it needs."""
    assert [row.n for row in rows] == list(range(len(rows)))
    assert rows[0].kind == "boot"
    ends: dict[int, int] = {}
    logs: dict[tuple[int, int], int] = {}
    normal: set[int] = set()
    promised: dict[int, int] = {}
    elected: dict[int, int] = {}
    granted: dict[int, int] = {}
    copies = int((rows[0].extra or {})["copies"])
    for row in rows:
        g, epoch, idx = row.group or 0, row.epoch or 0, row.idx or 0
        match row.kind:
            case "promise":
                assert epoch >= promised.get(g, 0)
                promised[g] = epoch
            case "append":
                logs[g, idx], ends[g] = epoch, idx
            case "install":
                ends[g] = granted[g] = idx
            case "quorum":
                others = {name.rpartition("-")[0] for name in (row.extra or {})["by"].split(",")}
                assert others
                assert others <= {"a", "b", "c"} - {row.node}
                granted[g] = idx
            case "told":
                granted[g] = idx
            case "ack":
                assert idx <= ends.get(g, 0)
                assert (g in normal, epoch) == (True, promised[g])
                granted[g] = max(idx, granted.get(g, 0))  # two copies are enough here
            case "commit":
                assert logs[g, idx] == epoch
                assert copies == 1 or idx <= granted[g], "applied before it was counted"
            case "normal":
                normal.add(g)
            case "elect":
                elected[g] = epoch
            case "floor":
                if row.extra == {"normal": "false"}:
                    normal.discard(g)
                else:
                    assert elected[g] == epoch, "only whoever raised the floor keeps what it has"
                granted[g] = 0


def coordinator(world: World) -> MemoryNode:
    """Who coordinates the topic."""
    g = group_of(TOPIC, world.cluster.groups)
    return next(n for n in world.nodes.values() if n.driver.member.replicas[g].leading)


async def publish(node: MemoryNode, numbers: Iterable[int]) -> None:
    """Publish and wait for the acknowledgements."""
    before = len(node.front.acked())
    wanted = [node.front.publish(TOPIC, pseq=n) for n in numbers]
    await node.until(lambda: len(node.front.acked()) == before + len(wanted))


async def test_a_takeover_and_a_return_in_rows(autojump_clock: MockClock, tmp_path: Path) -> None:
    """Every process's rows are in order, and what survivors committed is the same everywhere."""
    async with cluster(3, 1, traces=tmp_path) as world:
        dead = coordinator(world)
        contact = next(node for node in world.nodes.values() if node is not dead)
        await publish(contact, range(1, 4))
        world.kill(dead.name)
        await publish(contact, range(4, 7))
        back = await world.start(dead.name)
        await back.served()
        await publish(contact, range(7, 9))
        topics = [
            n.driver.member.replicas[group_of(TOPIC, 4)].state.topics for n in (contact, back)
        ]
        await back.until(lambda: {t[TOPIC].seq for t in topics} == {8})
    traces = read(tmp_path)
    assert traces.keys() == {"a-1", "b-1", "c-1", f"{dead.name}-2"}
    for rows in traces.values():
        check(rows)
    seen = {
        proc: {(r.epoch, r.seq, r.mid) for r in of(rows, "commit") if r.topic}
        for proc, rows in traces.items()
    }
    whole = seen[f"{contact.name}-1"]
    assert sorted(seq for _, seq, _ in whole if seq) == list(range(1, 9))
    assert {mid for _, _, mid in whole} == {mid_of(b"payload %d" % n) for n in range(1, 9)}
    assert all(part <= whole for part in seen.values())
    assert [r.extra for r in of(traces[f"{contact.name}-1"], "commit") if r.seq == 1] == [
        {"first": "true"}
    ]
    returned = traces[f"{dead.name}-2"]
    assert of(returned, "install")
    assert {r.extra["role"] for rows in traces.values() for r in of(rows, "append") if r.extra} == {
        "coordinator",
        "follower",
    }


async def test_each_epoch_is_opened_once_by_who_promised_it_to_itself(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Elect, promise, open and the coordinator's own appends name one process per epoch."""
    async with cluster(3, 1, traces=tmp_path) as world:
        world.kill(coordinator(world).name)
        await publish(next(iter(world.nodes.values())), [1])
    traces = read(tmp_path)
    opened: dict[tuple[int | None, int | None], str] = {}
    for proc, rows in traces.items():
        for row in of(rows, "open"):
            assert opened.setdefault((row.group, row.epoch), proc) == proc
            mine = [r for r in rows[: row.n] if (r.group, r.epoch) == (row.group, row.epoch)]
            assert of(mine, "elect")
            assert [(r.extra or {})["to"] for r in of(mine, "promise")] == [row.node]
            noop = rows[row.n + 1]
            assert (noop.kind, noop.idx) == ("append", row.idx)
            assert noop.extra == {"kind": "noop", "role": "coordinator"}
    for proc, rows in traces.items():
        for row in of(rows, "append"):
            if row.extra and row.extra["role"] == "coordinator":
                assert opened[row.group, row.epoch] == proc


async def test_what_was_there_at_a_gap_and_a_drain(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """A resume that is answered with a gap leaves a window; clients that are sent away, a row."""
    async with cluster(1, 0, traces=tmp_path) as world:
        node = world.nodes["a"]
        await publish(node, range(1, 1106))
        node.front.ask(Sub(1, TOPIC, Position(1, 1)))
        await node.until(lambda: node.driver.desk.outcomes["gap"] == 1)
        node.driver.want(DrainWanted())
        await node.until(lambda: node.ended != "")
    (rows,) = read(tmp_path).values()
    check(rows)
    (window,) = of(rows, "window")
    assert (window.topic, window.seq, window.extra) == (TOPIC, 106, {"head": "1105"})
    assert [row.extra for row in of(rows, "isolate")] == [{"code": "DRAINING"}]


async def test_a_sampled_trace_has_what_is_no_topics(
    autojump_clock: MockClock, tmp_path: Path
) -> None:
    """Without any row of a topic outside of the sample, epochs, acks and ends are all there."""
    sample = next(n for n in range(2, 100) if not keeps(TOPIC, n))
    async with cluster(3, 1, traces=tmp_path, sample=sample) as world:
        node = coordinator(world)
        other = next(each for each in world.nodes.values() if each is not node)
        await publish(other, range(1, 4))
        node.front.subscribe(TOPIC)
        node.driver.want(DrainWanted())
        await node.until(lambda: node.ended != "")
    traces = read(tmp_path)
    rows = traces[f"{node.name}-1"]
    assert {row.topic for each in traces.values() for row in each} == {None}
    assert [row.n for row in rows] == list(range(len(rows)))
    assert all(row.extra and row.extra["why"] for row in of(rows, "step_down"))
    assert {"open", "append", "commit", "step_down", "isolate"} <= {row.kind for row in rows}
    assert of(traces[f"{other.name}-1"], "ack")
