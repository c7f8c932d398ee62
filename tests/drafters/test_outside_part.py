"""A drafter written outside the project keeps the contract by inheriting one class."""

import numpy as np

from specexp.builders import Chain
from specexp.core.decoder import Decoder
from specexp.core.dialogue import Candidates
from specexp.core.drafter import Drafter
from specexp.core.tree import NO_CANDIDATE
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import counting_model


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


class TestSuccessor(DrafterContract):
    def make_drafter(self):
        return Successor()


def test_it_decodes_without_any_registration():
    result = Decoder(counting_model(24), Successor(), Chain(4)).generate([0], max_new_tokens=10)
    assert result.token_ids == list(range(1, 11))
    assert result.steps == 2
