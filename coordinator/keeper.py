"""The procedures that members carry out in ZooKeeper, as generators of primitive operations.

A generator yields a `KeeperOp` and gets its result: a value, or a `Fault`. The kazoo shell and the
simulated ZooKeeper both run these same generators, so the simulation covers them.

Invariants: every write is conditional (a version, or a node that must not exist); a write whose
outcome is unknown (`Fault.LOST`) is read back after a sync and never repeated blindly; no safety
rests on a session's state.
"""

from __future__ import annotations

import enum
from collections.abc import Generator
from typing import Any

import msgspec

from migratory.wire.ids import NO_BOOT, Boot


class Fault(enum.Enum):
    """Why an operation had no result."""

    NO_NODE = "no node"
    NODE_EXISTS = "node exists"
    BAD_VERSION = "bad version"
    ROLLED_BACK = "another operation of the transaction failed"
    LOST = "connection lost, outcome unknown"


class Get(msgspec.Struct, frozen=True):
    """Read a node: `Node` or a Fault."""

    path: str


class Gets(msgspec.Struct, frozen=True):
    """Read many nodes at once: list of Node or Fault, or Fault.LOST."""

    paths: list[str]


class Children(msgspec.Struct, frozen=True):
    """Names below a node: list[str] or a Fault."""

    path: str


class Sync(msgspec.Struct, frozen=True):
    """Reads after it see what ZooKeeper's leader had committed before: None or Fault.LOST."""


class Session(msgspec.Struct, frozen=True):
    """The number of the present session: int."""


class Create(msgspec.Struct, frozen=True):
    """Create a node that must not exist."""

    path: str
    value: bytes
    ephemeral: bool = False


class Set(msgspec.Struct, frozen=True):
    """Change a node that must have this version."""

    path: str
    value: bytes
    version: int


class Delete(msgspec.Struct, frozen=True):
    """Delete a node that must have this version (-1: any)."""

    path: str
    version: int


class Check(msgspec.Struct, frozen=True):
    """Demand a version."""

    path: str
    version: int


class Multi(msgspec.Struct, frozen=True):
    """All or nothing: list of one outcome per operation (None or Fault), or Fault.LOST."""

    ops: tuple[Create | Set | Delete | Check, ...]


KeeperOp = Get | Gets | Children | Sync | Session | Multi


class Node(msgspec.Struct, frozen=True):
    """What Get returns; `owner` is the session of an ephemeral node, else 0."""

    value: bytes
    version: int
    owner: int = 0


class GroupNode(msgspec.Struct, frozen=True):
    """/g/<g>: the epochs given out for a group and the first epoch of its history."""

    epoch: int
    floor: int
    owner: str
    boot: Boot


class CoordNode(msgspec.Struct, frozen=True):
    """/g/<g>/coord: who coordinates a group now."""

    epoch: int
    owner: str
    boot: Boot


class MemberNode(msgspec.Struct, frozen=True):
    """/members/<id>: a living member."""

    boot: Boot
    peer: str
    client: str


NEVER = GroupNode(0, 0, "", NO_BOOT)


class Paths:
    """Where things lie below /migratory/<name>."""

    def __init__(self, cluster: str) -> None:
        self.top = "/migratory"
        self.root = f"{self.top}/{cluster}"
        self.cfg = f"{self.root}/cfg"
        self.inc = f"{self.root}/inc"
        self.members = f"{self.root}/members"
        self.groups = f"{self.root}/g"

    def incarnations(self, member: str) -> str:
        """The counter of a member's boots."""
        return f"{self.inc}/{member}"

    def member(self, member: str) -> str:
        """The registration of a living member."""
        return f"{self.members}/{member}"

    def group(self, g: int) -> str:
        """The epochs of a group."""
        return f"{self.groups}/{g}"

    def coord(self, g: int) -> str:
        """The coordinator of a group."""
        return f"{self.groups}/{g}/coord"


# ---- results -----------------------------------------------------------------------------------


class Elected(msgspec.Struct, frozen=True):
    """The election is won: this epoch is ours alone."""

    g: int
    epoch: int
    floor: int
    version: int
    boots: dict[str, Boot]


class NotElected(msgspec.Struct, frozen=True):
    """The election is lost or was not held; what ZooKeeper showed."""

    g: int
    epoch: int
    floor: int
    coord: CoordNode | None


class Booted(msgspec.Struct, frozen=True):
    """A member is registered; `groups` were read after that."""

    boot: Boot
    groups: list[GroupNode]
    boots: dict[str, Boot]


class BootRefused(msgspec.Struct, frozen=True):
    """The member must not run: a named error and what it means."""

    code: str
    detail: str


Procedure = Generator[KeeperOp, Any, Any]


def decode_group(node: Node | Fault) -> GroupNode:
    """The content of /g/<g>; a group that was never touched has epoch 0."""
    if isinstance(node, Fault) or not node.value:
        return NEVER
    return msgspec.json.decode(node.value, type=GroupNode)


def read_one(path: str) -> Generator[KeeperOp, Any, Any]:
    """Get that is repeated until the connection holds."""
    while (node := (yield Get(path))) is Fault.LOST:
        pass
    return node


def read_many(paths: list[str]) -> Generator[KeeperOp, Any, list[Node | Fault]]:
    """Gets that is repeated until the connection holds."""
    while (nodes := (yield Gets(paths))) is Fault.LOST:
        pass
    result: list[Node | Fault] = nodes
    return result


