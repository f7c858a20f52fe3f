"""Members of an opened cluster on a stage, for tests of single decisions.

In a cluster of a, b and c the first group is coordinated by a, in epoch 1 above floor 1.
"""

from __future__ import annotations

from typing import Any

from cache.retention import Retention
from coordinator.cluster import Cluster
from coordinator.events import Publish, Received
from migratory.wire.entry import MSG, Entry
from migratory.wire.ids import Boot
from migratory.wire.peer import PeerMessage, Publication
from tests.scenarios.stage import Hold, Stage


def staged(members: str = "abc", faults: int = 1, groups: int = 1, **bounds: Any) -> Stage:
    """A cluster whose members have not started."""
    return Stage(Cluster("unit", tuple(members), faults, groups), Retention(**bounds))


def opened(members: str = "abc", faults: int = 1, groups: int = 1, **bounds: Any) -> Stage:
    """A cluster that has opened all its groups."""
    stage = staged(members, faults, groups, **bounds)
    for name in members:
        stage.start(name)
    stage.run(1.0)
    stage.trace.clear()
    return stage


def hears(stage: Stage, name: str, peer: str, *messages: PeerMessage) -> list[str]:
    """Let a member hear something of a peer's present life; what it does then."""
    boot = stage.lives[peer].member.ctx.boot
    return hears_life(stage, name, peer, boot, *messages)


def hears_life(stage: Stage, name: str, peer: str, boot: Boot, *messages: PeerMessage) -> list[str]:
    """Let a member hear something of one life of a peer; what it does then."""
    told = len(stage.trace)
    stage.give(stage.lives[name], Received(peer, boot, list(messages)))
    return stage.trace[told:]


def item(pseq: int = 1, payload: str = "x", pid: str = "p", ref: int = 1) -> Publication:
    """A publication on /t."""
    return Publication("/t", payload.encode(), 0, pid, pseq if pid else 0, ref)


def publish(stage: Stage, name: str, *items: Publication) -> list[str]:
    """Let a client publish at a member; what the member does at once."""
    told = len(stage.trace)
    stage.give(stage.lives[name], Publish(list(items)))
    return stage.trace[told:]


def hold(stage: Stage, direction: str, *kinds: str) -> None:
    """Let messages stay on the wire."""
    stage.holds.append(Hold(direction, kinds))


def entry(epoch: int, seq: int, payload: str = "x") -> Entry:
    """A message on /t without a publisher."""
    return Entry(epoch, MSG, 0, 0, "/t", seq, 2 if seq == 1 else 0, payload=payload.encode())
