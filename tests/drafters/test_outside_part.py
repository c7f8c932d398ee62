"""A drafter written outside the project keeps the contract by inheriting one class."""

import numpy as np
import pytest
from helpers.contracts import contract_of

from specexp.builders import Chain
from specexp.core.contracts import Drafter
from specexp.core.dialogue import Candidates
from specexp.core.loop import Decoder
from specexp.core.tree import NO_CANDIDATE
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import counting_model

pytestmark = pytest.mark.unit


class Successor(Drafter):
    """After token t it guesses t + 1, and after the last token nothing."""

    last = 23

    @property
    def max_candidates(self):
        return 1

    def propose(self, context, request):
        tokens = np.full((request.rows.size, request.k), NO_CANDIDATE, dtype=np.int64)
        after = request.tokens[request.rows] + 1
        tokens[:, 0] = np.where(after <= self.last, after, NO_CANDIDATE)
        return Candidates(tokens)


TestSuccessor = contract_of(DrafterContract, lambda: Successor())


class Nothing(Successor):
    """A drafter without a return statement."""

    def propose(self, context, request):
        super().propose(context, request)


class Foreign(Successor):
    """Proposes a token that no tokenizer has."""

    def __init__(self, token: int):
        self.token = token

    def propose(self, context, request):
        return Candidates(np.full((request.rows.size, request.k), self.token, dtype=np.int64))


def test_a_drafter_that_returns_no_candidates_is_named():
    with pytest.raises(TypeError, match=r"^Nothing\.propose must return Candidates, got NoneType"):
        Decoder(counting_model(24), Nothing(), Chain(4)).generate([0], max_new_tokens=10)


@pytest.mark.parametrize("token", [24, 1_000_000])
def test_a_drafter_of_tokens_outside_the_vocabulary_is_named(token):
    message = f"^Foreign proposed token {token}; the target's vocabulary has ids 0 to 23$"
    with pytest.raises(ValueError, match=message):
        Decoder(counting_model(24), Foreign(token), Chain(4)).generate([0], max_new_tokens=10)
