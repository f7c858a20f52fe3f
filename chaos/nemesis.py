"""The nemesis: carries planned faults out, in time, and writes down when each had hold.

What a fault does is in `chaos.faults_of_processes` and `chaos.faults_of_network`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from typing import Any

import trio

from chaos import faults_of_network as network
from chaos import faults_of_processes as processes
from chaos.faults_of_network import Hold
from chaos.kinds import KINDS, ROLES
from chaos.plan import Fault
from chaos.trace import note
from chaos.watched import Watched
from migratory.trace_files import TraceWriter

PATIENCE = 30.0  # seconds that a fault waits for its moment

# The cluster that it is made for, the target, and a Hold or Turns.
Break = Callable[[Any, str, Any], Awaitable[None]]

BREAKS: dict[str, Break] = {
    "kill-quick": processes.kill,
    "kill-long": processes.kill,
    "kill-recovering": processes.kill_recovering,
    "pause": processes.pause,
    "sleepwalk": processes.sleepwalk,
    "zombie": processes.zombie,
    "starve": processes.starve,
    "clock": processes.clock,
    "full-disk": processes.full_disk,
    "rolling-restart": processes.rolling_restart,
    "recover": processes.recover,
    "reset": network.reset,
    "cut": network.cut,
    "mute": network.mute,
    "cut-zookeeper": network.cut_zookeeper,
    "cut-peers": network.cut_peers,
    "cut-pair": network.cut_pair,
    "cut-one-way": network.cut_one_way,
    "cut-clients": network.cut_clients,
    "deaf-clients": network.deafen_clients,
    "flaky": network.flaky,
    "slow-link": network.slow,
    "late-link": network.late,
    "lossy-link": network.lossy,
    "zookeeper-leader": processes.kill_zookeeper,
    "zookeeper-stall": processes.stall_zookeeper,
    "zookeeper-disk": processes.full_zookeeper_disk,
}


class Nemesis:
    """Carries planned faults out and writes down when each had hold."""

    def __init__(
        self, cluster: Watched, trace: TraceWriter, stampede: Callable[[], None],
        breaks: Mapping[str, Break] = BREAKS,
    ) -> None:  # fmt: skip
        self.cluster = cluster
        self.active: dict[str, str] = {}  # id: what is broken now
        self.happened = 0
        self._trace = trace
        self._stampede = stampede
        self._breaks = breaks

    async def carry_out(self, fault: Fault) -> None:
        """Break, hold, repair. A fault whose moment does not come in time does not happen."""
        extra = {"fault": fault.kind, "target": fault.target, "id": fault.id}
        target = fault.target
        if target in ROLES:
            target = await self.cluster.in_role(target)
        with trio.move_on_after(PATIENCE) as moment:
            try:
                hold = _Holding(self, fault, extra, moment)
                await self._break(fault.kind)(self.cluster, target, hold)
            finally:
                if self.active.pop(fault.id, None) is not None:
                    self.note("fault_off", extra)

    def note(self, kind: str, extra: Mapping[str, object]) -> None:
        """Write a row."""
        note(self._trace, kind, dict(extra))

    def _break(self, kind: str) -> Break:
        assert kind in KINDS
        return self._stampede_once if kind == "stampede" else self._breaks[kind]

    async def _stampede_once(self, _cluster: Watched, target: str, hold: Hold) -> None:
        self._stampede()
        await hold(target)


class _Holding:
    """How one fault tells that it has hold; see `Turns`."""

    def __init__(
        self, nemesis: Nemesis, fault: Fault, extra: dict[str, str], moment: trio.CancelScope
    ) -> None:
        self._nemesis, self._fault, self._extra, self._moment = nemesis, fault, extra, moment
        self._began = 0.0

    def begin(self, hit: str) -> None:
        """From now on it has happened."""
        if self._fault.id not in self._nemesis.active:
            self._moment.deadline = float("inf")
            self._began = trio.current_time()
            self._nemesis.active[self._fault.id] = f"{self._fault.kind} {hit}"
            self._nemesis.happened += 1
            self._nemesis.note("fault_on", {**self._extra, "hit": hit})

    async def __call__(self, hit: str) -> None:
        """It has hold: for the planned time."""
        self.begin(hit)
        await trio.sleep(self._fault.for_ms / 1000)

    async def rest(self) -> None:
        """What is left of the planned time since it began."""
        await trio.sleep_until(self._began + self._fault.for_ms / 1000)

    def missed(self) -> None:
        """Its moment did not come; `fault_off` will say so."""
        self._nemesis.happened -= 1
        self._extra["missed"] = "true"

    @contextlib.contextmanager
    def turn(self, name: str) -> Iterator[None]:
        """A fault within the fault, with an id of its own."""
        extra = {**self._extra, "id": f"{self._fault.id}.{name}"}
        self._nemesis.note("fault_on", {**extra, "hit": name})
        try:
            yield
        finally:
            self._nemesis.note("fault_off", extra)
