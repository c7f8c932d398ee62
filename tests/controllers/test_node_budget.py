"""Draft sizes by the lanes of a pass: one budget of nodes for all of them, or given lengths."""

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.made_records import outcome_of

from specexp.controllers import DraftLengths, NodeBudget
from specexp.core.context import Context
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.testing.controllers import ControllerContract, FrozenControllerContract

pytestmark = pytest.mark.unit

FREE_ALONE = LatencyProfile("free alone", {1: 10.0, 9: 10.0}, {1: 1.0}, lanes_ms={8: {1: 10.0, 9: 90.0}})
"""Eight more tokens cost nothing where one lane is served, and eight times as much where eight are."""


TestNodeBudget = contract_of(ControllerContract, NodeBudget)
TestDraftLengths = contract_of(FrozenControllerContract, lambda: DraftLengths({1: 3, 4: 1, 8: 0}))


def step(controller, accepted, contexts=(None,), nodes=4, seconds=None):
    """Plan and observe one step of a chain in each lane: the first ``accepted`` nodes are accepted."""
    for context, hits in zip(contexts, accepted, strict=True):
        outcome = outcome_of([-1, *range(nodes)], range(1, hits + 1))
        if context in (None, contexts[0]):
            controller.plan(context or outcome.context)
        if context is not None:
            context.lanes, context.rows = len(contexts), len(contexts) * (1 + nodes)
            outcome.context = context
        outcome.seconds = {} if seconds is None else seconds
        controller.observe(outcome)


def taught(accepted, steps=10, profile=FREE_ALONE):
    """Return a controller after steps of a chain, with this many of its first nodes accepted."""
    controller = NodeBudget()
    controller.use_latency(profile)
    for _ in range(steps):
        step(controller, [accepted])
    return controller


def plan_at(controller, lanes, steps=1):
    context = Context([0])
    context.lanes, context.steps = lanes, steps
    return controller.plan(context)


OFF = Plan(max_nodes=0, max_depth=0)


def test_one_lane_drafts_what_is_accepted_and_many_draft_nothing():
    controller = taught(accepted=2)
    assert plan_at(controller, 1) == Plan(max_nodes=2)  # more is free, and gives nothing
    shared = controller.share([np.array([1.0, 0.4])] * 8, 8)
    assert shared == [0] * 8  # a node of each lane costs a step's time


def test_nodes_go_to_the_lanes_where_they_are_worth_most():
    profile = LatencyProfile("a row costs a tenth", {1: 10.0, 11: 20.0})
    controller = taught(accepted=2, profile=profile)
    # 2 lanes take 11 ms for 2 tokens, so a row of 1 ms must bring more than 0.18 tokens, later more
    assert controller.share([np.array([0.9, 0.8, 0.7]), np.array([0.1, 0.01])], 2) == [3, 0]
    assert controller.share([np.array([0.9, 0.8, 0.1]), np.array([0.5, 0.01])], 2) == [2, 1]
    assert controller.share([np.array([0.1]), np.array([0.15])], 2) == [0, 0]
    assert controller.share([np.array([0.9, 0.1])], 2) == [1]  # the other lane never drafts


def test_a_gain_below_the_margin_is_not_worth_a_draft():
    profile = LatencyProfile("a row costs a tenth", {1: 10.0, 11: 20.0})
    controller = taught(2, profile=profile)
    # 1.12 or 1.11 tokens in 11 ms, 1 token in 10 ms: worth 1.2 or 1.1 times its cost
    assert controller.share([np.array([0.12])], 1) == [1]
    assert controller.share([np.array([0.11])], 1) == [0]


def test_a_lane_without_gain_drafts_nothing_after_thirty_tokens_of_its_own():
    controller = NodeBudget()
    controller.use_latency(LatencyProfile("a row costs a tenth", {1: 10.0, 11: 20.0}))
    good, bad = Context([0]), Context([1])
    for context in (good, bad):
        controller.begin(context, None)
    for _ in range(30):
        step(controller, [4, 0], (good, bad))
    good.steps = bad.steps = 1
    assert controller.plan(good) == Plan(max_nodes=4)
    assert controller.plan(bad) == OFF


def test_one_lane_at_a_time_probes():
    controller = taught(accepted=0)
    lanes = [Context([number]) for number in range(3)]
    for context in lanes:
        controller.begin(context, None)
    probing = []
    for _ in range(128):
        for context in lanes:
            context.lanes = 3
        probing.append([controller.plan(context).max_nodes or 0 for context in lanes])
        step(controller, [0] * 3, lanes, nodes=0)
    assert max(map(sum, probing[32:])) == 2
    assert np.count_nonzero(probing[32:], axis=0).tolist() == [1, 1, 1]


