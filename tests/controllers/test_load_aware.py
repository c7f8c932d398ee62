"""Draft sizes by the load: learned from acceptance and the costs of passes, or given."""

import pytest
from helpers.contracts import contract_of
from helpers.made_records import outcome_of

from specexp.controllers import DraftLengths, LoadAware
from specexp.core.context import Context
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.testing.controllers import ControllerContract, FrozenControllerContract

FREE_ALONE = LatencyProfile("free alone", {1: 10.0, 9: 10.0}, {1: 1.0}, lanes_ms={8: {1: 10.0, 9: 90.0}})
"""Eight more tokens cost nothing where one lane is served, and eight times as much where eight are."""


TestLoadAware = contract_of(ControllerContract, lambda: LoadAware(least_steps=2))
TestDraftLengths = contract_of(FrozenControllerContract, lambda: DraftLengths({1: 3, 4: 1, 8: 0}))


def taught(accepted, steps=10, nodes=4, **given):
    """Return a controller after steps of a chain, with this many of its first nodes accepted."""
    controller = LoadAware(**given)
    controller.use_latency(FREE_ALONE)
    for _ in range(steps):
        controller.observe(outcome_of([-1, *range(nodes)], range(1, accepted + 1)))
    return controller


def plan_at(controller, lanes, steps=1):
    context = Context([0])
    context.lanes, context.steps = lanes, steps
    return controller.plan(context)


def test_one_lane_drafts_what_is_accepted_and_many_draft_nothing():
    controller = taught(accepted=2)
    assert plan_at(controller, 1) == Plan(max_nodes=2)  # more is free, and gives nothing
    assert plan_at(controller, 8) == Plan(
        max_nodes=0, max_depth=0
    )  # of 8 lanes a node more costs a step's time


def test_the_table_names_the_lanes_where_it_changes():
    controller = taught(accepted=2)
    table = controller.table(8)
    assert table[1] == 2
    assert table[max(table)] == 0
    assert all(plan_at(DraftLengths(table), lanes) == plan_at(controller, lanes) for lanes in range(1, 9))


def test_a_step_counts_for_every_smaller_draft():
    controller = taught(accepted=3, window=10**6)
    rates = [controller.tokens_a_second(nodes, 1) for nodes in range(5)]
    assert rates == pytest.approx([100, 200, 300, 400, 400], rel=1e-3)


def test_draft_passes_are_counted_down_to_the_depth_of_a_node():
    profile = LatencyProfile("dear drafts", {1: 10.0}, {1: 10.0})
    controller = LoadAware(window=10**6)
    controller.use_latency(profile)
    outcome = outcome_of([-1, 0, 0, 1], [1, 3])
    outcome.pass_tokens = (1, 1)
    for _ in range(10):
        controller.observe(outcome)
    rates = [controller.tokens_a_second(nodes, 1) for nodes in range(4)]
    assert rates == pytest.approx([100, 2 / 0.02, 2 / 0.02, 3 / 0.03], rel=1e-3)


def test_now_and_then_and_until_enough_is_known_the_whole_budget_is_drafted():
    controller = taught(accepted=0, explore=4)
    assert [plan_at(controller, 1, steps) == Plan() for steps in range(8)] == [False, False, False, True] * 2
    assert plan_at(taught(accepted=0, steps=3), 1) == Plan()


def test_lengths_hold_from_their_number_of_lanes_on():
    controller = DraftLengths({8: 0, 1: None, 4: 3})
    plans = [plan_at(controller, lanes) for lanes in (1, 3, 4, 7, 8, 20)]
    assert plans == [Plan(), Plan(), *[Plan(max_nodes=3)] * 2, *[Plan(max_nodes=0, max_depth=0)] * 2]


def test_lengths_without_one_lane_are_refused():
    with pytest.raises(ValueError, match="nodes must have an entry for 1 lane"):
        DraftLengths({2: 3})


def test_passes_of_several_lanes_are_interpolated_and_else_taken_for_one_over_all_tokens():
    profile = LatencyProfile("a", {1: 10.0, 4: 16.0}, lanes_ms={2: {1: 12.0, 4: 24.0}, 6: {1: 20.0, 4: 64.0}})
    assert [profile.lanes_seconds(1, lanes) for lanes in (1, 2, 4, 6, 8)] == pytest.approx(
        [0.010, 0.012, 0.016, 0.020, 0.024]
    )
    assert profile.lanes_seconds(2, 2) == pytest.approx(0.016)
    assert LatencyProfile("b", {1: 10.0, 4: 16.0}).lanes_seconds(2, 2) == pytest.approx(0.016)
    assert LatencyProfile.from_dict(profile.to_dict()) == profile
