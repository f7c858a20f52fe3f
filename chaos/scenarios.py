"""Named scenarios, as data: aimed faults that repeat in each storm, or kinds to draw from.

P1 to P20 are the ways in which the paper's protocol fails; each is aimed at its window here. In a
target, a to e are members that change from storm to storm; `coordinator` is the one of the group
with the most traffic, looked up when the fault begins. What a scenario requires stands in the run's
trace: a run in which it did not happen proves nothing.
"""

# ruff: noqa: E501 (the table below is read by columns)

from __future__ import annotations

import difflib

import msgspec

from chaos.kinds import COORDINATOR, KINDS
from chaos.ledger import HAPPENINGS
from migratory.errors import MigratoryError


class Step(msgspec.Struct, frozen=True):
    """One aimed fault: seconds after the begin of a storm, and for how long."""

    at: float
    kind: str
    target: str
    seconds: float


class Scenario(msgspec.Struct, frozen=True):
    """What a run does, before chance has its say."""

    name: str
    says: str
    steps: tuple[Step, ...] = ()
    kinds: tuple[str, ...] = ()
    members: int = 3
    survive: int = 1
    groups: int = 8
    cycle: float = 24.0  # seconds of one storm with its quiet times
    requires: tuple[str, ...] = HAPPENINGS  # without which a run of it proves nothing


def _aimed(name: str, says: str, more: str, *steps: tuple[float, str, str, float]) -> Scenario:
    """Clients always come back late, in all scenarios; `more` must happen as well."""
    requires = ("gap", "resume", *more.split())
    return Scenario(name, says, tuple(Step(*step) for step in steps), requires=requires)


C = COORDINATOR
CUTS = ("cut", "mute", "cut-zookeeper", "cut-peers", "cut-pair", "cut-one-way", "flaky")
DRAWN = tuple(name for name, kind in KINDS.items() if kind.drawn)

