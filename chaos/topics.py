"""The topics of a run: several in each group, a few of them hot."""

from __future__ import annotations

from itertools import count

from migratory.wire.ids import group_of

PER_GROUP = 3
HOT_GROUPS = 2  # groups with a hot topic; the first one is where faults aim
HOT_GROUP = 0
PREFIX = "/chaos"


def topics_of(groups: int, prefix: str = PREFIX) -> dict[int, list[str]]:
    """Topics by group, the same for everybody who knows the number of groups."""
    found: dict[int, list[str]] = {group: [] for group in range(groups)}
    for n in count():
        topic = f"{prefix}/{n}"
        into = found[group_of(topic, groups)]
        if len(into) < PER_GROUP:
            into.append(topic)
        if all(len(each) == PER_GROUP for each in found.values()):
            break
    return found


def hot_and_cold(groups: int, prefix: str = PREFIX) -> tuple[list[str], list[str]]:
    """All topics, the hot ones apart; the hottest group's comes first."""
    found = topics_of(groups, prefix)
    hot = [found[group][0] for group in range(min(HOT_GROUPS, groups))]
    return hot, [topic for each in found.values() for topic in each if topic not in hot]
