"""A member's rows: what its deciders tell the watch, as docs/traces.md wants it.

The watch is told in the moment when things happen, so the order of the rows is the order of the
events: append before ack before commit, promise before what follows from it. The driver flushes
before it sends anything: what another process can know of is in the trace, whatever happens next.
There is one exception: while the disk takes nothing, rows wait in memory (`migratory.trace_files`),
and a member that is killed then loses the end of its trace without a hole in the numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from coordinator.events import Note
from coordinator.member import Member
from migratory.trace_files import TraceWriter
from migratory.wire.entry import MSG, NOOP, Entry
from migratory.wire.shard import Gap, Page, ToFront
from migratory.wire.trace import flag, mid_of

_OWN = {"role": "coordinator"}
_OTHERS = {"role": "follower"}
_FIRST = {"first": "true"}


class MemberTrace:
    """Installs itself as a member's watch; its first row is the boot."""

    def __init__(self, writer: TraceWriter, member: Member) -> None:
        self._writer = writer
        self._replicas = member.replicas
        ctx = member.ctx
        ctx.watch = self
        extra = {
            "uuid": ctx.boot.uuid,
            "members": ",".join(ctx.cluster.members),
            "copies": str(ctx.cluster.copies),
            "promises": str(ctx.cluster.promises),
            "sample": str(writer.sample),
            "max_messages": str(ctx.retention.max_messages),
            "max_age_ms": str(ctx.retention.max_age_ms),
        }
        writer.row("boot", extra=extra)

    def noted(self, note: Note) -> None:
        """One row for each note of a kind that traces have."""
        g, epoch, row = note.g, note.epoch, self._writer.row
        match note.kind:
            case "ack" | "install" | "told":
                row(note.kind, group=g, epoch=epoch, idx=note.idx)
            case "quorum":
                row("quorum", group=g, epoch=epoch, idx=note.idx, extra={"by": note.detail})
            case "elect":
                row("elect", group=g, epoch=epoch)
            case "floor":  # whoever gives the history up itself keeps what it holds
                row("floor", group=g, epoch=epoch, extra={"normal": flag(self._replicas[g].normal)})
            case "promised":  # every promise, not only those that a candidate asked for
                extra = {"to": note.detail, "normal": flag(self._replicas[g].normal)}
                row("promise", group=g, epoch=epoch, idx=note.idx, extra=extra)
            case "open" | "normal":
                extra = {"floor": str(self._replicas[g].floor)}
                row(note.kind, group=g, epoch=epoch, idx=note.idx, extra=extra)
            case "step_down":
                row(note.kind, group=g, epoch=epoch, extra={"why": note.detail})
            case _:  # of interest to logs only
                pass

    def stored(self, g: int, first: int, entries: Sequence[Entry], *, own: bool) -> None:
        """An append for each entry."""
        self._rows("append", g, first, entries, _OWN if own else _OTHERS)

    def applied(self, g: int, first: int, entries: Sequence[Entry]) -> None:
        """A commit for each entry."""
        self._rows("commit", g, first, entries, None)

    def isolated(self, code: str) -> None:
        """Clients are sent away."""
        self._writer.row("isolate", extra={"code": code})

    def answered(self, messages: Iterable[ToFront]) -> None:
        """What was there when a resume was answered with a gap."""
        for message in messages:
            if isinstance(message, Page) and isinstance(message.outcome, Gap):
                gap = message.outcome
                extra = {"head": str(gap.last)}
                self._writer.row("window", topic=message.topic, seq=gap.first, extra=extra)

    def flush(self) -> None:
        """Write what waits."""
        self._writer.flush()

    def _rows(
        self, kind: str, g: int, first: int, entries: Sequence[Entry], role: dict[str, str] | None
    ) -> None:
        row, keeps = self._writer.row, self._writer.keeps
        for idx, entry in enumerate(entries, first):
            if entry.kind != MSG:
                extra = {"kind": "noop" if entry.kind == NOOP else "tick"} | (role or {})
                row(kind, group=g, epoch=entry.epoch, idx=idx, extra=extra)
            elif keeps(entry.topic):
                row(
                    kind, group=g, topic=entry.topic, epoch=entry.epoch, seq=entry.seq, idx=idx,
                    pid=entry.pid or None, pseq=entry.pseq or None, mid=mid_of(entry.payload),
                    extra=role or (_FIRST if entry.first else None),
                )  # fmt: skip
