"""A tiny honest cluster that writes a trace: takeover, truncated tail, SYNC, gap, duplicate, floor.

It obeys docs/traces.md and every promise, so all checks must stay silent on what it writes.
"""

from __future__ import annotations

from collections import defaultdict
from hashlib import blake2b
from typing import Any

Row = dict[str, Any]
MEMBERS = ("m1", "m2", "m3")
GROUP = {"/a": 0, "/b": 1}
HELD = 4  # max_messages
SECOND = 1_000_000


class Cluster:
    """Three members, one publisher and two subscriptions; whatever they do becomes rows."""

    def __init__(self, run: str) -> None:
        self.run = run
        self.rows: list[Row] = []
        self.now = 1_700_000_000 * SECOND
        self.numbers: dict[str, int] = defaultdict(int)
        self.boots = dict.fromkeys(MEMBERS, 1)
        self.alive = set(MEMBERS)
        self.coordinator = {0: "m1", 1: "m1"}
        self.epoch = {0: 0, 1: 0}
        self.floor = {0: 0, 1: 0}
        self.idx = {0: 0, 1: 0}
        self.history: dict[str, list[Row]] = {"/a": [], "/b": []}
        self.pseq: dict[str, int] = defaultdict(int)
        self.position: dict[str, Row] = {}
        self.conn = {"/a": "", "/b": ""}
        self.links = 0

    # ---- writing -------------------------------------------------------------------------------

    def write(self, node: str, kind: str, more: dict[str, Any] | None = None, **row: Any) -> Row:
        """One row; 5 ms pass."""
        self.now += 5000
        boot = self.boots.get(node, 0)
        proc = f"{node}-{boot}" if boot else node
        base: Row = {
            "run": self.run,
            "node": node,
            "boot": boot,
            "proc": proc,
            "kind": kind,
            "t_mono": self.now - 10**15,
            "t_wall": self.now,
            "n": self.numbers[proc],
        }
        self.numbers[proc] += 1
        base |= {key: value for key, value in row.items() if value is not None}
        if more:
            base["extra"] = {key: str(value) for key, value in more.items()}
        self.rows.append(base)
        return base

    def phase(self, name: str, **more: int) -> None:
        """A phase begins."""
        self.write("runner", "phase", {"phase": name, **more})

    # ---- members -------------------------------------------------------------------------------

    def boot(self, node: str) -> None:
        """A member starts."""
        told = {"uuid": "u", "members": "m1,m2,m3", "copies": 2, "promises": 2}
        self.write(node, "boot", {**told, "max_messages": HELD, "max_age_ms": 600_000})

    def take_over(self, g: int, winner: str, floor: int | None = None) -> None:
        """The next epoch, of the living members; a new floor empties the group."""
        epoch = self.epoch[g] = self.epoch[g] + 1
        empty = floor is not None
        self.write(winner, "elect", group=g, epoch=epoch)
        for node in sorted(self.alive):
            if empty and self.floor[g]:
                self.write(node, "floor", {"normal": "false"}, group=g, epoch=epoch)
            told = {"to": winner, "normal": str(not empty).lower()}
            self.write(node, "promise", told, group=g, epoch=epoch, idx=self.idx[g])
        if empty:
            self.floor[g], self.idx[g] = epoch, 0
            for topic, home in GROUP.items():
                self.history[topic] = [] if home == g else self.history[topic]
            self.normal(winner, g)
        self.coordinator[g] = winner
        at: Row = {"group": g, "epoch": epoch, "idx": self.idx[g] + 1}
        self.write(winner, "open", {"floor": self.floor[g]}, **at)
        self.idx[g] += 1
        for node in sorted(self.alive - {winner}):
            if empty:
                self.normal(node, g)
        self.replicate(at, {"kind": "noop"})

    def normal(self, node: str, g: int) -> None:
        """A member counts in a group."""
        at: Row = {"group": g, "epoch": self.epoch[g], "idx": self.idx[g]}
        self.write(node, "normal", {"floor": self.floor[g]}, **at)

    def replicate(self, entry: dict[str, Any], more: dict[str, Any] | None = None) -> None:
        """An entry is stored and applied by everybody alive."""
        more, g = more or {}, entry["group"]
        self.write(self.coordinator[g], "append", {"role": "coordinator", **more}, **entry)
        for node in sorted(self.alive - {self.coordinator[g]}):
            self.write(node, "append", {"role": "follower", **more}, **entry)
            self.write(node, "ack", group=g, epoch=self.epoch[g], idx=entry["idx"])
        others = sorted(self.alive - {self.coordinator[g]})
        by = ",".join(f"{node}-{self.boots[node]}" for node in others)
        at: Row = {"group": g, "epoch": self.epoch[g], "idx": entry["idx"]}
        self.write(self.coordinator[g], "quorum", {"by": by}, **at)
        for node in sorted(self.alive):
            self.write(node, "commit", more or None, **entry)

    def entry(self, topic: str, sent: Row) -> dict[str, Any]:
        """The next entry of a topic."""
        g = GROUP[topic]
        self.idx[g] += 1
        held = self.history[topic]
        seq = held[-1]["seq"] + 1 if held else 1
        who = {key: sent[key] for key in ("pid", "pseq", "mid")}
        return (
            {"group": g, "topic": topic, "epoch": self.epoch[g], "seq": seq}
            | who
            | {"idx": self.idx[g]}
        )

    def crash_and_return(self, node: str, groups: tuple[int, ...] = (0, 1)) -> None:
        """A member boots again, takes the whole state and counts."""
        self.boots[node] += 1
        self.boot(node)
        for g in groups:
            at: Row = {"group": g, "epoch": self.epoch[g], "idx": self.idx[g]}
            self.write(node, "promise", {"to": self.coordinator[g], "normal": "false"}, **at)
            self.write(node, "install", **at)
            self.normal(node, g)
            self.write(node, "ack", **at)
        self.alive.add(node)

    # ---- clients -------------------------------------------------------------------------------

    def send(self, topic: str, attempt: int = 1, again: Row | None = None) -> Row:
        """A message is given to a connection."""
        if again is None:
            self.pseq[topic] += 1
            text = f"{topic} {self.pseq[topic]} {len(self.rows)}".encode()
            mid = blake2b(text, digest_size=8).hexdigest()
            again = {"pid": f"p{self.floor[GROUP[topic]]}", "pseq": self.pseq[topic], "mid": mid}
        who = {key: again[key] for key in ("pid", "pseq", "mid")}
        more = {"attempt": attempt}
        return self.write(
            "c1", "pub_send", more, topic=topic, group=GROUP[topic], conn=self.conn[topic], **who
        )

    def publish(self, topic: str, times: int = 1) -> None:
        """Messages that are acknowledged, and delivered to whoever is connected."""
        for _ in range(times):
            self.settle(topic, self.send(topic))

    def settle(self, topic: str, sent: Row) -> None:
        """What was sent becomes an entry, an acknowledgement and a delivery."""
        entry = self.entry(topic, sent)
        self.replicate(entry)
        self.history[topic].append(entry)
        self.ack(entry, duplicate=False)
        if self.conn[topic]:
            self.deliver(topic, entry)

    def ack(self, entry: Row, *, duplicate: bool) -> None:
        """The publisher is told."""
        told = {key: value for key, value in entry.items() if key != "idx"}
        self.write("c1", "pub_ack", {"duplicate": str(duplicate).lower()}, **told)

    def deliver(self, topic: str, entry: Row) -> None:
        """The subscriber gets a message."""
        keys = ("group", "topic", "epoch", "seq", "mid")
        seen = {key: entry[key] for key in keys}
        self.position[topic] = seen
        self.write("c1", "deliver", sub=f"s{topic}", conn=self.conn[topic], **seen)

    def connect(self, topic: str, outcome: str, member: str = "m3", **more: Any) -> None:
        """A contact welcomes the subscriber and says how it goes on."""
        self.links += 1
        self.conn[topic] = f"k{self.links}"
        self.write("c1", "link_up", {"member": member}, conn=self.conn[topic])
        held = self.position[topic]["seq"] if outcome == "resumed" else 0
        at = more.get("first", held + 1) - 1  # a fresh or another history has nothing yet
        where: Row = {"sub": f"s{topic}", "topic": topic, "group": GROUP[topic], "seq": at}
        where |= {"conn": self.conn[topic], "epoch": self.epoch[GROUP[topic]]}
        told = {"outcome": outcome, "member": member, **more}
        self.write("c1", "sub_status", told, **where)

    def disconnect(self, topic: str) -> None:
        """The connection ends."""
        self.write("c1", "link_down", {"why": "lost"}, conn=self.conn[topic])
        self.conn[topic] = ""

    def resume(self, topic: str) -> None:
        """The subscriber comes back: it gets what it missed, or a gap first."""
        asked = self.position[topic]["seq"] + 1
        held = self.history[topic][-HELD:]
        first = held[0]["seq"]
        if asked >= first:
            missed = [entry for entry in held if entry["seq"] >= asked]
            self.connect(topic, "resumed", missed=len(missed))
        else:
            missed = held
            where = {"topic": topic, "group": GROUP[topic], "seq": first}
            self.write("m3", "window", {"head": held[-1]["seq"]}, **where)
            self.connect(topic, "gap", asked=asked, first=first, last=first - 1)
        for entry in missed:
            self.deliver(topic, entry)

    def final(self) -> None:
        """Every member is read."""
        for history in self.history.values():
            held = history[-HELD:]
            for node in MEMBERS:
                for entry in held:
                    keys = ("group", "topic", "epoch", "seq", "mid")
                    seen = {key: entry[key] for key in keys}
                    self.write("runner", "final_read", {"member": node}, **seen)
                told = {"member": node, "first": held[0]["seq"]}
                end = {key: held[-1][key] for key in ("group", "topic", "epoch", "seq")}
                self.write("runner", "final_head", told, **end)


