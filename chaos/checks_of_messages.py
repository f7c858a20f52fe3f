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
SURE_MS = 30_000  # an entry may be so much older than what tells of it before it counts as young


def found(ledger: Ledger, check: str, row: Row, witness: str) -> Violation:
    """A violation at a row's group and topic."""
    return Violation(ledger.run, check, row.get("group"), row.get("topic"), witness)


def agree(ledger: Ledger) -> Iterator[Violation]:
    """One topic and sequence, and one index of a group, has one epoch and one message."""
    first: dict[Key, Row] = {}

    def torn(key: Key, row: Row, same: tuple[str, ...]) -> Iterator[Violation]:
        known = first.setdefault(key, row)
        if any(known.get(column) != row.get(column) for column in same):
            witness = f"{key}: {known['proc']} row {known['n']} and {row['proc']} row {row['n']}"
            yield found(ledger, "AGREE", row, witness)

    for row in ledger.of("deliver", "pub_ack", "final_read", "commit"):
        if row["epoch"] > 0 and row.get("topic") is not None:
            key = ("sequence", row["topic"], ledger.era(row), row["seq"])
            yield from torn(key, row, ("epoch", "mid"))
        if row["kind"] == "commit":
            key = ("index", row["group"], ledger.era(row), row["idx"])
            yield from torn(key, row, ("epoch", "mid", "topic", "seq"))


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
    yield from _silent(ledger)


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
        young = age_ms + SURE_MS < ledger.kept("max_age_ms", 180_000)
        length = int(head["seq"]) - first + 1
        return young and length < ledger.kept("max_messages", 1000)
    return seq > head["seq"] or (row["topic"], member, seq, row["mid"]) not in ledger.reads


def _lost_for_subscriptions(ledger: Ledger) -> Iterator[Violation]:
    acked: dict[Key, list[Acked]] = defaultdict(list)
    for each in ledger.acked:
        acked[each.row["topic"], each.era].append(each)
    for (topic, _, sub), stream in ledger.streams.items():
        spans: dict[Key, list[int]] = defaultdict(list)
        for told in stream:
            if told.row["kind"] == "deliver":
                spans[told.part, ledger.era(told.row)].append(told.row["seq"])
        seen = {(era, seq) for (_, era), seqs in spans.items() for seq in seqs}
        for (_, era), seqs in spans.items():
            for each in acked[topic, era]:
                seq = each.row["seq"]
                if min(seqs) <= seq <= max(seqs) and (era, seq) not in seen:
                    yield found(ledger, "NO_LOSS", each.row, f"acked {seq} never reached {sub}")


def _silent(ledger: Ledger) -> Iterator[Violation]:
    """Subscriptions that ended before something that they were owed: the last of it."""
    acked: dict[str, list[Acked]] = defaultdict(list)
    for each in ledger.acked:
        acked[each.row["topic"]].append(each)
    ends = _ends(ledger)
    for key, stream in ledger.streams.items():
        at = [
            (told.part, ledger.era(told.row), int(told.row["seq"]))
            for told in stream
            if told.row["kind"] != "sub_open" and extra(told.row, "outcome") != "denied"
        ]
        if not at or key[2] in ledger.slow:
            continue
        owed_at = ledger.calm_before(ends[key]) - ledger.bounds.heal_ms * 1000
        due = [each for each in acked[key[0]] if each.at <= owed_at]
        last = max(due, key=lambda each: (each.era, each.row["seq"]), default=None)
        if last and (last.era, last.row["seq"]) > max(at)[1:]:
            witness = f"acked {last.row['seq']} never reached {key[2]}, which stood at {max(at)[2]}"
            yield found(ledger, "NO_LOSS", last.row, witness)


def _ends(ledger: Ledger) -> dict[Key, int]:
    """When each subscription ended: with its last connection, by its user, or with its process."""
    closed = {(row["topic"], row["proc"], row["sub"]): row for row in ledger.of("sub_close")}
    down = {(row["proc"], row.get("conn")): row for row in ledger.of("link_down")}
    last: dict[str, Row] = {}
    for row in ledger.rows:
        last[row["proc"]] = max(row, last.get(row["proc"], row), key=lambda row: row["t_wall"])
    found_at: dict[Key, int] = {}
    for key, stream in ledger.streams.items():
        statuses = [told.row for told in stream if told.row["kind"] == "sub_status"]
        conns = [told.row["conn"] for told in stream if told.row.get("conn") is not None]
        ends = [last[key[1]], closed.get(key), down.get((key[1], conns[-1])) if conns else None]
        ends += [row for row in statuses[-1:] if extra(row, "outcome") == "denied"]
        found_at[key] = min(row["t_wall"] for row in ends if row)
    return found_at


def false_ack(ledger: Ledger) -> Iterator[Violation]:
    """The entry applied at an acknowledged position is the message that was acknowledged."""
    applied = {(position(row), publication(row), row["mid"]) for row in ledger.commits}
    for acked in ledger.acked:
        row = acked.row
        if (position(row), publication(row), row["mid"]) not in applied:
            witness = f"{row['pid']}/{row['pseq']} was acked at {row['seq']}, not committed there"
            yield found(ledger, "FALSE_ACK", row, witness)
    somewhere = {(*publication(row), row["mid"]) for row in ledger.commits}
    for row in ledger.of("pub_ack"):
        unplaced = row["epoch"] == 0 and row.get("pid") is not None
        if unplaced and (*publication(row), row["mid"]) not in somewhere:
            witness = f"{row['pid']}/{row['pseq']} was acked and never committed"
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
    cleared = ledger.lives("install", "floor")
    applied: dict[Key, list[Row]] = defaultdict(list)
    for row in ledger.commits:
        applied[row["topic"], row["proc"]].append(row)
    for row in ledger.of("window"):
        before = (r["n"] for r in cleared.get((row["group"], row["proc"]), []) if r["n"] < row["n"])
        since = max(before, default=-1)
        head = number(row, "head")
        if head is None:
            continue
        for had in applied[row["topic"], row["proc"]]:
            age_ms = (row["t_mono"] - had["t_mono"]) / 1000 + SURE_MS
            if (
                had["seq"] == row["seq"] - 1  # none is left out, so this one tells for all
                and since < had["n"] < row["n"]
                and head - had["seq"] < ledger.kept("max_messages", 1000)
                and age_ms < ledger.kept("max_age_ms", 180_000)
            ):
                yield found(ledger, "HONEST_GAP", row, f"{row['proc']} applied {had['seq']}")


def ack_truth(ledger: Ledger) -> Iterator[Violation]:
    """A message that is certainly not published never appears; an acked one never disappears."""
    applied = {(*publication(row), row["mid"]) for row in ledger.commits}
    for row in ledger.of("pub_nack"):
        certain = extra(row, "outcome") == "not_published" and row.get("pid") is not None
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
