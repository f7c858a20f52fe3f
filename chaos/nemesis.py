"""The nemesis: carries planned faults out, in time, and writes down when each had hold.

What a fault does is in `chaos.faults_of_processes` and `chaos.faults_of_network`.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
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

Break = Callable[[Any, str, Hold], Awaitable[None]]  # first the cluster that it is made for


@dataclass(frozen=True)
class Moment:
    """A `Hold` for faults that take a while to break: these say before that whom they begin to hit.

    From then on nobody waits for them any more, and what they do has its reason in the trace.
    """

    begin: Callable[[str], None]
    last: Hold

    async def __call__(self, hit: str) -> None:
        """Broken now: hold."""
        self.begin(hit)
        await self.last(hit)


SlowBreak = Callable[[Any, str, Moment], Awaitable[None]]

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
        breaks: Mapping[str, SlowBreak] = BREAKS,
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

            def begin(hit: str) -> None:
                if fault.id not in self.active:
                    moment.deadline = float("inf")
                    self.active[fault.id] = f"{fault.kind} {hit}"
                    self.happened += 1
                    note(self._trace, "fault_on", {**extra, "hit": hit})

            async def last(_hit: str) -> None:
                await trio.sleep(fault.for_ms / 1000)

            try:
                await self._break(fault.kind)(self.cluster, target, Moment(begin, last))
            finally:
                if self.active.pop(fault.id, None) is not None:
                    note(self._trace, "fault_off", extra)

    def _break(self, kind: str) -> SlowBreak:
        assert kind in KINDS
        return self._stampede_once if kind == "stampede" else self._breaks[kind]

    async def _stampede_once(self, _cluster: Watched, target: str, hold: Hold) -> None:
        self._stampede()
        await hold(target)