def good_trace(run: str, quiet: int = 5, away: int = 7) -> list[Row]:
    """One run with everything that may happen to an honest cluster of three."""
    cluster = Cluster(run)
    kill = {"fault": "kill", "target": "m1", "id": "f1"}
    start = {"members": "m1,m2,m3", "faults": 1, "groups": 2, "seed": 7, "scenario": "good"}
    cluster.write("runner", "run", start)
    cluster.write("runner", "plan", kill)
    for node in MEMBERS:
        cluster.boot(node)
    for g in (0, 1):
        cluster.take_over(g, "m1", floor=1)
    cluster.phase("quiet")
    for topic, group in GROUP.items():
        cluster.write("c1", "sub_open", sub=f"s{topic}", topic=topic, group=group)
        cluster.connect(topic, "fresh")
        cluster.publish(topic, quiet)
    cluster.phase("storm")
    _storm(cluster, kill)
    cluster.write("nemesis", "fault_off", kill)
    cluster.crash_and_return("m1")
    cluster.phase("healed", took_ms=9999)
    cluster.disconnect("/a")
    cluster.publish("/a", away)
    cluster.resume("/a")
    cluster.take_over(1, "m3", floor=3)  # an operator gave group 1 up
    cluster.disconnect("/b")
    cluster.pseq["/b"] = 0
    cluster.connect("/b", "reset", reason="history_lost")
    cluster.publish("/b", 3)
    cluster.now += 11 * SECOND
    for topic in GROUP:
        cluster.publish(topic, 3)
    last = cluster.position["/b"]
    where = {key: last[key] for key in ("topic", "group", "epoch", "seq")}
    cluster.write("c1", "sub_close", sub="s/b", **where)
    cluster.now += 11 * SECOND
    cluster.write("c1", "link_up", {"member": "m2"}, conn="idle")
    cluster.final()
    cluster.phase("end")
    return cluster.rows


