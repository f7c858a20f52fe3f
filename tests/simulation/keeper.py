"""A simulated ZooKeeper: one tree, versions, sessions, ephemeral nodes, outcomes that get lost.

It runs the very procedures that members run in a real ZooKeeper. Every operation takes a random
time; a connection loss may hit it before or after it took effect; a stall holds everything up; an
expired session takes its ephemeral nodes with it. A read may show an older tree, as that of a
server that lags; never one older than this client's last read, write or sync.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from coordinator.keeper import (
    Check,
    Children,
    Create,
    Delete,
    Fault,
    Get,
    Gets,
    KeeperOp,
    Multi,
    Node,
    Procedure,
    Session,
    Set,
    Sync,
    decode_group,
)
from tests.simulation.checker import Violation

Later = Callable[[float, Callable[[], None]], None]


class SimKeeper:
    """The ensemble, seen by everybody alike."""

    def __init__(self, random: Random, later: Later) -> None:
        self.random = random
        self.later = later
        self.tree: dict[str, Node] = {"/": Node(b"", 0)}
        self.sessions: dict[object, int] = {}
        self.last_session = 0
        self.views: dict[object, dict[str, Node]] = {}  # the tree as a client's server knows it
        self.loss = 0.0  # probability that an operation loses its connection
        self.stale = 0.0  # probability that a read shows what the client last saw
        self.stalled_until = 0.0
        self.now: Callable[[], float] = lambda: 0.0

    # ---- sessions ------------------------------------------------------------------------------

    def open_session(self, holder: object) -> None:
        """Give a process a new session."""
        self.last_session += 1
        self.sessions[holder] = self.last_session

    def expire(self, holder: object) -> None:
        """End a session: its ephemeral nodes vanish."""
        session = self.sessions.pop(holder, 0)
        if session:
            self.tree = {p: node for p, node in self.tree.items() if node.owner != session}

    # ---- procedures ----------------------------------------------------------------------------

    def run(self, holder: object, procedure: Procedure, done: Callable[[Any], None]) -> None:
        """Run a procedure to its end, an operation at a time, for a living process."""
        self._advance(holder, procedure, None, done)

    def _advance(
        self, holder: object, procedure: Procedure, value: Any, done: Callable[[Any], None]
    ) -> None:
        if getattr(holder, "dead", False):
            return
        if getattr(holder, "paused", False):
            self.later(0.05, lambda: self._advance(holder, procedure, value, done))
            return
        try:
            op = procedure.send(value)
        except StopIteration as end:
            done(end.value)
            return
        delay = self.random.uniform(0.001, 0.02)
        delay += max(0.0, self.stalled_until - self.now())
        self.later(delay, lambda: self._execute(holder, procedure, op, done))

    def _execute(
        self, holder: object, procedure: Procedure, op: KeeperOp, done: Callable[[Any], None]
    ) -> None:
        if self.now() < self.stalled_until or (
            holder not in self.sessions and not isinstance(op, Session)
        ):
            if getattr(holder, "dead", False):
                return  # nobody waits for it any more
            # No session now: the client retries until it has one again.
            self.later(0.05, lambda: self._execute(holder, procedure, op, done))
            return
        lost = self.random.random() < self.loss and not isinstance(op, Session)
        if lost and self.random.random() < 0.5:
            result: Any = Fault.LOST  # before it took effect
        else:
            seen = self.views.get(holder)
            result = self._apply(holder, op)
            if lost:
                result = Fault.LOST
                if seen is not None:  # the next server need not know of it yet
                    self.views[holder] = seen
        delay = self.random.uniform(0.0, 0.01)
        self.later(delay, lambda: self._advance(holder, procedure, result, done))

    def _apply(self, holder: object, op: KeeperOp) -> Any:
        tree = self.views.get(holder, self.tree)
        if not isinstance(op, Get | Gets | Children) or self.random.random() >= self.stale:
            tree = self.tree
        self.views[holder] = tree
        match op:
            case Get(path):
                return tree.get(path, Fault.NO_NODE)
            case Gets(paths):
                return [tree.get(path, Fault.NO_NODE) for path in paths]
            case Children(path):
                if path not in tree:
                    return Fault.NO_NODE
                prefix = path + "/"
                names = (p[len(prefix) :] for p in tree if p.startswith(prefix))
                return [name for name in names if "/" not in name]
            case Session():
                return self.sessions.get(holder, 0)
            case Sync():
                return None
            case Multi(ops):
                return self._multi(holder, ops)

    def _multi(self, holder: object, ops: tuple[Any, ...]) -> list[Fault | None]:
        saved, self.tree = self.tree, dict(self.tree)
        for n, op in enumerate(ops):
            fault = self._write(holder, op)
            if fault is not None:
                self.tree = saved
                before: list[Fault | None] = [Fault.ROLLED_BACK] * n
                return [*before, fault, *[Fault.ROLLED_BACK] * (len(ops) - n - 1)]
        self.views[holder] = self.tree
        return [None] * len(ops)

    def _write(self, holder: object, op: Create | Set | Delete | Check) -> Fault | None:
        node = self.tree.get(op.path)
        if isinstance(op, Create):
            if node is not None:
                return Fault.NODE_EXISTS
            if op.path.rpartition("/")[0] not in self.tree and op.path.count("/") > 1:
                return Fault.NO_NODE
            owner = self.sessions[holder] if op.ephemeral else 0
            self.tree[op.path] = Node(op.value, 0, owner)
            return None
        if node is None:
            return Fault.NO_NODE
        if op.version not in (-1, node.version):
            return Fault.BAD_VERSION
        if isinstance(op, Set):
            _look_at_epochs(op, node)
            self.tree[op.path] = Node(op.value, node.version + 1, node.owner)
        elif isinstance(op, Delete):
            del self.tree[op.path]
        return None


def _look_at_epochs(op: Set, node: Node) -> None:
    """Whatever is written to a group: each epoch is given out once, and floors never fall."""
    if "/g/" not in op.path:
        return
    before, after = decode_group(node), decode_group(Node(op.value, 0))
    same = after.epoch == before.epoch and (after.owner, after.boot) == (before.owner, before.boot)
    if not (same or after.epoch > before.epoch) or after.floor < before.floor:
        raise Violation(f"EPOCH-REUSED {op.path}: {before} becomes {after}")
