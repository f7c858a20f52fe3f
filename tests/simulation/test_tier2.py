"""Whole members on a mocked clock: fixed seeds, sameness, and proof that faults are noticed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable

import pytest
import trio

from migratory.delivery import desk
from migratory.delivery.desk import Desk
from migratory.delivery.resume import Start, resume
from migratory.delivery.views import GroupView
from migratory.front.subscriptions import CatchUp, Subscriptions
from migratory.wire.ids import Position
from tests.simulation.checker import Violation
from tests.simulation.tier2.run import Report, run
from tests.simulation.tier2.scheduling import run_seeded
from tests.simulation.tier2.weather import Weather
from tests.simulation.tier2.world import World


def told(report: Report) -> str:
    """A violation, and how to see it again."""
    return f"{report.violation}\nreplay: {report.replay}"


@pytest.mark.parametrize(
    ("members", "faults", "first", "runs"),
    [
        (3, 1, 0, 4), (3, 1, 4, 4), (3, 1, 8, 4), (3, 1, 12, 4),
        (5, 2, 0, 3), (5, 2, 3, 3), (1, 0, 0, 4),
    ],
)  # fmt: skip
def test_seeds(members: int, faults: int, first: int, runs: int) -> None:
    """Whatever breaks, no promise does; afterwards everything comes to rest, and was not idle."""
    totals: Counter[str] = Counter()
    for seed in range(first, first + runs):
        report = run(seed, members, faults)
        assert not report.violation, told(report)
        totals.update(acked=report.acked, delivered=report.delivered, takeovers=report.takeovers)
        totals.update(report.outcomes)
    assert totals["acked"] > 100 * runs
    assert totals["delivered"] > 100 * runs
    assert totals["resumed"] > runs
    assert totals["takeovers"] >= runs


def test_the_same_seed_runs_in_the_same_way() -> None:
    """One seed, one trace: in this process, and in another one that hashes differently."""
    here = run(21, 3, 1)
    assert here.events > 1000
    assert run(21, 3, 1).digest == here.digest
    assert run(22, 3, 1).digest != here.digest
    program = "from tests.simulation.tier2.run import run; print(run(21, 3, 1).digest)"
    other = subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONHASHSEED": "4711"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert other.stdout.splitlines()[-1] == here.digest


# ---- faults of our own ---------------------------------------------------------------------------


def keep_what_was_replaced(patch: pytest.MonkeyPatch) -> None:
    """Subscribers are not told that a group's state was replaced."""

    def installed(_self: Desk, _groups: Iterable[int]) -> None:
        pass

    patch.setattr(Desk, "installed", installed)


def believe_what_is_here(patch: pytest.MonkeyPatch) -> None:
    """A member that is behind its subscriber does not ask whether it is."""

    def resumed(view: GroupView, topic: str, asked: Position, *, confirmed: bool) -> Start | None:
        return resume(view, topic, asked, confirmed=True)

    patch.setattr(desk, "resume", resumed)


def attach_too_early(patch: pytest.MonkeyPatch) -> None:
    """What was announced before a page is given once more to who gets the page."""

    def attach(self: Subscriptions, catch: CatchUp, position: Position) -> None:
        feed, conn = catch.feed, catch.conn
        feed.catching -= 1
        feed.position = position
        feed.live.setdefault(conn.codec, {})[conn] = None
        assert conn.topics is not None
        conn.topics[feed.topic] = None

    patch.setattr(Subscriptions, "_attach", attach)


@pytest.mark.parametrize(
    ("mutant", "kinds"),
    [
        (keep_what_was_replaced, {"BROKEN-DELIVERY"}),
        (believe_what_is_here, {"HONEST-RESET"}),
        (attach_too_early, {"TWICE"}),
    ],
)
def test_what_is_broken_in_the_shell_is_noticed(
    mutant: Callable[[pytest.MonkeyPatch], None], kinds: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fault in front or desk is seen by clients, within some seeds."""
    mutant(monkeypatch)
    reports = (run(seed, 3, 1) for seed in range(40))
    found = next((report for report in reports if report.violation), None)
    assert found is not None
    assert found.violation.split()[0] in kinds, told(found)


def test_a_task_that_turns_in_circles_is_noticed() -> None:
    """Where no time passes, a loop would go on for ever: it is a violation that names its place."""

    async def circle() -> None:
        while True:
            await trio.lowlevel.checkpoint()

    with pytest.raises(Violation, match=r"SPIN at 0\.0.*circle"):
        run_seeded(1, circle)


# ---- directed ------------------------------------------------------------------------------------


def test_the_founder_of_a_group_may_be_cut_off_at_once() -> None:
    """A new history that nobody else has seen waits for its founder, not for an operator."""

    async def main() -> None:
        world = World(2, 3, 1, Weather.calm())  # one in which nobody hears of it so soon
        async with trio.open_nursery() as nursery:
            with world.inhabited(nursery):
                founder = await opened(world)
                ways = [(founder, n) for n in world.cluster.members if n != founder]
                ways += [(n, founder) for _, n in ways]
                world.network.cut.update(dict.fromkeys(ways))
                await trio.sleep(6.0)
                members = [m for m in world.alive() if m.ctx.me != founder]
                assert not any(m.replicas[0].normal for m in members)
                world.heal()
                world.clients_come()
                await trio.sleep(2.0)
                await world.settle()

    run_seeded(2, main)


def test_publishing_goes_on_while_zookeeper_is_away() -> None:
    """Members that reach each other need ZooKeeper for elections only: no outcome is unknown."""

    async def main() -> None:
        world = World(2, 3, 1, Weather.calm())
        async with trio.open_nursery() as nursery:
            with world.inhabited(nursery):
                await trio.sleep(2.0)
                world.clients_come()
                world.keeper.stalled_until = trio.current_time() + 40
                await trio.sleep(40)
                assert world.judge.acked > 1000
                world.heal()
                await world.settle()
                assert {sent.outcome for sent in world.judge.sent.values()} == {"acked"}

    run_seeded(2, main)


@pytest.mark.parametrize("apart", [0.0, 0.1, 1.0])
def test_members_that_are_asked_to_leave_together_leave_in_turn(apart: float) -> None:
    """Two of three that forget at once would leave their groups to an operator."""

    async def main() -> None:
        world = World(3, 3, 1, Weather.calm())
        async with trio.open_nursery() as nursery:
            with world.inhabited(nursery):
                await trio.sleep(2.0)
                world.clients_come()
                await trio.sleep(2.0)
                leaving = [world.processes["m1"], world.processes["m0"]]
                for process in leaving:
                    process.drain(now=False)
                    await trio.sleep(apart)
                with trio.fail_after(30):
                    while [process.end for process in leaving] != ["DRAINED", "DRAINED"]:  # noqa: ASYNC110 (their ends tell nobody)
                        await trio.sleep(0.1)
                world.heal()
                await world.settle()

    run_seeded(3, main)


async def opened(world: World, g: int = 0) -> str:
    """Wait until somebody opens a group; who it is."""
    while True:
        for member in world.alive():
            if member.replicas[g].leading is not None:
                return member.ctx.me
        await trio.sleep(0.001)
