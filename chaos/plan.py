"""The generator: from a scenario, a seed and a length, the faults of a run and when they happen.

Pure: the same arguments give the same plan, on every machine. Invariants of a plan:

- a quarter of the time is quiet: faults begin and end within storms, each storm is the middle three
  quarters of a cycle, so a run begins and ends quietly and everything is healed at its end;
- at most `survive` members are harmed at the same time by faults that are not aimed;
- ZooKeeper is not taken away by chance while another fault waits for a member that starts;
- each target exists: members, pairs of them, or a role that is looked up when the fault begins.
"""

from __future__ import annotations

import re
from collections import Counter
from random import Random

import msgspec

from chaos.kinds import KINDS, Kind
from chaos.scenarios import Scenario, Step
from migratory.errors import MigratoryError

SHORTEST = 0.4  # minutes: a storm must have room for a fault and its end
LONGEST = 24 * 60.0
QUIET = 0.25
RETURN = 4000  # milliseconds in which a member that forgot gets everything back
JITTER = 0.4  # seconds by which aimed faults miss their moment, so that windows are swept


class Fault(msgspec.Struct, frozen=True):
    """One planned fault; times are milliseconds from the begin of the run."""

    id: str
    kind: str
    target: str
    at_ms: int
    for_ms: int

    @property
    def end_ms(self) -> int:
        """When it is taken back."""
        return self.at_ms + self.for_ms


class Plan(msgspec.Struct, frozen=True):
    """Everything that a run does to its cluster."""

    scenario: str
    seed: int
    minutes: float
    members: int
    survive: int  # members that may fail at once
    groups: int
    storms: list[tuple[int, int]]
    faults: list[Fault]
    not_possible: list[str] = []  # kinds that the scenario has and this machine has not
    requires: tuple[str, ...] = ()  # what must happen, else the run proves nothing

    @property
    def length_ms(self) -> int:
        """How long faults and quiet times last together."""
        return round(self.minutes * 60_000)


def make_plan(scenario: Scenario, seed: int, minutes: float, possible: frozenset[str]) -> Plan:
    """The plan of a run on a machine that can do these kinds of faults."""
    if not SHORTEST <= minutes <= LONGEST:
        wrong = f"{minutes} minutes are no length for a run"
        raise MigratoryError("BAD_LENGTH", wrong, f"use {SHORTEST} to {LONGEST:.0f}")
    random = Random(f"{scenario.name}:{seed}:{minutes}")  # text seeds are the same everywhere
    names = [f"m{n}" for n in range(1, scenario.members + 1)]
    storms = _storms(round(minutes * 60_000), scenario.cycle)
    found: list[Fault] = []
    used: Counter[str] = Counter()
    for begin, end in storms:
        if scenario.steps:
            found += _aimed(scenario.steps, random, names, begin, end)
        else:
            found += _drawn(scenario, random, names, begin, end, possible, used)
    wanted = {fault.kind for fault in found} | set(scenario.kinds)
    faults = sorted(
        (fault for fault in found if fault.kind in possible), key=lambda f: (f.at_ms, f.target)
    )
    return Plan(
        scenario=scenario.name, seed=seed, minutes=minutes, members=scenario.members,
        survive=scenario.survive, groups=scenario.groups, storms=storms,
        faults=[msgspec.structs.replace(f, id=f"f{n}") for n, f in enumerate(faults, 1)],
        not_possible=sorted(wanted - possible), requires=scenario.requires,
    )  # fmt: skip


def _storms(length: int, cycle: float) -> list[tuple[int, int]]:
    count = max(1, round(length / (cycle * 1000)))
    each = length / count
    return [
        (round(each * (n + QUIET / 2)), round(each * (n + 1 - QUIET / 2))) for n in range(count)
    ]


def _aimed(
    steps: tuple[Step, ...], random: Random, names: list[str], begin: int, end: int
) -> list[Fault]:
    """The scripted faults of one storm; a and b are other members in each."""
    roles = dict(zip("abcde", random.sample(names, len(names)), strict=False))
    faults = []
    for step in steps:
        at = begin + round((step.at + random.uniform(0, JITTER)) * 1000)
        until = min(end, at + round(step.seconds * 1000))
        if until > at:
            faults.append(Fault("", step.kind, _cast(step.target, roles), at, until - at))
    return faults


def _cast(target: str, roles: dict[str, str]) -> str:
    return re.sub(r"\b[a-e]\b", lambda found: roles[found.group()], target)


def _drawn(
    scenario: Scenario, random: Random, names: list[str], begin: int, end: int,
    possible: frozenset[str], used: Counter[str],
) -> list[Fault]:  # fmt: skip
    """Random faults of one storm: `survive` lanes that harm members, one for everything else.

    Of the kinds that still fit, chance has one of those that were used least: a short run has no
    kind twice that others of the same scenario still wait for.
    """
    known = [(name, KINDS[name]) for name in scenario.kinds if name in possible]
    on_members = [(name, kind) for name, kind in known if kind.harms_member]
    others = [(name, kind) for name, kind in known if not kind.harms_member]
    faults: list[Fault] = []
    for kinds in [on_members] * scenario.survive + [others]:
        at = begin + round(random.uniform(0, 2000))
        while fitting := [
            (n, k)
            for n, k in kinds
            if at + k.shortest * 1000 <= end and not _shuts_out(k, at, faults)
        ]:
            least = min(used[name] for name, _ in fitting)
            name, kind = random.choice([each for each in fitting if used[each[0]] == least])
            lasting = round(random.uniform(kind.shortest, kind.longest) * 1000)
            lasting = min(lasting, end - at)
            busy = "".join(f.target for f in faults if f.at_ms < at + lasting and at < f.end_ms)
            target = _target(kind, random, [each for each in names if each not in busy])
            if target:
                used[name] += 1
                faults.append(Fault("", name, target, at, lasting))
            at += lasting + round(random.uniform(500, 3000)) + (RETURN if kind.forgets else 0)
    return faults


def _shuts_out(kind: Kind, at: int, faults: list[Fault]) -> bool:
    """Whether ZooKeeper could be away while another fault waits for a member that starts."""
    until = at + round(kind.longest * 1000) + RETURN
    return kind.harms_zookeeper and any(
        KINDS[f.kind].awaits and at < f.end_ms + RETURN and f.at_ms < until for f in faults
    )


def _target(kind: Kind, random: Random, free: list[str]) -> str:
    """Somebody that this kind of fault can hit; empty when nobody is left."""
    if kind.target == "member":
        return random.choice(free) if free else ""
    elif kind.target in "|>":
        return kind.target.join(random.sample(free, 2)) if len(free) > 1 else ""
    return kind.target
