"""What must be true of a cluster at rest, when all faults are over."""

from __future__ import annotations

import msgspec

from coordinator.keeper import CoordNode, Node, Paths, decode_group
from coordinator.member import Member
from coordinator.replica import Replica
from tests.simulation.checker import Checker, Violation


def unrest(members: list[Member], tree: dict[str, Node]) -> str:
    """What is still missing: one coordinator that ZooKeeper knows, all NORMAL, equal ends."""
    for g in range(len(members[0].replicas)):
        replicas = [m.replicas[g] for m in members]
        leaders = [m for m in members if m.replicas[g].leading is not None]
        if len(leaders) != 1:
            return f"group {g} has {len(leaders)} coordinators: {replicas}"
        leader = leaders[0]
        first = leader.replicas[g]
        if first.leading is not None and first.leading.handing_to:
            return f"group {g} is being handed over"
        for r in replicas:
            if not r.normal or r.commit != first.log.last or r.log.last != r.commit:
                return f"group {g} is not level: {r} of {first}"
            if r.floor != first.floor:
                return f"group {g} has two floors: {r} {first}"
        if trouble := _not_shown(leader, first, tree):
            return trouble
    return ""


def _not_shown(leader: Member, replica: Replica, tree: dict[str, Node]) -> str:
    """ZooKeeper shows the coordinator, or nobody if a later epoch was given out and given up."""
    paths = Paths(leader.ctx.cluster.name)
    node = tree.get(paths.coord(replica.g))
    mine = CoordNode(replica.epoch, leader.ctx.me, leader.ctx.boot)
    if node is not None:
        shown = msgspec.json.decode(node.value, type=CoordNode)
        return "" if shown == mine else f"ZooKeeper has {shown} instead of {mine}"
    given_out = decode_group(tree[paths.group(replica.g)]).epoch
    return "" if given_out > replica.epoch else f"ZooKeeper lacks {mine}"


def compare(checker: Checker, members: list[Member]) -> None:
    """At rest all members have the same heads, publishers and forgotten topics; nothing is lost."""
    for g in range(len(members[0].replicas)):
        pictures = [_picture(m.replicas[g]) for m in members]
        for member, picture in zip(members, pictures, strict=True):
            if picture != pictures[0]:
                raise Violation(
                    f"STATE of group {g} differs: {members[0]} {pictures[0]}\n{member} {picture}"
                )
            checker.shows(member.replicas[g])
            _complete(checker, member.replicas[g])


def _complete(checker: Checker, replica: Replica) -> None:
    """Everything ever committed in the present history is in every member's log."""
    log = checker.history(replica.g, replica.floor).log
    if checker.present(replica.g).log is not log:
        raise Violation(f"LOST: a later history than that of {replica} was opened")
    if log and max(log) != replica.commit:
        raise Violation(f"LOST: {replica} ends before {max(log)}")
    for idx in range(replica.log.base + 1, replica.commit + 1):
        if log[idx] != replica.log.entry(idx):
            raise Violation(f"AGREEMENT idx {idx} at the end: {replica}")


def _picture(replica: Replica) -> object:
    topics = [
        (
            name, record.idx, record.epoch, record.seq, record.start,
            tuple(sorted((p.pid, p.pseq, p.idx) for p in record.publishers())),
        )
        for name, record in replica.state.topics.items()
    ]  # fmt: skip
    return replica.state.vacant, sorted(topics)
