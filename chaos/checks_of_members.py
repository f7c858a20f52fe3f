"""Quick checks of what members did, and of how long things took.

The dumb twin of the Spark checks; docs/guarantees.md says what each means.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from chaos.checks_of_messages import found
from chaos.ledger import Fault, Key, Ledger, Row, Violation, extra, flag, life, number


def epoch_mono(ledger: Ledger) -> Iterator[Violation]:
    """Epochs never fall: in deliveries of a subscription, in each kind of act of a member."""
    highest: dict[Key, int] = {}
    for row in ledger.of("deliver", "promise", "open", "ack", "commit", "normal"):
        stream = (row["topic"], row["sub"]) if row["kind"] == "deliver" else ()
        key = (row["kind"], row["group"], row["proc"], *stream)
        if row["epoch"] < highest.get(key, 0):
            witness = f"{row['kind']} of epoch {row['epoch']} after {highest[key]}"
            yield found(ledger, "EPOCH_MONO", row, witness)
        highest[key] = max(row["epoch"], highest.get(key, 0))


def one_coord(ledger: Ledger) -> Iterator[Violation]:
    """One life of one member is elected, opens and makes entries in an epoch of a group."""
    owner: dict[Key, Row] = {}
    for row in ledger.of("elect", "open", "append"):
        if row["kind"] == "append" and extra(row, "role") != "coordinator":
            continue
        known = owner.setdefault((row["group"], row["epoch"]), row)
        if life(known) != life(row):
            witness = f"epoch {row['epoch']}: {known['proc']} and {row['proc']}"
            yield Violation(ledger.run, "ONE_COORD", row["group"], None, witness)


def no_below_promise(ledger: Ledger) -> Iterator[Violation]:
    """A life of a member opens, makes and acknowledges nothing below an earlier promise."""
    for rows in ledger.lives("promise", "open", "append", "ack").values():
        promised = 0
        for row in rows:
            if row["kind"] == "promise":
                promised = max(promised, row["epoch"])
            elif row["kind"] == "append" and extra(row, "role") != "coordinator":
                continue
            elif row["epoch"] < promised:
                witness = f"{row['kind']} of epoch {row['epoch']}, promised {promised}"
                yield found(ledger, "NO_BELOW_PROMISE", row, witness)


def recover_silent(ledger: Ledger) -> Iterator[Violation]:
    """While it is not normal in a group, a life gives no counted promise and acknowledges nothing.

    It is not before its row says so, nor after one that says that a floor made it forget.
    """
    kinds = ("promise", "ack", "normal", "install", "append", "commit", "floor")
    for rows in ledger.lives(*kinds).values():
        normal = installed = False
        for row in rows:
            kind = row["kind"]
            if ledger.loses(row):
                normal = installed = False
            normal = normal or kind == "normal"
            installed = installed or normal or kind == "install"
            counted = kind == "ack" or (kind == "promise" and flag(row, "normal"))
            if (counted and not normal) or (kind in {"append", "commit"} and not installed):
                yield found(ledger, "RECOVER_SILENT", row, f"{kind} of {row['proc']}")


def unavail(ledger: Ledger) -> Iterator[Violation]:
    """At most one in a hundred pairs of fault and group is silent for longer than the bound."""
    late: dict[Key, int] = {}
    groups: set[int] = set()
    for group, since, until in ledger.silences:
        groups.add(group)
        if until - since <= ledger.bounds.silence_ms * 1000:
            continue
        near = _near(ledger, since, until)
        silence = _longest(ledger, near, since, until) // 1000
        if silence > ledger.bounds.silence_ms:
            for name in near or ("no fault",):
                late[group, name] = max(int(silence), late.get((group, name), 0))
    if len(late) > len(groups) * len(ledger.faults) * ledger.bounds.late_share:
        for (group, name), silence in late.items():
            witness = f"{silence} ms without an ack after {name}"
            yield Violation(ledger.run, "UNAVAIL", group, None, witness)


def _longest(ledger: Ledger, near: dict[str, Fault], since: int, until: int) -> float:
    """The longest stretch of a silence without a moment at which the cluster promised nothing.

    Excuses begin with a fault, and end with a member's return or an election.
    """
    faults = [f for f in near.values() if max(f.off_at, f.away_until, f.keeper_until) >= since]
    survive = ledger.setting("run", "faults", 1)
    after = [end + 1 for f in faults for end in (f.away_until, f.keeper_until)]
    starts = [
        at
        for at in (since, *after)
        if since <= at <= until and not _is_excused(faults, at, survive)
    ]
    stops = [f.on_at for f in faults if _is_excused(faults, f.on_at, survive)]
    stretches = (
        min([at for at in stops if at >= start], default=until) - start for start in starts
    )
    return max(stretches, default=0)


def _is_excused(faults: list[Fault], at: float, survive: int) -> bool:
    """More than f members are away, or nobody can be elected after a fault of one."""
    begun = [fault for fault in faults if fault.on_at <= at]
    away = {member for fault in begun if fault.away_until >= at for member in fault.hits}
    keeper = any(fault.keeper_until >= at for fault in begun)
    return len(away) > survive or (keeper and any(fault.hits for fault in begun))


def _near(ledger: Ledger, since: int, until: int) -> dict[str, Fault]:
    return {
        name: fault
        for name, fault in ledger.faults.items()
        if fault.on_at <= until and fault.over_at >= since
    }


def stale(ledger: Ledger) -> Iterator[Violation]:
    """From contacts without a fault, at most one delivery in a hundred is later than the bound."""
    acks = {(a.row["topic"], a.era, a.row["seq"]): a.at for a in ledger.acked}
    total, late = 0, []
    for (_, _, sub), stream in ledger.streams.items():
        if sub in ledger.slow:
            continue
        for row, _, _, begun, _ in stream:
            if row["kind"] != "deliver" or begun is None or begun.get("conn") != row.get("conn"):
                continue
            acked_at = acks.get((row["topic"], ledger.era(row), row["seq"]))
            if acked_at is None or begun["t_wall"] >= acked_at:
                continue
            if ledger.is_hit(row.get("conn"), acked_at, row["t_wall"]):
                continue
            total += 1
            lag = (row["t_wall"] - acked_at) // 1000
            if lag > ledger.bounds.lag_ms:
                late.append(found(ledger, "STALE", row, f"{row['sub']} got it {lag} ms late"))
    if len(late) > total * ledger.bounds.late_share:
        yield from late


def live(ledger: Ledger) -> Iterator[Violation]:
    """No member ends by itself; all heal in time, ack in time, are normal, and topics end alike."""
    phases = [row["t_wall"] for row in ledger.of("phase")]
    faults = [row["t_wall"] for row in ledger.of("fault_on", "fault_off")]
    if phases:
        healed = (max(faults) if faults else min(phases)) + ledger.bounds.heal_ms * 1000
        bound = ledger.bounds.ack_ms * 1000
        for row, sent, acked in ledger.publications.values():
            if sent is None or sent < healed or sent + bound > max(phases):
                continue
            if acked is None or acked - sent > bound:
                yield found(ledger, "LIVE", row, f"{row['pid']}/{row['pseq']} was acked late")
    yield from _unhealed(ledger)
    for row in ledger.of("ended"):
        witness = f"{extra(row, 'member')} ended with {extra(row, 'code')} {extra(row, 'when')}"
        yield Violation(ledger.run, "LIVE", None, None, witness)
    yield from _not_normal(ledger)
    for topic, heads in ledger.heads.items():
        if len({(head["epoch"], head["seq"]) for head in heads.values()}) > 1:
            group = next(iter(heads.values()))["group"]
            yield Violation(ledger.run, "LIVE", group, topic, "ends differ between members")


def _unhealed(ledger: Ledger) -> Iterator[Violation]:
    """All members were seen to be well, but late after the last fault."""
    took = max((number(row, "took_ms") or 0 for row in ledger.of("phase")), default=0)
    if took > ledger.bounds.heal_ms:
        yield Violation(ledger.run, "LIVE", None, None, f"healed {took} ms after the last fault")


def _not_normal(ledger: Ledger) -> Iterator[Violation]:
    """Members whose last life is not normal in a group, or has lost it since."""
    boots: dict[str, int] = {}
    for row in ledger.of("boot"):
        boots[row["node"]] = max(row["boot"], boots.get(row["node"], 0))
    normal: dict[Key, bool] = {}
    for (group, _), rows in ledger.lives("normal", "floor").items():
        for row in rows:
            if row["kind"] == "normal" or ledger.loses(row):
                normal[group, *life(row)] = row["kind"] == "normal"
    for group in sorted({row["group"] for row in ledger.of("open")}):
        for node, boot in boots.items():
            if not normal.get((group, node, boot)):
                yield Violation(ledger.run, "LIVE", group, None, f"{node} is not normal")


def non_vacuous(ledger: Ledger) -> Iterator[Violation]:
    """Every planned fault happened, every group had traffic, and what must happen did."""
    opens: dict[int, set[int]] = defaultdict(set)
    for row in ledger.of("open"):
        opens[row["group"]].add(row["epoch"])
    statuses = list(ledger.of("sub_status"))
    resumed = [row for row in statuses if extra(row, "outcome") == "resumed"]
    happened = {
        "takeover": any(len(epochs) > 1 for epochs in opens.values()),
        "sync": bool(ledger.kinds.get("install")),
        "gap": any(extra(row, "outcome") == "gap" for row in statuses),
        "duplicate": any(flag(row, "duplicate") for row in ledger.of("pub_ack")),
        "resume": any((number(row, "missed") or 0) > 0 for row in resumed),
        "final read": bool(ledger.kinds.get("final_head")),
    }
    due = [name for name in ledger.bounds.require if name in ledger.required]
    lacks = [f"no {name}" for name in (*due, "final read") if not happened[name]]
    read = {extra(row, "member") for row in ledger.of("final_head")}
    lacks += [f"{name} was not read at the end" for name in sorted(ledger.members - read) if read]
    busy = len({row["group"] for row in ledger.of("pub_ack")})
    groups = ledger.setting("run", "groups", 1)
    if busy < groups and ledger.setting("boot", "sample", 1) == 1:
        lacks.append(f"{busy} of {groups} groups had traffic")
    plans = (extra(row, "id") for row in ledger.of("plan"))
    missed = {extra(row, "id") for row in ledger.of("fault_off") if flag(row, "missed")}
    lacks += [f"{n} never happened" for n in plans if n not in ledger.faults or n in missed]
    phases = sorted((row["t_wall"], extra(row, "phase")) for row in ledger.of("phase"))
    ends = [*(at for at, _ in phases[1:]), 2**62]
    quiet = [(at, end) for (at, name), end in zip(phases, ends, strict=False) if name == "quiet"]
    calm = [
        acked is not None
        for _, sent, acked in ledger.publications.values()
        if sent is not None and any(start <= sent < end for start, end in quiet)
    ]
    if sum(calm) < len(calm) * ledger.bounds.quiet_acked:
        lacks.append(f"{sum(calm)} of {len(calm)} were acknowledged in quiet times")
    for lack in lacks:
        yield Violation(ledger.run, "NON_VACUOUS", None, None, lack)
