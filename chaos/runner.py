"""The runner: a plan, a cluster, a workload and a nemesis, from the first row to the last.

The order is the promise: `run.json` and the rows `run` and `plan` are written before anything is
broken; when all faults are taken back the members get to NORMAL while the workload still runs; then
the workload ends with all its outcomes; then every topic is read at every member.
A run that could not be carried out ends with a named error; a run that was says nothing about right
and wrong, which is the checker's.
"""

from __future__ import annotations

import signal
import subprocess
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import IO

import msgspec
import trio

from chaos.cluster import CLIENTS, SERVER
from chaos.launcher import HERE
from chaos.live import Finding
from chaos.load import SMALL, find_load
from chaos.nemesis import Nemesis
from chaos.plan import Fault, Plan, make_plan
from chaos.processes import Program
from chaos.scenarios import find_scenario
from chaos.stages import Stage, open_stage
from chaos.trace import note, notes
from chaos.view import Scene, View, said
from chaos.watched import Watched
from chaos.workload import Tally
from migratory.errors import MigratoryError
from migratory.trace_files import TraceWriter

WARM_UP = 30.0  # seconds for the first acknowledgements
CALM = 15.0  # seconds of traffic after the last fault: 10 to heal, and some that must go well
WORKLOAD_END = 60.0
READ_END = 120.0
LIVE_END = 30.0
LOOK_EVERY = 1.0
RUN_FILE = "run.json"


class RunFile(msgspec.Struct, frozen=True):
    """`run.json`: what a run was asked for, and all that is needed to do it again."""

    run: str
    scenario: str
    seed: int
    minutes: float
    namespaces: bool
    plan: Plan
    load: str = SMALL


class Outcome(msgspec.Struct, frozen=True):
    """What a run that was carried out can say of itself."""

    planned: int
    happened: int
    takeovers: int
    tally: Tally


async def start_run(
    scenario: str, seed: int, minutes: float, out: Path, load: str = SMALL,
    cluster: Path | None = None, *, server: Sequence[str] = SERVER,
) -> Outcome:  # fmt: skip
    """Make a plan and carry it out, on a cluster of its own or on the one of a file.

    `server` is what members of its own run instead of the server itself.
    """
    chosen = find_scenario(scenario)
    find_load(load)
    with open_stage(cluster, server) as stage:
        plan = make_plan(stage.fitted(chosen), seed, minutes, stage.possible)
        if not plan.faults:
            wrong = f"nothing of {scenario} can be done"
            raise MigratoryError("NOT_POSSIBLE", wrong, stage.unable(plan.not_possible))
        await stage.check()
        _claim(out)
        return await _run(plan, load, stage, out)


async def replay_run(directory: Path, out: Path, cluster: Path | None = None) -> Outcome:
    """Carry out the plan of an earlier run once more."""
    try:
        told = msgspec.json.decode((directory / RUN_FILE).read_bytes(), type=RunFile)
    except (OSError, msgspec.DecodeError) as error:
        wrong = f"{directory / RUN_FILE} cannot be read: {error}"
        raise MigratoryError("NO_SUCH_RUN", wrong, "name the --out directory of a run") from error
    with open_stage(cluster) as stage:
        missing = sorted({fault.kind for fault in told.plan.faults} - stage.possible)
        if missing:
            raise MigratoryError("NOT_POSSIBLE", stage.unable(missing), stage.lacking)
        await stage.check()
        _claim(out)
        return await _run(told.plan, told.load, stage, out)