def synced() -> Generator[KeeperOp, Any, None]:
    """Wait for ZooKeeper's leader: reads after it on this connection see what it had committed.

    The leader answers behind what it has under way and asks no quorum. One that was deposed and
    does not know it yet answers too: a read may then be old, which costs another attempt, since
    every write is conditional.
    """
    while (yield Sync()) is Fault.LOST:
        pass


def read_boots(paths: Paths) -> Generator[KeeperOp, Any, dict[str, Boot]]:
    """The boots of all members that are registered now."""
    while (names := (yield Children(paths.members))) is Fault.LOST:
        pass
    nodes = yield from read_many([paths.member(name) for name in names])
    return {
        name: msgspec.json.decode(node.value, type=MemberNode).boot
        for name, node in zip(names, nodes, strict=True)
        if isinstance(node, Node)
    }


def elect(
    paths: Paths, g: int, me: str, boot: Boot, may_depose: frozenset[str]
) -> Generator[KeeperOp, Any, Elected | NotElected]:
    """Take the next epoch of a group.

    An existing coordinator node is deleted only if it belongs to one of `may_depose` or to an
    earlier life of this member. Deposing costs availability at worst, never safety.
    """
    node, held = yield from read_many([paths.group(g), paths.coord(g)])
    if isinstance(node, Fault):
        return NotElected(g, 0, 0, None)
    state = decode_group(node)
    ops: list[Create | Set | Delete | Check] = []
    if isinstance(held, Node):
        coord = msgspec.json.decode(held.value, type=CoordNode)
        if coord.boot == boot or (coord.owner != me and coord.owner not in may_depose):
            return NotElected(g, state.epoch, state.floor, coord)
        ops.append(Delete(paths.coord(g), held.version))
    epoch = state.epoch + 1
    ops.append(
        Set(
            paths.group(g),
            msgspec.json.encode(GroupNode(epoch, state.floor, me, boot)),
            node.version,
        )
    )
    mine = msgspec.json.encode(CoordNode(epoch, me, boot))
    ops.append(Create(paths.coord(g), mine, ephemeral=True))
    outcomes = yield Multi(tuple(ops))
    if outcomes is Fault.LOST:
        won = yield from _read_back(paths, g, mine)
    else:
        won = all(outcome is None for outcome in outcomes)
    if not won:
        state = decode_group((yield from read_one(paths.group(g))))
        return NotElected(g, state.epoch, state.floor, None)
    boots = yield from read_boots(paths)
    return Elected(g, epoch, state.floor, node.version + 1, boots)


def _read_back(paths: Paths, g: int, mine: bytes) -> Generator[KeeperOp, Any, bool]:
    """Whether a transaction of unknown outcome took place: its node is there and is ours."""
    yield from synced()
    node = yield from read_one(paths.coord(g))
    session = yield Session()
    return isinstance(node, Node) and node.value == mine and node.owner == session


def release(paths: Paths, g: int, boot: Boot, epoch: int) -> Generator[KeeperOp, Any, None]:
    """Delete our coordinator node of this epoch, if it is still there.

    Every new node has version 0, so the version of what was read does not tell it from the node
    of a later epoch: that of the group does, since each epoch changes it.
    """
    while True:
        group = yield from read_one(paths.group(g))
        held = yield from read_one(paths.coord(g))
        if isinstance(group, Fault) or isinstance(held, Fault):
            return
        coord = msgspec.json.decode(held.value, type=CoordNode)
        if coord.boot != boot or coord.epoch != epoch or decode_group(group).epoch > epoch:
            return
        ops = (Check(paths.group(g), group.version), Delete(paths.coord(g), held.version))
        outcomes = yield Multi(ops)
        if outcomes is not Fault.LOST and all(outcome is None for outcome in outcomes):
            return


def reattach(
    paths: Paths, g: int, me: str, boot: Boot, epoch: int
) -> Generator[KeeperOp, Any, GroupNode | None]:
    """After a lost session: put our coordinator node back under the same epoch.

    None when we still coordinate; the state of the group when another epoch was given out.
    """
    mine = msgspec.json.encode(CoordNode(epoch, me, boot))
    while True:
        node = yield from read_one(paths.group(g))
        state = decode_group(node)
        if isinstance(node, Fault) or state.epoch != epoch or state.boot != boot:
            return state
        held = yield from read_one(paths.coord(g))
        session = yield Session()
        ops: list[Create | Set | Delete | Check] = [Check(paths.group(g), node.version)]
        if isinstance(held, Node):
            if held.owner == session and held.value == mine:
                return None
            # Ours from the old session, not yet expired: replace it, or it would vanish later.
            ops.append(Delete(paths.coord(g), held.version))
        ops.append(Create(paths.coord(g), mine, ephemeral=True))
        outcomes = yield Multi(tuple(ops))
        if outcomes is not Fault.LOST and all(outcome is None for outcome in outcomes):
            return None


def raise_floor(
    paths: Paths, g: int, me: str, boot: Boot, epoch: int
) -> Generator[KeeperOp, Any, bool]:
    """Make `epoch`, which we hold, the first epoch of the group's history."""
    wanted = GroupNode(epoch, epoch, me, boot)
    while True:
        node = yield from read_one(paths.group(g))
        state = decode_group(node)
        if state == wanted:
            return True
        if isinstance(node, Fault) or state.epoch != epoch or state.boot != boot:
            return False
        op = Set(paths.group(g), msgspec.json.encode(wanted), node.version)
        outcomes = yield Multi((op,))
        if outcomes is Fault.LOST:
            yield from synced()
