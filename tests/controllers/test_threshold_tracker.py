"""The threshold that follows the node budget, or what pays."""

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.made_records import outcome_of

from specexp.builders import DySpecThreshold
from specexp.controllers import ThresholdTracker
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.testing.controllers import ControllerContract
from specexp.testing.fakes import hashed_model
from specexp.verifiers import RejectionSampling

TestBudget = contract_of(ControllerContract, lambda: ThresholdTracker(budget=8))
TestGoodput = contract_of(ControllerContract, lambda: ThresholdTracker(aim="goodput"))
TestColdGoodput = contract_of(ControllerContract, lambda: ThresholdTracker(aim="goodput", state="cold", initial=0.2))


def observe(controller, nodes, accepted=0, seconds=0.0):
    """Observe a root with so many children of value 0.1."""
    values = [1.0] + [0.1] * nodes
    outcome = outcome_of([-1] + [0] * nodes, range(1, accepted + 1), values=values)
    outcome.seconds = {"target": seconds}
    controller.observe(outcome)


def test_a_small_tree_lowers_the_threshold_and_a_large_one_raises_it():
    controller = ThresholdTracker(budget=10)
    observe(controller, 5)  # half the budget: log threshold moves by -0.1 / 2
    assert controller.threshold == pytest.approx(0.1 * np.exp(-0.05))
    observe(controller, 15)
    assert controller.threshold == pytest.approx(0.1)


def test_goodput_moves_to_the_value_that_pays_for_a_node():
    """A step of 10 ms, 1 ms a node, 4 nodes of value 0.1 on average, 1 of 2 tokens accepted: at 2 tokens in 14 ms a
    node costs 1 / 7 token, and a unit of value brings 1 / 0.4 accepted ones, so a node pays from (1 / 7) / 2.5 on."""
    controller = ThresholdTracker(aim="goodput")
    for nodes in (2, 6) * 100:
        observe(controller, nodes, accepted=1, seconds=(10 + nodes) / 1e3)
    assert controller.threshold == pytest.approx((2 / 14) / (1 / 0.4), rel=0.01)


def test_a_cold_controller_resets_at_every_prompt_and_a_carried_one_does_not():
    for state, expected in (("cold", 0.1), ("carry", 0.1 * np.exp(-0.05))):
        controller = ThresholdTracker(budget=10, state=state)
        observe(controller, 5)
        controller.begin(Context([1]), None)
        assert controller.threshold == pytest.approx(expected)


def test_the_mean_tree_has_the_size_of_the_budget():
    """Where the fixed threshold of one over the budget misses it."""
    target, draft = hashed_model(40, seed=1), hashed_model(40, seed=1, spread=1.2)

    def mean_nodes(controller):
        builder = DySpecThreshold(1 / 12, max_nodes=48)
        decoder = Decoder(target, DraftModel(draft), builder, RejectionSampling(1.0), controller)
        counts = [decoder.generate([3], max_new_tokens=120, sequence=number, seed=0) for number in range(4)]
        del counts[0]  # the threshold adapts in the first output
        return sum(count.drafted_nodes for count in counts) / sum(count.steps for count in counts)

    assert abs(mean_nodes(None) - 12) > 1.5
    assert mean_nodes(ThresholdTracker(budget=12)) == pytest.approx(12, rel=0.05)