def sampled(rows: list[Row]) -> list[Row]:
    """What is left when members and clients write the rows of one topic in two."""
    for row in rows:
        if row["kind"] == "boot":
            row["extra"]["sample"] = "2"
    return [row for row in rows if row.get("topic") != "/b"]


def _storm(cluster: Cluster, kill: dict[str, str]) -> None:
    """The coordinator dies with a tail that nobody else has; others take over."""
    cluster.disconnect("/a")
    tail = cluster.send("/a")
    entry = cluster.entry("/a", tail)
    cluster.write("m1", "append", {"role": "coordinator"}, **entry)
    cluster.idx[0] -= 1  # truncated by whoever comes next
    cluster.write("nemesis", "fault_on", kill)
    cluster.alive.discard("m1")
    for g in (0, 1):
        cluster.take_over(g, "m2")
    cluster.now += SECOND // 2
    cluster.settle("/a", cluster.send("/a", 2, tail))
    cluster.publish("/a", 2)
    cluster.resume("/a")
    cluster.publish("/b", 2)
    known = cluster.history["/a"][-1]
    cluster.send("/a", 2, known)
    cluster.ack(known, duplicate=True)
    lost = cluster.send("/b")
    keys = ("topic", "group", "pid", "pseq", "mid")
    refused = {key: lost[key] for key in keys}
    cluster.write("c1", "pub_nack", {"code": "RETRY", "outcome": "retry"}, **refused)
    cluster.settle("/b", cluster.send("/b", 2, lost))
    never = refused | {"pseq": 900, "mid": "0" * 16}
    cluster.write("c1", "pub_nack", {"code": "CLOSED", "outcome": "not_published"}, **never)