def _claim(out: Path) -> None:
    """Make the directory of a run, which must be new or empty."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        taken = any(out.iterdir())
        (out / "traces").mkdir(exist_ok=True)
    except OSError as error:
        remedy = "name a directory that can be made and written"
        raise MigratoryError("BAD_OUT", f"{out} cannot be used: {error}", remedy) from error
    if taken:
        raise MigratoryError("OUT_TAKEN", f"{out} is not empty", "name a new directory")


async def _run(plan: Plan, load: str, stage: Stage, out: Path) -> Outcome:
    run = stage.run or f"{plan.scenario}-{plan.seed}-{time.time_ns() // 1_000_000}"
    told = RunFile(run, plan.scenario, plan.seed, plan.minutes, stage.namespaces, plan, load)
    shown = msgspec.json.format(msgspec.json.encode(told), indent=2)
    (out / RUN_FILE).write_bytes(shown + b"\n")
    plan = stage.cast(plan)
    with notes(out / "traces", run, "runner", plan.groups) as trace, View() as view:
        if stage.lacking:
            view.say(stage.lacking)
        if plan.not_possible:
            view.say(stage.unable(plan.not_possible))
        view.say(f"run {run}: {len(plan.faults)} faults in {plan.minutes * 60:.0f} s")
        _announce(plan, load, stage, trace)
        try:
            async with stage.open(plan, out, run) as cluster:
                return await _Run(told, plan, stage, cluster, trace, view).carry_out()
        finally:
            note(trace, "end", {})  # who follows the trace need not wait for more


def _announce(plan: Plan, load: str, stage: Stage, trace: TraceWriter) -> None:
    extra: dict[str, object] = {
        "members": ",".join(stage.names(plan)),
        "faults": plan.survive,
        "groups": plan.groups,
        "seed": plan.seed,
        "scenario": plan.scenario,
        "minutes": plan.minutes,
        "load": load,
        "slow_clients": ",".join(find_load(load).slow_clients),
        "require": ",".join(plan.requires),
    }
    note(trace, "run", extra)
    for fault in plan.faults:
        note(trace, "plan", {"fault": fault.kind, "target": fault.target, "id": fault.id})


class _Run:
    """One run on a cluster that is NORMAL."""

    def __init__(
        self, told: RunFile, plan: Plan, stage: Stage, cluster: Watched, trace: TraceWriter,
        view: View,
    ) -> None:  # fmt: skip
        self.plan, self.run, self.load, self.prefix = plan, told.run, told.load, stage.prefix
        self.cluster, self.trace, self.view = cluster, trace, view
        herd = lambda: self.workload.signal(signal.SIGUSR1)  # noqa: E731
        self.nemesis = Nemesis(cluster, trace, herd, stage.breaks(cluster))
        self.tally = Tally()
        self.phase = ""
        self.takeovers = 0
        self.finding: Finding | None = None
        self.workload: Program
        self._told = trio.Event()
        self._last_fault = 0.0  # when it was taken back
        self._healing = 0.0  # seconds from then until all members were well

    async def carry_out(self) -> Outcome:
        """Everything between a cluster that is NORMAL and the last read."""
        async with self._open_live():
            await self._break_and_heal()
            self._enter("end")
            await self._read_all()
        happened, planned = self.nemesis.happened, len(self.plan.faults)
        self.view.say(
            f"carried out: {happened} of {planned} faults, {self.takeovers} takeovers, "
            f"{self.tally.acked} of {self.tally.sent} acknowledged, {self.tally.unknown} unknown, "
            f"{self.tally.delivered} delivered; violations: {said(self.finding)}"
        )
        return Outcome(planned, happened, self.takeovers, self.tally)

    async def _break_and_heal(self) -> None:
        """From the first message to the last one; whatever goes wrong, the clients' rows stay."""
        async with self._open_workload(), trio.open_nursery() as nursery:
            began = trio.current_time()
            nursery.start_soon(self._watch, began)
            await self._break_and_quiet(began)
            self.workload.signal(signal.SIGUSR2)
            self._enter("healed", took_ms=round(self._healing * 1000))
            await trio.sleep_until(self._last_fault + CALM)
            await self._end_workload()
            self._revive()
            nursery.cancel_scope.cancel()

    # ---- faults --------------------------------------------------------------------------------

    async def _break_and_quiet(self, began: float) -> None:
        """All storms and faults in time; ends when the plan is over and all members are well."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._phases, began)
            async with trio.open_nursery() as faults:
                for fault in self.plan.faults:
                    faults.start_soon(self._at, began, fault)
            await self.cluster.wait_normal()
            self._healing = trio.current_time() - self._last_fault

    async def _at(self, began: float, fault: Fault) -> None:
        await trio.sleep_until(began + fault.at_ms / 1000)
        await self.nemesis.carry_out(fault)
        self._last_fault = trio.current_time()

    async def _phases(self, began: float) -> None:
        self._enter("quiet")
        for begin, end in self.plan.storms:
            await trio.sleep_until(began + begin / 1000)
            self._enter("storm")
            await trio.sleep_until(began + end / 1000)
            self._enter("quiet")
        await trio.sleep_until(began + self.plan.length_ms / 1000)

    def _enter(self, phase: str, **more: int) -> None:
        self.phase = phase
        note(self.trace, "phase", {"phase": phase, **more})

    # ---- the workload --------------------------------------------------------------------------

    def _client_words(self, program: str, *more: str) -> list[str]:
        traces = str((self.cluster.directory / "traces").absolute())
        servers, groups = ",".join(self.cluster.servers), str(self.plan.groups)
        return [
            f"chaos.{program}", "--servers", servers, "--groups", groups, "--prefix", self.prefix,
            "--traces", traces, "--run", self.run, *more,
        ]  # fmt: skip

    def _start_program(self, words: list[str], output: IO[bytes] | int | None = None) -> Program:
        log = self.cluster.directory / f"{words[0]}.log"
        return Program(words, self.cluster.network.entrance(CLIENTS), log, output=output)

    @asynccontextmanager
    async def _open_workload(self) -> AsyncIterator[None]:
        """The workload's process, once its first messages are acknowledged."""
        words = self._client_words("workload", "--seed", str(self.plan.seed), "--load", self.load)
        self.workload = self._start_program(words, subprocess.PIPE)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                with trio.move_on_after(WARM_UP):
                    await self._acknowledged()
                if not self.tally.acked:
                    raise self._broken("nothing was acknowledged")
                yield
        except* MigratoryError:
            await self.workload.stop(WORKLOAD_END)  # so that its trace is whole
            raise
        finally:
            self.workload.kill()
            self.workload.close_output()

    async def _acknowledged(self) -> None:
        while not self.tally.acked:
            await self._told.wait()

    async def _listen(self) -> None:
        """Take what the workload tells, until its end."""
        async for line in self.workload.lines():
            self.tally = msgspec.json.decode(line, type=Tally)
            self._told.set()
            self._told = trio.Event()

    async def _end_workload(self) -> None:
        code = await self.workload.stop(WORKLOAD_END)
        if code != 0:
            raise self._broken(f"it ended with {code}")

    def _broken(self, why: str) -> MigratoryError:
        log = self.cluster.directory / "chaos.workload.log"
        return MigratoryError("WORKLOAD_FAILED", f"the workload failed: {why}", f"see {log}")

    async def _read_all(self) -> None:
        reader = self._start_program(self._client_words("final_reader"))
        try:
            with trio.move_on_after(READ_END):
                if await reader.ended() == 0:
                    return
        finally:
            reader.kill()
        log = self.cluster.directory / "chaos.final_reader.log"
        raise MigratoryError("FINAL_READ_FAILED", "not all members could be read", f"see {log}")

    # ---- the quick checks ----------------------------------------------------------------------

    @asynccontextmanager
    async def _open_live(self) -> AsyncIterator[None]:
        """The quick checks beside the run; they tell, and never end it."""
        words = ["chaos.live", str((self.cluster.directory / "traces").absolute())]
        log = self.cluster.directory / "chaos.live.log"
        checks = Program(words, HERE, log, output=subprocess.PIPE)
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._hear, checks)
                yield
                if await checks.stop(LIVE_END) != 0:
                    self.view.say(f"the quick checks broke down: see {log}")
        finally:
            checks.kill()
            checks.close_output()

    async def _hear(self, checks: Program) -> None:
        async for line in checks.lines():
            self.finding = msgspec.json.decode(line, type=Finding)

    # ---- watching ------------------------------------------------------------------------------

    async def _watch(self, began: float) -> None:
        """Show how it goes, and start again what ended by itself."""
        first: dict[int, int] = {}
        before, then = self.tally, trio.current_time()
        while True:
            await trio.sleep(LOOK_EVERY)
            self._revive()
            if not self.workload.running and self.phase != "healed":
                raise self._broken(f"it ended with {self.workload.code}")
            epochs = await self._epochs()
            for group, epoch in epochs.items():
                first.setdefault(group, epoch)
            grown = sum(epoch - first[group] for group, epoch in epochs.items())
            self.takeovers = max(self.takeovers, grown)
            now, tally = trio.current_time(), self.tally
            self.view.show(
                Scene(
                    now - began, self.plan.length_ms / 1000, self.phase,
                    tuple(self.nemesis.active.values()),
                    (tally.acked - before.acked) / (now - then),
                    (tally.delivered - before.delivered) / (now - then),
                    tally, self.takeovers, self.finding,
                )
            )  # fmt: skip
            before, then = tally, now

    def _revive(self) -> None:
        """Start what ended by itself; a member that ended so, or drained badly, is in the trace."""
        for name, code, when in self.cluster.revive():
            self.view.say(f"{name} ended with {code} {when}, and was started again")
            if name in self.cluster.members:
                note(self.trace, "ended", {"member": name, "code": code, "when": when})

    async def _epochs(self) -> dict[int, int]:
        """The highest epoch of each group that any member tells."""
        found: dict[int, int] = {}
        for status in (await self.cluster.statuses()).values():
            for group in status["groups"] if status else ():
                found[group["group"]] = max(found.get(group["group"], 0), group["epoch"])
        return found