_ALL = (
    _aimed("p1", "the coordinator dies under acknowledged load", "takeover sync", (0, "kill-quick", C, 1), (9, "kill-long", C, 6)),
    _aimed("p2", "elections while ZooKeeper's leader changes", "takeover", (0, "zookeeper-leader", "leader", 3), (0, "pause", C, 6)),
    _aimed("p3", "a paused coordinator wakes and goes on", "takeover", (0, "pause", C, 6), (9, "pause", C, 2)),
    _aimed("p4", "a crash while the followers are behind", "takeover sync", (0, "slow-link", "second", 6), (4, "kill-quick", C, 1)),
    _aimed("p5", "many epochs in a row", "takeover", (0, "pause", C, 2), (4, "pause", C, 2), (8, "pause", C, 2), (12, "pause", C, 2)),
    _aimed("p6", "catching up past a cut pair", "", (0, "cut-pair", "a|b", 8), (10, "cut-pair", "b|c", 5)),
    _aimed("p7", "rebuilding under load, and once more from the start", "sync", (0, "kill-long", "a", 5), (6, "stampede", "clients", 1), (7, "pause", "b", 2), (12, "kill-recovering", "c", 4)),
    _aimed("p8", "a plain rolling restart", "takeover sync", (0, "rolling-restart", "all", 15)),
    _aimed("p9", "the coordinator reaches ZooKeeper but not its peers", "takeover", (0, "cut-peers", C, 8)),
    _aimed("p10", "the coordinator reaches its peers but not ZooKeeper", "", (0, "cut-zookeeper", C, 8)),
    _aimed("p11", "clients come back while coordinators change", "takeover", (0, "pause", C, 6), (1, "stampede", "clients", 1), (6, "stampede", "clients", 1)),
    _aimed("p12", "resends across a takeover", "takeover sync duplicate", (0, "reset", C, 2), (4, "deaf-clients", "all", 7), (6, "kill-quick", C, 1)),
    _aimed("p13", "pipelined messages across broken connections", "duplicate", (0, "reset", "a", 3), (4, "reset", "b", 3), (8, "deaf-clients", "all", 7)),
    _aimed("p14", "clients ahead of the member they come to", "takeover", (0, "mute", C, 5), (2, "stampede", "clients", 1), (8, "cut-one-way", "a>b", 4), (9, "stampede", "clients", 1)),
    _aimed("p15", "positions older than the history", "takeover", (0, "cut-clients", "all", 5), (8, "pause", C, 5)),
    _aimed("p16", "quick restart with the same id, and a process that wakes beside its replacement", "sync", (0, "kill-quick", "a", 0.3), (6, "zombie", C, 8)),
    _aimed("p17", "a session that ends unnoticed", "", (0, "cut-zookeeper", C, 9)),
    _aimed("p18", "all sessions end at once", "", (0, "zookeeper-stall", "ensemble", 9)),
    _aimed("p19", "ZooKeeper's leader dies during elections", "takeover sync", (0, "kill-long", C, 6), (0, "zookeeper-leader", "leader", 3)),
    _aimed("p20", "a wall clock is an hour off", "takeover sync", (0, "clock", C, 10)),
    _aimed("full-disk", "no room for traces, logs and ZooKeeper", "", (0, "full-disk", C, 6), (9, "zookeeper-disk", "leader", 7), (11, "pause", C, 3)),
    _aimed("bad-cables", "packets are lost and late at the coordinator", "", (0, "lossy-link", C, 7), (9, "late-link", C, 7)),
    msgspec.structs.replace(
        _aimed("recover", "an operator accepts loss while the member that holds everything is cut off", "takeover", (0, "recover", "all", 20)), cycle=48.0,
    ),
    _aimed("sleepwalk", "a deposed coordinator wakes and knows nothing of it", "takeover sync", (0, "sleepwalk", C, 3)),
    _aimed("amnesia", "one of two copies is forgotten, the other is cut off, a member that lacks both goes on", "takeover sync", (0, "cut-peers", "third", 3.5), (3, "cut-peers", C, 8), (3, "kill-quick", "second", 1)),
    Scenario("kill-storm", "members die and come back", kinds=("kill-quick", "kill-long", "kill-recovering"), requires=("takeover", "sync", "gap", "resume")),
    _aimed("rolling-restart", "drain and restart, one after another", "takeover sync", (0, "rolling-restart", "all", 15)),
    Scenario("zookeeper-outage", "ZooKeeper away in all ways", kinds=("zookeeper-leader", "zookeeper-stall", "zookeeper-disk", "cut-zookeeper"), requires=("gap", "resume")),
    Scenario("partition-zoo", "all cuts", kinds=CUTS, requires=("takeover", "gap", "resume")),
    Scenario("pause-resume", "frozen processes", kinds=("pause", "zombie"), requires=("takeover", "gap", "resume")),
    Scenario("stampede", "herds of returning clients", kinds=("stampede", "cut-clients", "kill-quick"), requires=("gap", "resume")),
    Scenario("slow-member", "one member is slow", kinds=("starve", "slow-link", "late-link", "lossy-link", "reset"), requires=("gap", "resume")),
    Scenario("five-members-two-faults", "two failures at once", kinds=("kill-quick", "kill-long", "pause", *CUTS), members=5, survive=2, requires=("takeover", "gap", "resume")),
    Scenario("soak", "everything, for long", kinds=DRAWN, cycle=40.0),
    Scenario("random", "everything, drawn by the seed", kinds=DRAWN),
)  # fmt: skip
SCENARIOS = {scenario.name: scenario for scenario in _ALL}


def find_scenario(name: str) -> Scenario:
    """The scenario of this name; capitals do not matter."""
    found = SCENARIOS.get(name.lower())
    if found is None:
        near = difflib.get_close_matches(name.lower(), SCENARIOS, 1)
        remedy = f"did you mean {near[0]}?" if near else "`python -m chaos list` has them all"
        raise MigratoryError("UNKNOWN_SCENARIO", f"there is no scenario {name}", remedy)
    return found
