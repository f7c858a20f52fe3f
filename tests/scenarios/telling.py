"""How messages, entries and effects are written in a trace: short, and the same every time.

The group is left out (`g1` stands before a message of another group than the first), and so is the
floor except where it decides something.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from cache.topic import TopicRecord
from coordinator.events import Note, Ready
from coordinator.keeper import Elected, GroupNode, NotElected
from migratory.wire.entry import MSG, NOOP, Entry
from migratory.wire.peer import (
    App,
    Catch,
    Fetched,
    Nack,
    PeerMessage,
    Preq,
    Prom,
    Pub,
    Publication,
    PubResult,
    Refusal,
    SyncChunk,
    TopicState,
)
from migratory.wire.shard import PubAck

LONGEST = 24  # bytes of a payload that are shown


def tell_payload(payload: bytes) -> str:
    """A payload, or its size when it is long."""
    return f'"{payload.decode()}"' if len(payload) <= LONGEST else f"<{len(payload)} bytes>"


def tell_entry(idx: int, entry: Entry) -> str:
    """One place of a log: index@epoch, and what is there."""
    if entry.kind != MSG:
        return f"{idx}@{entry.epoch} {'NOOP' if entry.kind == NOOP else 'TICK'}"
    first = " first" if entry.first else ""
    pub = f" {entry.pid}/{entry.pseq}" if entry.pid else ""
    return (
        f"{idx}@{entry.epoch} {entry.topic}:{entry.seq}{first}{pub} {tell_payload(entry.payload)}"
    )


def tell_entries(after: int, entries: list[Entry]) -> str:
    """The entries that follow an index."""
    return f"[{', '.join(tell_entry(idx, e) for idx, e in enumerate(entries, after + 1))}]"


def tell_item(item: Publication) -> str:
    """One publication."""
    pub = f" {item.pid}/{item.pseq}" if item.pid else ""
    return f"#{item.ref} {item.topic}{pub} {tell_payload(item.payload)}"


def tell_topic(topic: TopicState) -> str:
    """A topic as a transfer carries it."""
    known = "".join(f" {p.pid}/{p.pseq}" for p in topic.publishers)
    return (
        f"{topic.topic} idx={topic.idx} head={topic.epoch}:{topic.seq} start={topic.start}"
        f" messages={len(topic.entries)}{known}"
    )


def tell_record(topic: str, record: TopicRecord) -> str:
    """A topic as a member knows it."""
    known = "".join(f" {p.pid}/{p.pseq}" for p in record.publishers())
    history = ", ".join(
        f"{e.seq}@{e.epoch} {tell_payload(e.payload)}" for e in record.state(topic).entries
    )
    return (
        f"{topic} idx={record.idx} head={record.epoch}:{record.seq} start={record.start}"
        f" vacant={record.vacant} [{history}]{known}"
    )


def tell_message(message: PeerMessage) -> str:
    """One message between members."""
    g = getattr(message, "g", 0)
    return f"{f'g{g} ' if g else ''}{type(message).__name__} {_told(message)}"


def _told(message: PeerMessage) -> str:
    match message:
        case App():
            told = f"epoch={message.epoch} prev={message.prev}@{message.prev_epoch}"
            return f"{told} commit={message.commit} {tell_entries(message.prev, message.entries)}"
        case Fetched():
            return f"epoch={message.epoch} {tell_entries(message.after, message.entries)}"
        case Catch():
            told = f"after={message.after}@{message.after_epoch}"
            return f"{told} {tell_entries(message.after, message.entries)}"
        case Pub():
            items = ", ".join(tell_item(item) for item in message.items)
            return f"contact={message.contact} [{items}]"
        case PubResult():
            return _tell_result_of_pub(message)
        case SyncChunk():
            topics = "; ".join(tell_topic(topic) for topic in message.topics)
            last = (
                f" last target={message.target} commit={message.commit} vacant={message.vacant}"
                if message.last
                else ""
            )
            return f"transfer={message.transfer} n={message.n} [{topics}]{last}"
    floor = ("floor",) if isinstance(message, Nack | Preq | Prom) else ()
    return _fields(message, *floor)


def _tell_result_of_pub(message: PubResult) -> str:
    refused = [
        f"#{r.item.ref} {r.code}{f' expected={r.expected}' if r.expected else ''}"
        for r in message.refused
    ]
    settled = [f"#{s.item.ref} settled at {s.position}" for s in message.settled]
    return f"contact={message.contact} leader={message.leader or '-'} {[*refused, *settled]}"


def _fields(message: Any, *shown: str) -> str:
    names = [n for n in message.__struct_fields__ if n not in ("g", "floor") or n in shown]
    return " ".join(f"{name}={getattr(message, name)}" for name in names)


def tell_result(value: object) -> str:
    """What a ZooKeeper procedure ended with."""
    match value:
        case Elected():
            lives = " ".join(f"{m}.{b.n}" for m, b in sorted(value.boots.items()))
            return f"Elected epoch={value.epoch} floor={value.floor} registered: {lives}"
        case NotElected():
            holder = value.coord.owner if value.coord is not None else "-"
            return f"NotElected epoch={value.epoch} floor={value.floor} coord={holder}"
        case GroupNode():
            return f"epoch={value.epoch} floor={value.floor} owner={value.owner}"
    return msgspec.json.encode(value).decode()


def tell_effects(ready: Ready) -> Iterator[str]:
    """The effects of a step that are neither sends nor procedures, in the order of their duty."""
    for note in ready.notes:
        yield f"* {_tell_note(note)}"
    for g in ready.installed:
        yield f"replaces the state of g{g}"
    for delivered in ready.delivered:
        for idx, entry in enumerate(delivered.entries, delivered.idx):
            yield f"delivers {tell_entry(idx, entry)}"
    for answer in ready.answers:
        yield _tell_answer(answer)
    for barrier in ready.barriers:
        yield f"barrier #{barrier.ref} {'passed' if barrier.ok else 'not passed'}"
    if ready.close_clients:
        yield f"closes its clients: {ready.close_clients}"
    if ready.drained:
        yield "is drained"
    if ready.exit:
        yield f"exits: {ready.exit}"


def _tell_note(note: Note) -> str:
    group = f" g{note.g} epoch={note.epoch} idx={note.idx}" if note.g >= 0 else ""
    return f"{note.kind}{group}{f' ({note.detail})' if note.detail else ''}"


def _tell_answer(answer: PubAck | Refusal) -> str:
    if isinstance(answer, PubAck):
        return f"acks #{answer.ref} at {answer.position}{' duplicate' if answer.duplicate else ''}"
    told = f"refuses #{answer.ref} {answer.code}"
    if answer.expected:
        told += f" expected={answer.expected}"
    return f"{told} leader={answer.leader}" if answer.leader else told
