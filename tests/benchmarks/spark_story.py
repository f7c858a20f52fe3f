"""What happens in the trace of `spark_trace`, minute by minute, for many messages at once."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tests.benchmarks.spark_trace import (
    GROUPS,
    HELD,
    MEMBERS,
    SEGMENT,
    START,
    SUBS,
    TOPICS,
    Chosen,
    Numbers,
    Sheet,
    Trace,
)

SECOND = 1_000_000
STEADY = range(1, SUBS - 1)
FLAPPING, TRUANT = 0, SUBS - 1
FAULTS = ("delivery", "quorum", "read")
RUN = {
    "members": "m1,m2,m3", "faults": "1", "groups": str(GROUPS), "seed": "1", "scenario": "bench",
}  # fmt: skip
BOOT = {
    "uuid": "u", "members": "m1,m2,m3", "copies": "2", "promises": "2",
    "max_messages": str(HELD), "max_age_ms": "1000000000",
}  # fmt: skip


def tell(trace: Trace) -> None:
    """The whole trace: a beginning, its segments, an end."""
    _begin(trace)
    for k in range(trace.segments):
        _segment(trace, k)
    _end(trace)


def pairs(**more: str) -> tuple[tuple[str, str], ...]:
    """An `extra` that can be looked up."""
    return tuple(more.items())


def _begin(trace: Trace) -> None:
    sheet, at = Sheet(trace), START
    sheet.add("run", at, "runner", pairs(**RUN))
    for k in range(trace.segments):
        sheet.add("plan", at, "runner", _fault(k))
    for member in range(len(MEMBERS)):
        sheet.add("boot", at, trace.proc(member), pairs(**BOOT))
    everybody = list(range(len(MEMBERS)))
    _take_over(trace, sheet, at + SECOND // 10, np.arange(GROUPS), everybody)
    sheet.add("phase", at, "runner", pairs(phase="quiet"))
    for sub in range(SUBS):
        where = {"topic": trace.topics, "group": trace.group_of, "sub": _subs(trace, sub)}
        sheet.add("sub_open", at, "workload", **where)
        _connect(trace, sheet, at, sub, np.arange(len(trace.topics)), pairs(outcome="fresh"))
    trace.write(sheet)


def _fault(k: int) -> tuple[tuple[str, str], ...]:
    return pairs(fault="kill-long", target=MEMBERS[k % 3], id=f"f{k}")


def _subs(trace: Trace, sub: int) -> Numbers:
    return trace.words["sub"].codes([f"s{sub}.{t}" for t in range(GROUPS * TOPICS)])


def _conn(trace: Trace, sub: int) -> str:
    return f"k{sub}.{trace.links[sub]}"


def _connect(
    trace: Trace, sheet: Sheet, at: int, sub: int, topics: Numbers, more: object
) -> None:  # fmt: skip
    """A new connection says of these topics how they go on."""
    trace.links[sub] += 1
    conn = _conn(trace, sub)
    sheet.add("link_up", at - 1, "workload", pairs(member="m1"), conn=conn)
    group = trace.group_of[topics]
    sheet.add(
        "sub_status", at, "workload", more, topic=trace.topics[topics], group=group, conn=conn,
        sub=_subs(trace, sub)[topics], epoch=trace.epoch[group], seq=trace.heads[topics],
    )  # fmt: skip


def _take_over(trace: Trace, sheet: Sheet, at: int, groups: Numbers, alive: list[int]) -> None:
    """An epoch begins in these groups, led by whoever `led_by` names."""
    first = bool(trace.last[groups[0]] == 0)
    led, epoch = trace.led_by[groups], trace.epoch[groups]
    trace.last[groups] += 1
    entry = {"group": groups, "epoch": epoch, "idx": trace.last[groups]}
    procs = np.array([trace.proc(member) for member in range(len(MEMBERS))])
    leaders = procs[led]
    floor = pairs(floor="1")
    noop = (("kind", "noop"),)
    sheet.add("elect", at, leaders, group=groups, epoch=epoch)
    for member in alive:
        told = pairs(to="winner", normal=str(not first).lower())
        held = {**entry, "idx": entry["idx"] - 1}
        sheet.add("promise", at, int(procs[member]), told, **held)
    for member in alive if first else []:
        sheet.add("normal", at, int(procs[member]), floor, **{**entry, "idx": 0})
    sheet.add("open", at, leaders, floor, **entry)
    sheet.add("append", at, leaders, (*noop, ("role", "coordinator")), **entry)
    for member in alive:
        here = led != member
        follower = {name: column[here] for name, column in entry.items()}
        proc = int(procs[member])
        sheet.add("append", at, proc, (*noop, ("role", "follower")), **follower)
        sheet.add("ack", at, proc, **follower)
        sheet.add("commit", at, proc, noop, **follower)
    other = [next(m for m in alive if m != leader) for leader in led]
    by = trace.words["extra"].codes([pairs(by=_life(trace, m)) for m in other])
    sheet.add("quorum", at, leaders, by, **entry)
    sheet.add("commit", at, leaders, noop, **entry)


def _life(trace: Trace, member: int) -> str:
    return f"{MEMBERS[member]}-{trace.boots[member]}"


def _segment(trace: Trace, k: int) -> None:
    """A minute: a kill, a takeover, a return; messages all the time."""
    sheet, t0, victim = Sheet(trace), START + SECOND + k * SEGMENT, k % 3
    alive = [member for member in range(len(MEMBERS)) if member != victim]
    sheet.add("phase", t0, "runner", pairs(phase="storm"))
    sheet.add("fault_on", t0 + SECOND, "runner", _fault(k))
    orphans = np.flatnonzero(trace.led_by == victim)
    trace.led_by[orphans] = (victim + 1) % 3
    trace.epoch[orphans] += 1
    _take_over(trace, sheet, t0 + SECOND * 13 // 10, orphans, alive)
    sheet.add("fault_off", t0 + 4 * SECOND, "runner", _fault(k))
    sheet.add("phase", t0 + 40 * SECOND, "runner", pairs(phase="quiet"))
    messages = _Messages(trace, t0)
    some, rest = messages.split(t0 + 5 * SECOND)
    some.replicate(sheet, alive)
    _return(trace, sheet, t0 + 5 * SECOND, victim, some)
    rest.replicate(sheet, [0, 1, 2])
    messages.publish(sheet)
    for sub in STEADY:
        skipped = trace.fault == "delivery" and k == trace.segments - 1 and sub == 1
        messages.deliver(sheet, sub, skipped=skipped)
    _flap(trace, sheet, messages, t0)
    _play_truant(trace, sheet, messages, t0, alive[0])
    messages.repeat_last(sheet, t0 + SEGMENT - SECOND // 2)
    messages.remember()
    trace.write(sheet)


def _return(trace: Trace, sheet: Sheet, at: int, member: int, some: _Messages) -> None:
    """A killed member boots again and installs the state of every group."""
    trace.boots[member] += 1
    proc = trace.proc(member)
    groups = np.arange(GROUPS)
    last = trace.last.copy()
    np.maximum.at(last, some.group, some.idx)
    where = {"group": groups, "epoch": trace.epoch, "idx": last}
    sheet.add("boot", at, proc, pairs(**BOOT))
    sheet.add("promise", at, proc, pairs(to="leader", normal="false"), **where)
    sheet.add("install", at, proc, **where)
    sheet.add("normal", at, proc, pairs(floor="1"), **where)
    sheet.add("ack", at, proc, **where)


def _flap(trace: Trace, sheet: Sheet, messages: _Messages, t0: int) -> None:
    """Away for five seconds, then everything missed at once."""
    gone, back = t0 + 20 * SECOND, t0 + 25 * SECOND
    away = (messages.at + 1000 >= gone) & (messages.at < back)
    messages.deliver(sheet, FLAPPING, messages.at + 1000 < gone)
    sheet.add("link_down", gone, "workload", pairs(why="left"), conn=_conn(trace, FLAPPING))
    missed = np.bincount(messages.topic[away], minlength=len(trace.topics))
    told = [pairs(outcome="resumed", missed=str(n), member="m1") for n in missed]
    codes = trace.words["extra"].codes(told)
    _connect(trace, sheet, back, FLAPPING, np.arange(len(trace.topics)), codes)
    messages.deliver(sheet, FLAPPING, away, at=back)
    messages.deliver(sheet, FLAPPING, messages.at >= back)


def _play_truant(trace: Trace, sheet: Sheet, messages: _Messages, t0: int, member: int) -> None:
    """Away for all of it: a gap where more came than is held."""
    back = t0 + SEGMENT - SECOND
    sheet.add("link_down", t0, "workload", pairs(why="left"), conn=_conn(trace, TRUANT))
    missed = np.bincount(messages.topic, minlength=len(trace.topics))
    heads = trace.heads + missed
    gap = np.flatnonzero(missed > HELD)
    first = heads - HELD + 1
    where = {"topic": trace.topics[gap], "group": trace.group_of[gap], "seq": first[gap]}
    shown = trace.words["extra"].codes([pairs(head=str(n)) for n in heads[gap]])
    sheet.add("window", back - 2, trace.proc(member), shown, **where)
    told = [
        pairs(outcome="gap", asked=str(trace.heads[t] + 1), first=str(first[t]),
              last=str(first[t] - 1), member=MEMBERS[member])
        if missed[t] > HELD
        else pairs(outcome="resumed", missed=str(missed[t]), member=MEMBERS[member])
        for t in range(len(trace.topics))
    ]  # fmt: skip
    codes = trace.words["extra"].codes(told)
    _connect(trace, sheet, back, TRUANT, np.arange(len(trace.topics)), codes)
    messages.deliver(sheet, TRUANT, messages.seq >= first[messages.topic], at=back)


class _Messages:
    """Messages of a segment, or some of them, in the order of time."""

    def __init__(self, trace: Trace, t0: int) -> None:
        self.trace = trace
        random = np.random.default_rng(t0)
        count, few = trace.messages, trace.messages // 20
        soon = random.integers(2 * SECOND, 4 * SECOND, few)
        later = random.integers(6 * SECOND, SEGMENT - 2 * SECOND, count - few)
        self.at = t0 + np.sort(np.concatenate((soon, later)))
        hot = random.random(count) < 0.3
        drawn = random.integers(0, len(trace.topics), count)
        drawn[-len(trace.topics) :] = np.arange(len(trace.topics))[:count]  # nobody is idle
        self.topic = np.where(hot, drawn % 2, drawn)
        self.group = trace.group_of[self.topic]
        self.seq = trace.heads[self.topic] + _nth(self.topic)
        self.idx = trace.last[self.group] + _nth(self.group)
        self.mid = trace.mids + np.arange(count)
        self.epoch = trace.epoch[self.group]

    def split(self, at: int) -> tuple[_Messages, _Messages]:
        """Those before a moment, and the others."""
        return self._some(self.at < at), self._some(self.at >= at)

    def _some(self, wanted: Chosen) -> _Messages:
        part = object.__new__(_Messages)
        for name, value in vars(self).items():
            setattr(part, name, value if name == "trace" else value[wanted])
        return part

    def _entry(self) -> dict[str, Numbers]:
        pids = self.trace.words["pid"].codes([f"p{t % 50}" for t in range(GROUPS * TOPICS)])
        topic = self.trace.topics[self.topic]
        return {
            "group": self.group, "topic": topic, "epoch": self.epoch, "seq": self.seq,
            "idx": self.idx, "pid": pids[self.topic], "pseq": self.seq, "mid": self.mid,
        }  # fmt: skip

    def replicate(self, sheet: Sheet, alive: list[int]) -> None:
        """Stored, acknowledged, counted and applied by everybody alive."""
        trace, entry = self.trace, self._entry()
        led = trace.led_by[self.group]
        procs = np.array([trace.proc(member) for member in range(len(MEMBERS))])
        sheet.add("append", self.at + 100, procs[led], pairs(role="coordinator"), **entry)
        for member in alive:
            part = self._some(led != member)
            here = part._entry()
            proved = {name: here[name] for name in ("group", "epoch", "idx")}
            proc, at = int(procs[member]), part.at + 300 + 50 * member
            sheet.add("append", at, proc, pairs(role="follower"), **here)
            sheet.add("ack", at, proc, **proved)
            sheet.add("commit", at, proc, **here)
        counted = [next(m for m in alive if m != leader) for leader in range(3)]
        by = trace.words["extra"].codes([pairs(by=_life(trace, m)) for m in counted])
        proved = {name: entry[name] for name in ("group", "epoch", "idx")}
        late = np.where((trace.fault == "quorum") & (self.mid % 1_000_000 == 700), 30, 0)
        sheet.add("quorum", self.at + 600 + late, procs[led], by[led], **proved)
        sheet.add("commit", self.at + 610, procs[led], **entry)

    def publish(self, sheet: Sheet) -> None:
        """Sent and acknowledged."""
        entry = {k: v for k, v in self._entry().items() if k != "idx"}
        sent = {k: v for k, v in entry.items() if k not in {"epoch", "seq"}}
        sheet.add("pub_send", self.at, "workload", pairs(attempt="1"), conn="p", **sent)
        sheet.add("pub_ack", self.at + 900, "workload", pairs(duplicate="false"), **entry)

    def repeat_last(self, sheet: Sheet, at: int) -> None:
        """A publication that was acknowledged is sent once more."""
        last = self._some(np.arange(len(self.at)) == len(self.at) - 1)
        entry = {k: v for k, v in last._entry().items() if k != "idx"}
        sent = {k: v for k, v in entry.items() if k not in {"epoch", "seq"}}
        sheet.add("pub_send", at, "workload", pairs(attempt="2"), conn="p", **sent)
        sheet.add("pub_ack", at + 900, "workload", pairs(duplicate="true"), **entry)

    def deliver(
        self, sheet: Sheet, sub: int, wanted: Chosen | None = None, at: int | None = None,
        *, skipped: bool = False,
    ) -> None:  # fmt: skip
        """A subscription gets these; `skipped`: not the one in the middle."""
        part = self if wanted is None else self._some(wanted)
        if skipped:
            part = part._some(np.arange(len(part.at)) != len(part.at) // 2)
        names = ("group", "topic", "epoch", "seq", "mid")
        seen = {k: v for k, v in part._entry().items() if k in names}
        when = part.at + 1000 + 10 * sub if at is None else at
        subs = _subs(self.trace, sub)[part.topic]
        conn = _conn(self.trace, sub)
        sheet.add("deliver", when, "workload", sub=subs, conn=conn, **seen)

    def remember(self) -> None:
        """The next segment goes on from here."""
        trace = self.trace
        np.maximum.at(trace.heads, self.topic, self.seq)
        np.maximum.at(trace.last, self.group, self.idx)
        trace.mids += len(self.at)
        trace.held[self.topic, self.seq % HELD, :] = np.stack((self.epoch, self.seq, self.mid), 1)


def _nth(keys: Numbers) -> Numbers:
    """The how-manieth of its key each one is, from 1."""
    order = np.argsort(keys, kind="stable")
    ordered = keys[order]
    starts = np.flatnonzero(np.diff(ordered, prepend=-1))
    found = np.empty(len(keys), np.int64)
    found[order] = np.arange(len(keys)) - np.repeat(starts, np.diff(starts, append=len(keys))) + 1
    return found


def _end(trace: Trace) -> None:
    """Every topic is read at every member."""
    sheet = Sheet(trace)
    at = START + SECOND + trace.segments * SEGMENT + 20 * SECOND
    topic = np.repeat(np.arange(len(trace.topics)), HELD)
    held = trace.held.reshape(-1, 3)
    order = np.lexsort((held[:, 1], topic))
    order = order[held[order, 1] > 0]
    epoch, seq, mid = held[order].T
    topic = topic[order]
    first = np.maximum(trace.heads - HELD + 1, 1)
    last = trace.held[np.arange(len(trace.topics)), trace.heads % HELD]
    for member in MEMBERS:
        kept = slice(1, None) if trace.fault == "read" and member == "m2" else slice(None)
        seen = {"epoch": epoch[kept], "seq": seq[kept], "mid": mid[kept]}
        read = {"topic": trace.topics[topic[kept]], "group": trace.group_of[topic[kept]]}
        sheet.add("final_read", at, "reader", pairs(member=member), **read, **seen)
        told = trace.words["extra"].codes([pairs(member=member, first=str(n)) for n in first])
        where = {"topic": trace.topics, "group": trace.group_of, "epoch": last[:, 0]}
        sheet.add("final_head", at, "reader", told, seq=last[:, 1], **where)
    sheet.add("phase", at, "runner", pairs(phase="end"))
    trace.write(sheet)


def make(out: Path, rows: int, fault: str = "") -> int:
    """Write a trace of about so many rows; how many they are."""
    trace = Trace(out, rows, fault)
    tell(trace)
    return trace.written
