"""Quick checks of what publishers and subscribers saw; docs/guarantees.md says what each means.

The dumb twin of the Spark checks: the same sentences over plain dictionaries, for small traces.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from chaos.ledger import (
    Acked,
    Key,
    Ledger,
    Row,
    Violation,
    extra,
    flag,
    number,
    position,
    publication,
)

REFUSED = "broken delivery"  # why a client left a contact that sent what could not follow
SURE_MS = 30_000  # an entry may be so much older than its commit row before it counts as young


def found(ledger: Ledger, check: str, row: Row, witness: str) -> Violation:
    """A violation at a row's group and topic."""
    return Violation(ledger.run, check, row.get("group"), row.get("topic"), witness)


def agree(ledger: Ledger) -> Iterator[Violation]:
    """One topic and sequence, and one index of a group, has one epoch and one message."""
    first: dict[Key, Row] = {}

    def torn(key: Key, row: Row) -> Iterator[Violation]:
        known = first.setdefault(key, row)
        if (known["epoch"], known.get("mid")) != (row["epoch"], row.get("mid")):
            witness = f"{key}: {known['proc']} row {known['n']} and {row['proc']} row {row['n']}"
            yield found(ledger, "AGREE", row, witness)

    for row in ledger.of("deliver", "pub_ack", "final_read", "commit"):
        if row["epoch"] > 0 and row.get("topic") is not None:
            yield from torn(("sequence", row["topic"], ledger.era(row), row["seq"]), row)
        if row["kind"] == "commit":
            yield from torn(("index", row["group"], ledger.era(row), row["idx"]), row)


def no_gap(ledger: Ledger) -> Iterator[Violation]:
    """Consecutive deliveries differ by one, unless something between them explains it.

    Clients refuse what does not follow, and leave: then nothing of it was delivered.
    """
    for stream in ledger.streams.values():
        for row, expected, _, _, _ in stream:
            if row["kind"] != "deliver" or expected is None or expected < 0:
                continue
            seq = row["seq"]
            if seq != expected and not (flag(row, "first") and seq > expected):
                yield found(ledger, "NO_GAP", row, f"{row['sub']} expected {expected}, got {seq}")
    for row in ledger.of("link_down"):
        if str(extra(row, "why")).startswith(REFUSED):
            yield found(ledger, "NO_GAP", row, f"{row['conn']}: {extra(row, 'why')}")


def no_phantom(ledger: Ledger) -> Iterator[Violation]:
    """What was delivered or read at the end was published and committed."""
    sent = {(row["topic"], row["mid"]) for row in ledger.of("pub_send")}
    applied = {(*position(row), row["mid"]) for row in ledger.commits}
    for row in ledger.of("deliver", "final_read"):
        if (row["topic"], row["mid"]) not in sent:
            yield found(ledger, "NO_PHANTOM", row, f"{row['mid']} was never published")
        if (*position(row), row["mid"]) not in applied:
            yield found(ledger, "NO_PHANTOM", row, f"{row['mid']} was never committed")


def no_loss(ledger: Ledger) -> Iterator[Violation]:
    """An acknowledged message is in every final read and reached every subscription across it."""
    members = {member for heads in ledger.heads.values() for member in heads}
    for acked in ledger.acked:
        for member in sorted(members):
            if _lost_at(ledger, acked, member):
                witness = f"acked {acked.row['seq']} ({acked.row['mid']}) is not at {member}"
                yield found(ledger, "NO_LOSS", acked.row, witness)
    yield from _lost_for_subscriptions(ledger)


def _lost_at(ledger: Ledger, acked: Acked, member: str) -> bool:
    row = acked.row
    seq = int(row["seq"])
    head = ledger.heads.get(row["topic"], {}).get(member)
    if head is None:
        return acked.era == ledger.last_floor(row)
    if ledger.era(head) != acked.era:
        return ledger.era(head) < acked.era
    first = number(head, "first") or 0
    if seq < first:
        age_ms = (head["t_wall"] - acked.at) / 1000
        young = age_ms < ledger.setting("run", "max_age_ms", 180_000) - 1000
        length = int(head["seq"]) - first + 1
        return young and length < ledger.setting("run", "max_messages", 1000)
    return seq > head["seq"] or (row["topic"], member, seq, row["mid"]) not in ledger.reads


def _lost_for_subscriptions(ledger: Ledger) -> Iterator[Violation]:
    acked: dict[Key, list[Acked]] = defaultdict(list)
    for each in ledger.acked:
        acked[each.row["topic"], each.era].append(each)
    closed = {(row["topic"], row["proc"], row["sub"]) for row in ledger.of("sub_close")}
    down = {(row["proc"], row.get("conn")) for row in ledger.of("link_down")}
    ends: dict[str, int] = defaultdict(int)
    for row in ledger.rows:
        ends[row["proc"]] = max(ends[row["proc"]], row["t_wall"])
    for key, stream in ledger.streams.items():
        _, proc, sub = key
        spans: dict[Key, list[int]] = defaultdict(list)
        for told in stream:
            if told.row["kind"] == "deliver":
                spans[told.part, ledger.era(told.row)].append(told.row["seq"])
        seen = {seq for seqs in spans.values() for seq in seqs}
        owes = key not in closed and (proc, stream[-1].row.get("conn")) not in down
        for (part, era), seqs in spans.items():
            tail = owes and part == stream[-1].part
            owed_at = ends[proc] - ledger.bounds.heal_ms * 1000 if tail else -1
            for each in acked[key[0], era]:
                seq = each.row["seq"]
                due = min(seqs) <= seq <= max(seqs) or (seq > max(seqs) and each.at <= owed_at)
                if due and seq not in seen:
                    yield found(ledger, "NO_LOSS", each.row, f"acked {seq} never reached {sub}")


