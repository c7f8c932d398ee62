"""Thresholds on the confidence of the draft, given or fitted."""

from math import log

import pytest
from helpers.contracts import contract_of
from helpers.made_records import outcome_of
from hypothesis import given, strategies as st

from specexp.builders import Chain
from specexp.controllers import AdaptiveConfidence, ConfidenceThreshold
from specexp.controllers.confidence_threshold import best_threshold
from specexp.core.context import Context
from specexp.core.dialogue import DraftState
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.testing.controllers import ControllerContract, FrozenControllerContract
from specexp.testing.fakes import bigram_model

pytestmark = pytest.mark.unit

TestConfidenceThreshold = contract_of(FrozenControllerContract, lambda: ConfidenceThreshold(0.4))
TestShallowOne = contract_of(FrozenControllerContract, lambda: ConfidenceThreshold(0.1, max_depth=2))
TestLastToken = contract_of(FrozenControllerContract, lambda: ConfidenceThreshold(0.4, rule="token"))


def first_draft(model, controller):
    seen = []
    decoder = Decoder(model, DraftModel(model), Chain(8), controller=controller)
    decoder.generate([0], max_new_tokens=20, observers=[seen.append])
    return seen[0].tree.num_nodes


def test_the_token_that_falls_below_is_still_drafted():
    """Confidences are 2 / 3 everywhere: products of 0.67, 0.44 and 0.30 after one, two and three tokens."""
    even = bigram_model([[log(2.0), 0.0]] * 2)
    lengths = [first_draft(even, ConfidenceThreshold(threshold)) for threshold in (1.0, 0.5, 0.4, 0.2)]
    assert lengths == [1, 2, 3, 4]


def test_the_last_token_alone_may_decide():
    """Confidences are 0.9, 0.9, 0.5: the product falls below 0.85 with the second token, a token with the third."""
    model = bigram_model([[log(0.05), log(0.9), log(0.05)], [log(0.05), log(0.05), log(0.9)], [log(0.5)] * 2 + [-9.0]])
    assert first_draft(model, ConfidenceThreshold(0.85, rule="token")) == 3
    assert first_draft(model, ConfidenceThreshold(0.85, rule="product")) == 2


TestAdaptiveConfidence = contract_of(ControllerContract, lambda: AdaptiveConfidence())
TestCold = contract_of(ControllerContract, lambda: AdaptiveConfidence(0.7, max_depth=3, state="cold"))


def step(controller, confidences, accepted, ended=False):
    parents = [-1, *range(len(confidences))]
    controller.observe(outcome_of(parents, range(1, accepted + 1), bonus=not ended, q=[1.0, *confidences]))


def test_the_last_token_decides_and_the_first_is_always_drafted():
    controller = AdaptiveConfidence(initial=0.5)
    sure = DraftState(2, 2, (1, 1), log_prob=log(0.06), last_log_prob=log(0.6))
    unsure = DraftState(2, 2, (1, 1), log_prob=log(0.4), last_log_prob=log(0.4))
    assert controller.keep_drafting(Context([1]), DraftState(0, 0))
    assert controller.keep_drafting(Context([1]), sure)
    assert not controller.keep_drafting(Context([1]), unsure)


def test_the_accepted_and_the_first_rejected_token_are_labeled():
    controller = AdaptiveConfidence()
    step(controller, [0.9, 0.8, 0.3, 0.2], accepted=2)
    assert controller.state_dict()["confidences"] == pytest.approx([0.9, 0.8, 0.3])
    assert controller.state_dict()["matches"] == [True, True, False]
    step(controller, [0.7, 0.6], accepted=1, ended=True)  # the second has no verdict
    assert controller.state_dict()["matches"] == [True, True, False, True]


def test_it_waits_for_six_tokens_of_both_labels():
    controller = AdaptiveConfidence(initial=0.4)
    step(controller, [0.9, 0.8, 0.7, 0.6, 0.5], accepted=5)
    step(controller, [0.9, 0.8], accepted=2)
    assert controller.threshold == 0.4
    step(controller, [0.1], accepted=0)
    assert controller.threshold == pytest.approx(0.5)  # the least confident that was accepted


@given(
    st.lists(st.tuples(st.integers(1, 8), st.booleans()), min_size=2, max_size=12).filter(
        lambda tokens: len({matched for _, matched in tokens}) == 2
    )
)
def test_the_threshold_is_the_best_of_all_by_trying_each(tokens):
    """A token at or above the threshold is drafted on after; matches below it are the false negatives."""

    def cost(threshold):
        good = [value for value, matched in tokens if matched]
        bad = [value for value, matched in tokens if not matched]
        false_positives = sum(value >= threshold for value in bad) / len(bad)
        false_negatives = sum(value < threshold for value in good) / len(good)
        return false_positives + 3 * false_negatives

    values, matches = zip(*tokens, strict=True)
    found = best_threshold(values, matches)
    assert found in values
    assert cost(found) == pytest.approx(min(cost(value) for value in values))


def test_a_cold_controller_starts_every_prompt_in_its_initial_state():
    controller = AdaptiveConfidence(state="cold")
    step(controller, [0.9, 0.8, 0.7, 0.6, 0.5, 0.1], accepted=5)
    assert controller.threshold != 0.4
    controller.begin(Context([1]), None)
    assert controller.threshold == 0.4


def test_a_state_with_a_missing_match_is_refused():
    with pytest.raises(ValueError, match="2 confidences and 1 matches"):
        AdaptiveConfidence().load_state_dict({"threshold": 0.3, "confidences": [0.5, 0.6], "matches": [True]})
