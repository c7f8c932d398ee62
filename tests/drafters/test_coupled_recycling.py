"""Coupled Token Recycling: the target's own noise ranks the candidates."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of

from specexp.builders import Chain
from specexp.core.context import Context
from specexp.core.contracts import Verifier
from specexp.core.dialogue import Request, Verdict
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import root_tree
from specexp.drafters import TokenRecycling
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import bigram_model
from specexp.verifiers import KeyedSampling

VOCABULARY = 6
LOGITS = torch.tensor([[0.0, 4.0, 3.5, 3.0, 0.0, 0.0]])  # after token 0: best 1, then 2, then 3


TestCoupled = contract_of(DrafterContract, lambda: TokenRecycling(coupled=True))
TestCoupledMerge = contract_of(
    DrafterContract,
    lambda: TokenRecycling(k=3, update="merge", initialisation="prompt", state="carry", coupled=True),
)


def proposed_after_token_0(context: Context, k: int = 3) -> list[int]:
    drafter = TokenRecycling(k=3, coupled=True)
    drafter.check_vocabulary(VOCABULARY)
    drafter.observe(Outcome(context, root_tree(0), LOGITS, (), (1,)))
    request = Request(np.array([0]), np.array([-1]), np.array([-1]), np.array([0]), k)
    return drafter.propose(context, request).tokens[0].tolist()


@pytest.mark.parametrize("sequence", range(20))
def test_candidates_are_ranked_as_the_target_would_sample_them(sequence):
    context = Context([0], sequence=sequence, noise_temperature=2.0)
    noise = context.target_noise(1, 1, VOCABULARY)[0].numpy()
    by_hand = sorted((1, 2, 3), key=lambda token: -(LOGITS[0, token].item() / 2.0 + noise[token]))
    assert proposed_after_token_0(context) == by_hand
    assert proposed_after_token_0(context, k=1) == by_hand[:1]


def test_without_noise_the_ranks_are_the_targets_own():
    assert proposed_after_token_0(Context([0])) == [1, 2, 3]


def test_what_depends_on_the_last_token_alone_is_always_guessed():
    """The stored logits are then the true ones: a chain of 3 adds 4 tokens at every step."""
    model = bigram_model(np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY)).tolist())
    drafter = TokenRecycling(k=VOCABULARY, coupled=True, state="carry", prefill_update=True)
    decoder = Decoder(model, drafter, Chain(3), KeyedSampling(1.0))
    decoder.generate([0, 1, 2, 3, 4, 5, 0], max_new_tokens=1, seed=0)  # the prompt teaches every row
    for sequence in range(5):
        result = decoder.generate([1], max_new_tokens=24, sequence=sequence, seed=0)
        assert result.steps == 6
        expected = Decoder(model, verifier=KeyedSampling(1.0)).generate(
            [1], max_new_tokens=24, sequence=sequence, seed=0
        )
        assert result.token_ids == expected.token_ids


class OwnNoise(Verifier):
    def verify(self, context, tree, logits):
        return Verdict((), 0)


def test_a_verifier_with_noise_of_its_own_is_refused():
    with pytest.raises(ValueError, match="TokenRecycling is coupled, but OwnNoise draws noise of its own"):
        Decoder(
            bigram_model([[0.0] * VOCABULARY] * VOCABULARY),
            TokenRecycling(k=2, coupled=True),
            Chain(2),
            OwnNoise(),
        )


def test_a_preloaded_matrix_has_no_logits_to_couple():
    with pytest.raises(ValueError, match="coupled and preloaded"):
        TokenRecycling(state="preloaded", matrix=np.zeros((6, 8), dtype=np.int32), coupled=True)
