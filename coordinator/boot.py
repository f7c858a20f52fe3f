"""How a member enters the cluster: its boot number, its registration, then the epochs.

The order matters: the epochs are read after the registration is visible, so an election that this
boot does not know of is held by someone who will see this boot in /members.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import msgspec

from coordinator.keeper import (
    Booted,
    BootRefused,
    Check,
    CoordNode,
    Create,
    Delete,
    Fault,
    KeeperOp,
    MemberNode,
    Multi,
    Node,
    Paths,
    Session,
    Set,
    decode_group,
    read_boots,
    read_many,
    read_one,
    release,
    synced,
)
from migratory.wire.ids import Boot


def boot(
    paths: Paths, me: str, uuid: str, cfg: bytes, groups: int, peer: str, client: str
) -> Generator[KeeperOp, Any, Booted | BootRefused]:
    """Enter the cluster as the next life of member `me`."""
    yield from _ensure(paths, me, groups)
    refused = yield from _agree_on_configuration(paths, cfg)
    if refused:
        return refused
    mine = Boot((yield from _next_boot(paths, me)), uuid)
    yield from _delete_old_nodes(paths, me, mine, groups)
    registered = yield from register(paths, me, MemberNode(mine, peer, client))
    if not registered:
        return BootRefused("ID_IN_USE", f"another process took the id {me} while this one started")
    yield from synced()
    nodes = yield from read_many([paths.group(g) for g in range(groups)])
    boots = yield from read_boots(paths)
    return Booted(mine, [decode_group(node) for node in nodes], boots)


def _ensure(paths: Paths, me: str, groups: int) -> Generator[KeeperOp, Any, None]:
    """Create what the first member finds missing; others find it there."""
    wanted = [paths.top, paths.root, paths.inc, paths.members, paths.groups]
    wanted.append(paths.incarnations(me))
    wanted.extend(paths.group(g) for g in range(groups))
    while True:
        nodes = yield from read_many(wanted)
        wanted = [path for path, node in zip(wanted, nodes, strict=True) if node is Fault.NO_NODE]
        if not wanted:
            return
        for path in wanted:
            yield Multi((Create(path, b""),))  # existing or lost: the next round looks again


def _agree_on_configuration(
    paths: Paths, cfg: bytes
) -> Generator[KeeperOp, Any, BootRefused | None]:
    """The first member writes the membership; a member whose file differs must not run."""
    while True:
        node = yield from read_one(paths.cfg)
        if node is Fault.NO_NODE:
            yield Multi((Create(paths.cfg, cfg),))
        elif node.value == cfg:
            return None
        else:
            return BootRefused(
                "CONFIG_MISMATCH",
                "the cluster in ZooKeeper has another membership than this file: "
                f"there {node.value.decode(errors='replace')}, here {cfg.decode()}",
            )


def _next_boot(paths: Paths, me: str) -> Generator[KeeperOp, Any, int]:
    """Count up /inc/<id>. A number that is lost on the way is skipped, never used twice."""
    while True:
        node = yield from read_one(paths.incarnations(me))
        n = int(node.value or b"0") + 1
        outcomes = yield Multi((Set(paths.incarnations(me), b"%d" % n, node.version),))
        if outcomes is not Fault.LOST and outcomes[0] is None:
            return n


def _delete_old_nodes(
    paths: Paths, me: str, mine: Boot, groups: int
) -> Generator[KeeperOp, Any, None]:
    """Remove what an earlier life of this member left and ZooKeeper has not expired yet."""
    coords = yield from read_many([paths.coord(g) for g in range(groups)])
    for g, held in enumerate(coords):
        if isinstance(held, Node):
            coord = msgspec.json.decode(held.value, type=CoordNode)
            if coord.owner == me and coord.boot < mine:
                yield from release(paths, g, coord.boot, coord.epoch)


def register(paths: Paths, me: str, node: MemberNode) -> Generator[KeeperOp, Any, bool]:
    """Create /members/<id>, also again after a lost session; False for a superseded life.

    Nothing is written once a later life has taken its number: what stands here may be its own.
    """
    value = msgspec.json.encode(node)
    while True:
        count = yield from read_one(paths.incarnations(me))
        held = yield from read_one(paths.member(me))
        session = yield Session()
        if int(count.value) > node.boot.n:
            return False
        ops: list[Create | Delete | Check] = [Check(paths.incarnations(me), count.version)]
        if isinstance(held, Node):
            if held.value == value and held.owner == session:
                return True
            ops.append(Delete(paths.member(me), held.version))
        ops.append(Create(paths.member(me), value, ephemeral=True))
        yield Multi(tuple(ops))  # whatever became of it, the next round looks again


def leave(paths: Paths, me: str, mine: Boot) -> Generator[KeeperOp, Any, None]:
    """Take the registration away, so that nobody waits for the session to end."""
    node = yield from read_one(paths.member(me))
    if isinstance(node, Node) and msgspec.json.decode(node.value, type=MemberNode).boot == mine:
        yield Multi((Delete(paths.member(me), node.version),))
