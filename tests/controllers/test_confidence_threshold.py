"""Drafting on while the product of the confidences, or the last one, is high enough."""

from math import log

import pytest
from helpers.contracts import contract_of
from hypothesis import given, strategies as st

from specexp.builders import Chain
from specexp.controllers import ConfidenceThreshold
from specexp.core.context import Context
from specexp.core.dialogue import DraftState
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.testing.controllers import FrozenControllerContract
from specexp.testing.fakes import FakeDrafter, bigram_model

TestConfidenceThreshold = contract_of(FrozenControllerContract, lambda: ConfidenceThreshold(0.4))
TestShallowOne = contract_of(FrozenControllerContract, lambda: ConfidenceThreshold(0.1, max_depth=2))
TestLastToken = contract_of(FrozenControllerContract, lambda: ConfidenceThreshold(0.4, rule="token"))


@given(st.floats(0.01, 1.0), st.floats(0.01, 1.0))
def test_it_drafts_on_while_the_product_reaches_the_threshold(threshold, product):
    state = DraftState(3, 3, (1, 1, 1), log_prob=log(product), last_log_prob=0.0)
    assert ConfidenceThreshold(threshold).keep_drafting(Context([1]), state) == (
        log(product) >= log(threshold)
    )


def test_the_token_that_falls_below_is_still_drafted():
    """Confidences are 2 / 3 everywhere: products of 0.67, 0.44 and 0.30 after one, two and three tokens."""
    even = bigram_model([[log(2.0), 0.0]] * 2)

    def drafted(threshold):
        seen = []
        decoder = Decoder(even, DraftModel(even), Chain(8), controller=ConfidenceThreshold(threshold))
        decoder.generate([0], max_new_tokens=20, observers=[seen.append])
        return seen[0].tree.num_nodes

    assert [drafted(threshold) for threshold in (1.0, 0.5, 0.4, 0.2)] == [1, 2, 3, 4]


def test_the_last_token_alone_may_decide():
    """Confidences are 0.9, 0.9, 0.5: the product falls below 0.85 with the second token, a token with the third."""
    model = bigram_model(
        [[log(0.05), log(0.9), log(0.05)], [log(0.05), log(0.05), log(0.9)], [log(0.5)] * 2 + [-9.0]]
    )

    def drafted(**rule):
        seen = []
        controller = ConfidenceThreshold(**rule)
        decoder = Decoder(model, DraftModel(model), Chain(8), controller=controller)
        decoder.generate([0], max_new_tokens=20, observers=[seen.append])
        return seen[0].tree.num_nodes

    assert drafted(threshold=0.85, rule="token") == 3
    assert drafted(threshold=0.85, rule="product") == 2


def test_a_drafter_without_probabilities_is_refused():
    with pytest.raises(
        ValueError, match="ConfidenceThreshold decides by draft probabilities and FakeDrafter gives"
    ):
        Decoder(
            bigram_model([[0.0, 1.0]] * 2),
            FakeDrafter(lambda tokens: [1]),
            Chain(2),
            controller=ConfidenceThreshold(),
        )
