"""What a run happens on: a cluster of its own making, or one that others started."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, contextmanager
from pathlib import Path

import msgspec

from chaos import cluster, own_cluster, own_file
from chaos.nemesis import BREAKS, Break
from chaos.network import Network, open_network
from chaos.own_traces import prefix_of
from chaos.plan import Fault, Plan
from chaos.scenarios import Scenario
from chaos.topics import PREFIX
from chaos.watched import Watched
from migratory.errors import MigratoryError


class Stage(ABC):
    """What there is to know before a cluster is opened."""

    run = ""  # its name, if somebody else has given it
    prefix = PREFIX
    namespaces = False
    lacking = ""
    possible: frozenset[str]

    def fitted(self, scenario: Scenario) -> Scenario:
        """The scenario on a cluster of this size."""
        return scenario

    @abstractmethod
    async def check(self) -> None:
        """Whether a run can be started at all."""

    def names(self, plan: Plan) -> list[str]:
        """The members."""
        return [f"m{n}" for n in range(1, plan.members + 1)]

    def cast(self, plan: Plan) -> Plan:
        """The plan with the names of its members."""
        return plan

    @abstractmethod
    def unable(self, kinds: Sequence[str]) -> str:
        """Why these kinds of faults are not possible."""

    @abstractmethod
    def open(self, plan: Plan, out: Path, run: str) -> AbstractAsyncContextManager[Watched]:
        """A cluster that is NORMAL; leaving the block leaves nothing broken."""

    @abstractmethod
    def breaks(self, opened: Watched) -> Mapping[str, Break]:
        """How the nemesis does each kind of fault to it."""


class OwnMaking(Stage):
    """A cluster that the run starts and ends."""

    def __init__(self, network: Network, lacking: str, server: Sequence[str]) -> None:
        self.network = network
        self.server = server
        self.lacking = lacking
        self.namespaces = network.can_cut
        self.possible = cluster.possible_kinds(network)

    async def check(self) -> None:
        """There is nothing yet to look at."""

    def unable(self, kinds: Sequence[str]) -> str:
        """It is the machine."""
        return f"not possible on this machine: {', '.join(kinds)}"

    def open(self, plan: Plan, out: Path, run: str) -> AbstractAsyncContextManager[Watched]:
        """Start everything."""
        return cluster.open_cluster(plan, self.network, out, run, self.server)

    def breaks(self, _opened: Watched) -> Mapping[str, Break]:
        """All that the machine can do."""
        return BREAKS


class OthersMaking(Stage):
    """A cluster that runs, as a file describes it; m1 of a plan is the first one in the file."""

    def __init__(self, path: Path) -> None:
        self.file = own_file.load(path)
        self.path = path
        self.place = path.absolute().parent
        self.run = self.file.trace.run
        self.prefix = prefix_of(self.file)
        self.possible = own_cluster.possible_kinds(self.file)
        self._ids = [member.id for member in self.file.cluster.members]

    async def check(self) -> None:
        """Whether it is well, is the one of the file and traces this run."""
        print(f"looking at the cluster of {self.path}", flush=True)
        await own_cluster.check_own(self.file, self.place)

    def fitted(self, scenario: Scenario) -> Scenario:
        """The scenario on a cluster that is at least as large as it wants."""
        survive = self.file.cluster.faults
        if len(self._ids) < scenario.members or survive < scenario.survive:
            wrong = (
                f"{scenario.name} is for {scenario.members} members that survive "
                f"{scenario.survive}, {self.path} has {len(self._ids)} that survive {survive}"
            )
            raise MigratoryError("CLUSTER_TOO_SMALL", wrong, "choose another scenario")
        return msgspec.structs.replace(
            scenario, members=len(self._ids), survive=survive, groups=self.file.cluster.groups
        )

    def names(self, _plan: Plan) -> list[str]:
        """As in the file."""
        return self._ids

    def cast(self, plan: Plan) -> Plan:
        """The plan with the members' own names; it may come from another cluster of this size."""
        if (plan.members, plan.groups) != (len(self._ids), self.file.cluster.groups):
            wrong = f"the plan is for {plan.members} members with {plan.groups} groups"
            raise MigratoryError("OTHER_CLUSTER", wrong, "replay it on such a cluster")
        return msgspec.structs.replace(plan, faults=[self._named(fault) for fault in plan.faults])

    def _named(self, fault: Fault) -> Fault:
        target = re.sub(r"\bm(\d+)\b", lambda m: self._ids[int(m[1]) - 1], fault.target)
        return msgspec.structs.replace(fault, target=target)

    def unable(self, kinds: Sequence[str]) -> str:
        """It is the file."""
        return f"{self.path} has no hooks for: {', '.join(kinds)}"

    def open(self, _plan: Plan, out: Path, _run: str) -> AbstractAsyncContextManager[Watched]:
        """Nothing is to be started."""
        (out / "cluster.toml").write_bytes(self.path.read_bytes())
        return own_cluster.open_own(self.file, self.place, out)

    def breaks(self, opened: Watched) -> Mapping[str, Break]:
        """All that there are hooks for."""
        assert isinstance(opened, own_cluster.OwnCluster)
        return opened.breaks()


@contextmanager
def open_stage(file: Path | None, server: Sequence[str] = cluster.SERVER) -> Iterator[Stage]:
    """The cluster that a file describes, or the best that can be made here."""
    if file is not None:
        yield OthersMaking(file)
        return
    network, lacking = open_network()
    try:
        yield OwnMaking(network, lacking, server)
    finally:
        network.close()
