"""Which part of a replica handles which message about its group."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from coordinator.replica import Replica
from coordinator.takeover import on_fetch
from coordinator.transfer import Incoming
from migratory.wire.peer import (
    Ack,
    App,
    Barrier,
    BarrierReq,
    Catch,
    CatchReq,
    Commit,
    Fetch,
    Fetched,
    Hint,
    Nack,
    Preq,
    Prom,
    Pub,
    PubResult,
    SyncChunk,
    SyncHead,
    SyncPull,
    SyncReq,
)


def _to_leading(name: str) -> Callable[[Replica, str, Any], None]:
    def handle(replica: Replica, peer: str, message: Any) -> None:
        if replica.leading is not None:
            getattr(replica.leading, name)(peer, message)

    return handle


def _on_prom(replica: Replica, peer: str, message: Prom) -> None:
    if replica.bid is not None:
        replica.bid.on_prom(peer, message)


def _on_fetched(replica: Replica, peer: str, message: Fetched) -> None:
    if replica.bid is not None:
        replica.bid.on_fetched(peer, message)


def _on_sync_head(replica: Replica, peer: str, message: SyncHead) -> None:
    """A transfer begins, if its epoch may still speak to this member."""
    if message.epoch < replica.promised:
        replica.ctx.send(peer, Nack(replica.g, replica.floor, replica.promised))
        return
    if replica.normal and message.base <= replica.proved(message.epoch):
        return  # late: this member has passed that point
    current = replica.incoming
    if (
        current is not None
        and current.epoch == message.epoch
        and (current.head.transfer >= message.transfer)
    ):
        return
    replica.promise(message.epoch, peer)
    replica.incoming = Incoming(replica, peer, message)


def _on_sync_chunk(replica: Replica, peer: str, message: SyncChunk) -> None:
    incoming = replica.incoming
    if incoming is not None and incoming.leader == peer and incoming.epoch == message.epoch:
        incoming.on_chunk(message)


GROUP_MESSAGES: dict[type, Callable[[Replica, str, Any], None]] = {
    Preq: Replica.on_preq,
    Prom: _on_prom,
    Nack: Replica.on_nack,
    App: Replica.on_app,
    Ack: _to_leading("on_ack"),
    Commit: Replica.on_commit,
    Hint: _to_leading("on_hint"),
    Fetch: on_fetch,
    Fetched: _on_fetched,
    SyncReq: _to_leading("on_sync_req"),
    SyncHead: _on_sync_head,
    SyncPull: _to_leading("on_pull"),
    SyncChunk: _on_sync_chunk,
    CatchReq: Replica.on_catch_req,
    Catch: Replica.on_catch,
    Pub: lambda replica, peer, message: replica.contact.on_pub(peer, message),
    PubResult: lambda replica, peer, message: replica.contact.on_result(peer, message),
    BarrierReq: lambda replica, peer, message: replica.contact.on_barrier_req(peer, message),
    Barrier: lambda replica, _, message: replica.contact.on_barrier(message),
}
