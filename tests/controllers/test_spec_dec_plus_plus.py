"""The learned head: its initial decisions, its gradient, and the odds that it learns."""

from math import log

import numpy as np
import pytest
from helpers.contracts import contract_of

from specexp.config.artifacts import load_artifact, save_artifact
from specexp.controllers import ConfidenceThreshold, SpecDecPlusPlus
from specexp.controllers.spec_dec_plus_plus import AcceptanceHead
from specexp.core.context import Context
from specexp.core.dialogue import DraftState
from specexp.testing.controllers import ControllerContract, FrozenControllerContract

TestSpecDecPlusPlus = contract_of(ControllerContract, lambda: SpecDecPlusPlus())
TestCold = contract_of(
    ControllerContract, lambda: SpecDecPlusPlus(0.6, max_depth=3, rejection_weight=6.0, state="cold")
)
TestFrozen = contract_of(FrozenControllerContract, lambda: SpecDecPlusPlus(learn=False))


@pytest.mark.parametrize("share", [0.1, 0.29, 0.31, 0.8])
def test_initially_it_decides_by_the_drafts_own_probability(share):
    state = DraftState(2, 2, (1, 1), log_prob=log(share), last_log_prob=log(0.9))
    expected = ConfidenceThreshold(0.3).keep_drafting(Context([1]), state)
    assert SpecDecPlusPlus(0.3).keep_drafting(Context([1]), state) == expected


def features(count, generator):
    share = generator.uniform(0.05, 0.95, count)
    columns = (np.log(share), np.log(generator.uniform(0.3, 1, count)), np.zeros(count), np.full(count, 0.5))
    return share, np.stack(columns, axis=1)


@pytest.mark.parametrize(("weight", "expected"), [(1.0, 0.25), (3.0, 0.1)])
def test_it_learns_how_far_the_draft_is_wrong(weight, expected):
    """Half of the draft's own probability is accepted, at 0.5 a quarter. Weight 3 turns odds of 1 to 3 into 1 to 9."""
    head, generator = AcceptanceHead(16, weight), np.random.default_rng(0)
    for _ in range(1500):
        share, seen = features(8, generator)
        head.learn(seen, generator.uniform(size=8) < share / 2)
    half = np.array([[log(0.5), log(0.6), 0.0, 0.5]])
    assert head.probability(half)[0] == pytest.approx(expected, abs=0.07)


def test_its_gradient_is_that_of_the_weighted_cross_entropy():
    head, generator = AcceptanceHead(3, 2.0), np.random.default_rng(1)
    _, seen = features(5, generator)
    accepted = np.array([True, False, True, False, False])
    head.weights += generator.normal(0, 0.3, head.weights.size)

    def loss(weights):
        head.weights = weights
        p = head.probability(seen)
        return -np.where(accepted, np.log(p), 2.0 * np.log(1 - p)).mean()

    start, step = head.weights.copy(), 1e-6
    each = np.eye(start.size) * step
    expected = np.array([(loss(start + one) - loss(start - one)) / (2 * step) for one in each])
    head.weights = start.copy()
    head.learn(seen, accepted)
    assert np.sqrt(head.squares) * np.sign(start - head.weights) == pytest.approx(expected, abs=1e-6)


def test_an_artifact_holds_the_head(tmp_path):
    controller = SpecDecPlusPlus()
    controller._head.learn(features(4, np.random.default_rng(0))[1], np.array([True, False, True, True]))
    payload = {"head.safetensors": {name: np.asarray(one) for name, one in controller.state_dict().items()}}
    save_artifact(tmp_path / "head", "acceptance-head", payload)
    made = load_artifact(tmp_path / "head").controller
    assert not made.learns
    assert (made.state_dict()["weights"] == controller.state_dict()["weights"]).all()
    with pytest.raises(ValueError, match="the saved head must have arrays"):
        SpecDecPlusPlus(width=4, head=payload["head.safetensors"])
