"""Greedy verification by hand."""

import torch
from helpers.contracts import contract_of

from specexp.core.context import Context
from specexp.testing.verifiers import DeterministicVerifierContract
from specexp.verifiers import Greedy

TestGreedy = contract_of(DeterministicVerifierContract, lambda: Greedy())


def test_among_equals_the_lowest_id_wins():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert Greedy().target_token(Context([0]), torch.ones(5000, dtype=dtype), 1) == 0
