"""ZooKeeper procedures run one operation at a time on a simulated tree, with mishaps on purpose."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from random import Random
from typing import Any

from coordinator.boot import boot
from coordinator.keeper import Booted, Fault, KeeperOp, Node, Paths, Procedure, Session
from migratory.wire.ids import Boot
from tests.simulation.keeper import SimKeeper

PATHS = Paths("unit")
CFG = b'{"members": 3}'


class Tree:
    """One tree and the sessions of those that work on it."""

    def __init__(self) -> None:
        self.keeper = SimKeeper(Random(0), lambda *_: None)
        self.ops: list[KeeperOp] = []  # of the last procedure

    def run(
        self,
        who: str,
        procedure: Procedure,
        lost: Mapping[int, str] | None = None,
        before: Mapping[int, Callable[[], object]] | None = None,
    ) -> Any:
        """Carry a procedure out.

        `lost`: the connection breaks at that operation, "unsent" or "done" (it took effect).
        `before`: something that others do just before that operation.
        """
        if who not in self.keeper.sessions:
            self.keeper.open_session(who)
        self.ops, value, n = [], None, 0
        try:
            while n < 1_000:
                op = procedure.send(value)
                self.ops.append(op)
                if before and n in before:
                    before[n]()
                how = (lost or {}).get(n, "") if not isinstance(op, Session) else ""
                value = None if how == "unsent" else self.keeper._apply(who, op)
                if how:
                    value = Fault.LOST
                n += 1
        except StopIteration as end:
            return end.value
        raise AssertionError("the procedure does not end")

    def boot(self, who: str, groups: int = 1, **mishaps: Any) -> Any:
        """Let a member enter the cluster."""
        procedure = boot(PATHS, who, f"{who}-uuid", CFG, groups, f"{who}:1", f"{who}:2")
        return self.run(who, procedure, **mishaps)

    def booted(self, who: str, groups: int = 1) -> Boot:
        """The boot of a member that has entered."""
        result = self.boot(who, groups)
        assert isinstance(result, Booted)
        return result.boot

    def node(self, path: str) -> Node | None:
        """What lies at a path."""
        return self.keeper.tree.get(path)

    def end_session(self, who: str) -> None:
        """A session ends, and another one begins."""
        self.keeper.expire(who)
        self.keeper.open_session(who)