def test_a_new_lane_starts_with_the_acceptance_of_all():
    controller = taught(accepted=2)
    context = Context([0])
    controller.begin(context, None)
    context.steps = 1
    assert controller.plan(context) == Plan(max_nodes=2)


def test_more_nodes_are_planned_if_the_drafter_often_has_no_candidate():
    """Four rows more are free. In one of four steps a draft exists, so eight planned nodes are two on average."""
    profile = LatencyProfile("four rows are free", {1: 10.0, 5: 10.0, 6: 20.0, 9: 20.0})
    chances = [np.full(8, 0.3)]
    controller = taught(accepted=4, profile=profile)
    assert controller.share(chances, 1) == [4]
    for _ in range(30):
        step(controller, [0], nodes=0)
    assert controller.share(chances, 1) == [8]


def test_costs_are_measured_without_a_profile():
    controller = NodeBudget()
    for nodes in (0, 1, 2, 4) * 15:
        seconds = {"target": 0.010 + 0.002 * (1 + nodes), "draft": 0.001 * nodes}
        step(controller, [min(1, nodes)], nodes=nodes, seconds=seconds)
    found = controller.seconds(1, np.arange(3))
    assert found == pytest.approx([0.012, 0.015, 0.018], rel=0.05)


def test_the_cost_of_a_row_is_that_of_the_batch():
    """The first six rows of a pass are free, and a lane has a cost of its own."""
    controller, lanes = NodeBudget(), [Context([number]) for number in range(4)]
    for number in range(120):
        nodes, contexts = number // 2 % 6, lanes[: 1 + 3 * (number % 2)]
        rows = len(contexts) * (1 + nodes)
        spent = 0.010 + 0.001 * len(contexts) + 0.002 * max(0, rows - 6)
        step(controller, [0] * len(contexts), contexts, nodes, {"target": spent / len(contexts)})
    assert controller.seconds(1, np.array([0, 2])) == pytest.approx([0.011, 0.011], rel=0.05)
    assert controller.seconds(4, np.array([0, 2, 8])) == pytest.approx([0.014, 0.014, 0.026], rel=0.05)


def test_plain_decoding_and_the_whole_budget_alternate_until_costs_are_known():
    controller, context, plans = NodeBudget(), Context([0]), []
    for _ in range(4):
        plans.append(controller.plan(context))
        step(controller, [0], [context])
    assert plans == [Plan(), OFF] * 2


def test_lengths_hold_from_their_number_of_lanes_on():
    controller = DraftLengths({8: 0, 1: None, 4: 3})
    plans = [plan_at(controller, lanes) for lanes in (1, 3, 4, 7, 8, 20)]
    assert plans == [Plan(), Plan(), *[Plan(max_nodes=3)] * 2, *[Plan(max_nodes=0, max_depth=0)] * 2]


def test_passes_of_several_lanes_are_interpolated_and_else_taken_for_one_over_all_tokens():
    profile = LatencyProfile("a", {1: 10.0, 4: 16.0}, lanes_ms={2: {1: 12.0, 4: 24.0}, 6: {1: 20.0, 4: 64.0}})
    seconds = [profile.lanes_seconds(1, lanes) for lanes in (1, 2, 4, 6, 8)]
    assert seconds == pytest.approx([0.010, 0.012, 0.016, 0.020, 0.024])
    assert profile.lanes_seconds(2, 2) == pytest.approx(0.016)
    assert LatencyProfile("b", {1: 10.0, 4: 16.0}).lanes_seconds(2, 2) == pytest.approx(0.016)
    assert LatencyProfile.from_dict(profile.to_dict()) == profile


def test_fewer_lanes_than_the_least_draft_as_the_builder_does():
    controller, together, plans = NodeBudget(from_lanes=2), [Context([0]), Context([1])], []
    for lanes in (1, 2, 2, 1, 1):
        contexts = together[:lanes]
        for one in contexts:
            one.lanes = lanes
        plans.append([controller.plan(one) for one in contexts])
        step(controller, [0] * lanes, contexts)
    alone = [plans[number] for number in (0, 3, 4)]
    assert alone == [[Plan()]] * 3
    assert all(OFF in both for both in plans[1:3])
