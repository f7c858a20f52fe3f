"""The generator: one plan per seed, quiet times, everything healed, targets that exist."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.kinds import KINDS, ROLES
from chaos.ledger import HAPPENINGS
from chaos.nemesis import BREAKS
from chaos.network import Network
from chaos.plan import RETURN, Plan, make_plan
from chaos.scenarios import SCENARIOS, Scenario, find_scenario
from chaos.topics import hot_and_cold, topics_of
from migratory.errors import MigratoryError
from migratory.wire.ids import group_of

EVERYTHING = frozenset(KINDS)
plans = st.builds(
    make_plan,
    st.sampled_from(list(SCENARIOS.values())),
    st.integers(0, 1 << 32),
    st.floats(0.4, 30),
    st.just(EVERYTHING),
)


def busy_ms(plan: Plan) -> int:
    """Milliseconds in which at least one fault is on."""
    busy, seen = 0, 0
    for fault in plan.faults:  # they are in order of time
        busy += max(0, fault.end_ms - max(seen, fault.at_ms))
        seen = max(seen, fault.end_ms)
    return busy


@given(st.sampled_from(list(SCENARIOS.values())), st.integers(), st.floats(0.4, 10))
def test_the_same_arguments_give_the_same_plan(
    scenario: Scenario, seed: int, minutes: float
) -> None:
    """A plan is a function of its arguments."""
    again = [make_plan(scenario, seed, minutes, EVERYTHING) for _ in range(2)]
    assert again[0] == again[1]


def test_another_seed_gives_another_plan() -> None:
    """Chance comes from the seed."""
    one, other = (make_plan(SCENARIOS["random"], seed, 3.0, EVERYTHING) for seed in (1, 2))
    assert one.faults != other.faults


@given(plans)
def test_a_quarter_is_quiet_and_all_is_healed(plan: Plan) -> None:
    """Faults begin and end within storms, which leave a quarter of the time."""
    assert busy_ms(plan) <= 0.75 * plan.length_ms + len(plan.storms)
    for fault in plan.faults:
        assert any(begin <= fault.at_ms < fault.end_ms <= end for begin, end in plan.storms)
    assert all(fault.end_ms < plan.length_ms for fault in plan.faults)


@given(plans)
def test_targets_exist(plan: Plan) -> None:
    """Each fault hits members that there are, or a role, and each has an id of its own."""
    members = {f"m{n}" for n in range(1, plan.members + 1)}
    roles = {*ROLES, "leader", "ensemble", "all", "clients"}
    for fault in plan.faults:
        assert fault.target in roles or set(re.split("[|>]", fault.target)) <= members
    assert len({fault.id for fault in plan.faults}) == len(plan.faults)


@given(plans)
def test_no_more_members_are_harmed_than_survived(plan: Plan) -> None:
    """Drawn faults that harm members never overlap in more than `survive` of them."""
    harming = [f for f in plan.faults if KINDS[f.kind].harms_member]
    if SCENARIOS[plan.scenario].steps:
        return  # aimed faults overlap on purpose
    for fault in harming:
        assert sum(f.at_ms <= fault.at_ms < f.end_ms for f in harming) <= plan.survive


@given(plans)
def test_a_member_that_forgot_has_time_to_return(plan: Plan) -> None:
    """After a drawn fault that costs a member its memory, its lane is quiet for a while."""
    if SCENARIOS[plan.scenario].steps or plan.survive > 1:
        return
    harming = [f for f in plan.faults if KINDS[f.kind].harms_member]
    for fault, following in itertools.pairwise(harming):
        if KINDS[fault.kind].forgets:
            assert following.at_ms - fault.end_ms >= RETURN


@given(plans)
def test_zookeeper_is_there_for_faults_that_wait_for_a_start(plan: Plan) -> None:
    """A fault whose moment never comes did not happen, and such a run proves nothing."""
    if SCENARIOS[plan.scenario].steps:
        return
    waiting = [fault for fault in plan.faults if KINDS[fault.kind].awaits]
    for away in (fault for fault in plan.faults if KINDS[fault.kind].harms_zookeeper):
        for fault in waiting:
            assert away.end_ms + RETURN <= fault.at_ms or fault.end_ms + RETURN <= away.at_ms


@given(plans)
def test_loss_is_accepted_only_on_purpose(plan: Plan) -> None:
    """Chance never draws what needs an operator, and a plan says what its scenario requires."""
    scenario = SCENARIOS[plan.scenario]
    if not scenario.steps:
        assert all(KINDS[fault.kind].drawn for fault in plan.faults)
    assert plan.requires == scenario.requires
    assert set(plan.requires) <= set(HAPPENINGS)


def test_every_kind_can_be_done_and_is_used() -> None:
    """Each kind has its fault, and at least one scenario has each kind."""
    assert set(BREAKS) | {"stampede"} == set(KINDS)
    aimed = {step.kind for scenario in SCENARIOS.values() for step in scenario.steps}
    assert aimed | set(SCENARIOS["random"].kinds) == set(KINDS)


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_scenario_breaks_something(name: str) -> None:
    """Each scenario has faults in its shortest run, all of kinds that the nemesis can do."""
    plan = make_plan(SCENARIOS[name], 1, 0.5, EVERYTHING)
    assert plan.faults
    assert {fault.kind for fault in plan.faults} <= set(BREAKS) | {"stampede"}


@pytest.mark.parametrize("seed", range(20))
def test_a_short_run_has_all_kinds_of_cuts(seed: int) -> None:
    """Chance chooses among the kinds that were used least: in a minute at most one is missing."""
    cuts = set(SCENARIOS["partition-zoo"].kinds)
    for minutes, waiting in ((1.0, 1), (2.0, 0)):
        plan = make_plan(SCENARIOS["partition-zoo"], seed, minutes, EVERYTHING)
        assert len(cuts - {fault.kind for fault in plan.faults}) <= waiting


def test_what_a_machine_cannot_do_is_left_out_and_named() -> None:
    """Without namespaces there are no cuts, and the plan says so."""
    plan = make_plan(SCENARIOS["p16"], 1, 1.0, EVERYTHING - {"zombie"})
    assert {fault.kind for fault in plan.faults} == {"kill-quick"}
    assert plan.not_possible == ["zombie"]


def test_a_hint_for_a_misspelt_scenario() -> None:
    """An unknown scenario is refused by name, with the nearest known one."""
    with pytest.raises(MigratoryError, match=r"UNKNOWN_SCENARIO.*\n.*kill-storm"):
        find_scenario("kil-storm")


@pytest.mark.parametrize("minutes", [0, -1, 0.1, float("nan"), 1e9])
def test_lengths_that_make_no_run_are_refused(minutes: float) -> None:
    """A run has room for a storm, and an end."""
    with pytest.raises(MigratoryError, match="BAD_LENGTH"):
        make_plan(SCENARIOS["p1"], 1, minutes, EVERYTHING)


def test_every_group_has_topics() -> None:
    """Each group has several topics, and faults aim where a hot one is."""
    found = topics_of(8)
    hot, cold = hot_and_cold(8)
    assert all(group_of(topic, 8) == group for group in found for topic in found[group])
    assert all(len(topics) > 1 for topics in found.values())
    assert group_of(hot[0], 8) == 0
    assert sorted(hot + cold) == sorted(topic for each in found.values() for topic in each)


def test_loopback_cannot_cut() -> None:
    """The fallback says what it cannot do."""
    network = Network()
    network.add("m1")
    with pytest.raises(MigratoryError, match="NO_NAMESPACES"):
        network.cut("m1", "m1")
