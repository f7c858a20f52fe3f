"""A session between a user, a dumb cluster and a bad network: no loss, no copy, no lie.

Whatever happens: no message twice, none missing without a GAP, order kept, every outcome true.
"""

from __future__ import annotations

from collections import Counter
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.property.session_world import ACTIONS, Story

STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.integers(0, 2**16)), min_size=30, max_size=200
)

# Situations that must really happen, or the stories prove nothing.
DANGERS = (
    "lost with some under way", "late and new", "late and old", "BUSY", "RETRY", "OUT_OF_ORDER",
    "UNKNOWN_PUBLISHER", "duplicate", "paused", "withdrawn", "told of a gap", "left",
    "outcome NoneType", "outcome NotPublished", "outcome OutcomeUnknown",
)  # fmt: skip


@given(st.integers(0, 3), STEPS)
@settings(max_examples=100, deadline=None)
def test_no_story_loses_doubles_or_lies(depth: int, steps: list[tuple[str, int]]) -> None:
    """Any sequence of actions ends, once healed, with everything where it was said to be."""
    story = Story(depth, 1)
    for action, value in steps:
        story.act(action, value)
    story.finish()


def test_long_stories_meet_every_danger() -> None:
    """Seeded stories hold too, and between them every dangerous situation occurs often."""
    counts: Counter[str] = Counter()
    for seed in range(120):
        chance = Random(seed)
        story = Story(seed % 4, seed)
        for _ in range(300):
            story.act(chance.choice(ACTIONS), chance.randrange(2**16))
        story.finish()
        counts += story.counts
    assert {danger: counts[danger] for danger in DANGERS if counts[danger] < 20} == {}