def false_ack(ledger: Ledger) -> Iterator[Violation]:
    """The entry applied at an acknowledged position is the message that was acknowledged."""
    applied = {(position(row), publication(row), row["mid"]) for row in ledger.commits}
    for acked in ledger.acked:
        row = acked.row
        if (position(row), publication(row), row["mid"]) not in applied:
            witness = f"{row['pid']}/{row['pseq']} was acked at {row['seq']}, not committed there"
            yield found(ledger, "FALSE_ACK", row, witness)


def _placed(ledger: Ledger) -> dict[Key, dict[Key, Row]]:
    """Per floor, topic and publisher: where its numbers are."""
    placed: dict[Key, dict[Key, Row]] = defaultdict(dict)
    for row in (*ledger.commits, *(acked.row for acked in ledger.acked)):
        if row.get("pid") is not None:
            key = (row["topic"], ledger.era(row), row["pid"])
            placed[key][row["seq"], row["pseq"]] = row
    return placed


def pub_order(ledger: Ledger) -> Iterator[Violation]:
    """Per publisher and topic, the order of sequences is the publisher's own order."""
    for places in _placed(ledger).values():
        above = 0
        for seq, pseq in sorted(places):
            if pseq < above:
                witness = f"number {pseq} has sequence {seq}, after {above}"
                yield found(ledger, "PUB_ORDER", places[seq, pseq], witness)
            above = max(above, pseq)


def once(ledger: Ledger) -> Iterator[Violation]:
    """A publication has one sequence, and a subscription sees a sequence once."""
    for places in _placed(ledger).values():
        at: dict[int, int] = {}
        for (seq, pseq), row in places.items():
            if at.setdefault(pseq, seq) != seq:
                yield found(ledger, "ONCE", row, f"{row['pid']}/{pseq} is at {at[pseq]} and {seq}")
    seen: set[Key] = set()
    for row in ledger.of("deliver"):
        key = (row["topic"], row["proc"], row["sub"], ledger.era(row), row["seq"])
        if key in seen:
            yield found(ledger, "ONCE", row, f"{row['sub']} saw {row['seq']} twice")
        seen.add(key)


def honest_gap(ledger: Ledger) -> Iterator[Violation]:
    """A GAP's range was really out of that member's history; a RESET had a reason."""
    windows = {(row["topic"], row["node"], row["seq"]) for row in ledger.of("window")}
    applied = {position(row) for row in ledger.commits}
    for stream in ledger.streams.values():
        for row, _, held, _, _ in stream:
            if row["kind"] != "sub_status":
                continue
            outcome = extra(row, "outcome")
            if outcome == "gap":
                first = number(row, "first")
                told = (row["topic"], extra(row, "member"), first) in windows
                if not told or (number(row, "asked") or 0) >= (first or 0):
                    yield found(ledger, "HONEST_GAP", row, f"the history did not begin at {first}")
            elif outcome == "reset" and held and ledger.era(held) == ledger.last_floor(row):
                unknown = extra(row, "reason") == "unknown_position"
                if unknown and position(held) not in applied:
                    continue
                witness = f"{row['sub']} was reset from {held['seq']}, which is still valid"
                yield found(ledger, "HONEST_GAP", row, witness)
    yield from _held_after_all(ledger)


def _held_after_all(ledger: Ledger) -> Iterator[Violation]:
    cleared = {key: rows[-1]["n"] for key, rows in ledger.lives("install", "floor").items()}
    applied: dict[Key, list[Row]] = defaultdict(list)
    for row in ledger.commits:
        applied[row["topic"], row["proc"]].append(row)
    for row in ledger.of("window"):
        since = cleared.get((row["group"], row["proc"]), -1)
        head = number(row, "head") or 0
        for had in applied[row["topic"], row["proc"]]:
            age_ms = (row["t_mono"] - had["t_mono"]) / 1000 + SURE_MS
            if (
                had["seq"] < row["seq"]
                and since < had["n"] < row["n"]
                and head - had["seq"] < ledger.setting("run", "max_messages", 1000)
                and age_ms < ledger.setting("run", "max_age_ms", 180_000)
            ):
                yield found(ledger, "HONEST_GAP", row, f"{row['proc']} applied {had['seq']}")


def ack_truth(ledger: Ledger) -> Iterator[Violation]:
    """A message that is certainly not published never appears; an acked one never disappears."""
    applied = {(*publication(row), row["mid"]) for row in ledger.commits}
    for row in ledger.of("pub_nack"):
        certain = extra(row, "outcome") == "not_published"
        if certain and (*publication(row), row["mid"]) in applied:
            yield found(ledger, "ACK_TRUTH", row, f"{row['pid']}/{row['pseq']} was committed")
    anywhere = {(topic, seq, mid) for topic, _, seq, mid in ledger.reads}
    for acked in ledger.acked:
        row = acked.row
        heads = [
            head
            for head in ledger.heads.get(row["topic"], {}).values()
            if ledger.era(head) == acked.era
        ]
        first = min((number(head, "first") or 0 for head in heads), default=None)
        due = first is not None and row["seq"] >= first
        if due and (row["topic"], row["seq"], row["mid"]) not in anywhere:
            yield found(ledger, "ACK_TRUTH", row, f"no member has {row['pid']}/{row['pseq']}")
