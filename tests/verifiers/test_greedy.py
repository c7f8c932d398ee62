"""Greedy verification by hand."""

import numpy as np
import torch
from helpers.contracts import contract_of

from specexp.core.context import Context
from specexp.core.dialogue import Verdict
from specexp.core.tree import TokenTree, TreeShape
from specexp.testing.verifiers import DeterministicVerifierContract
from specexp.verifiers import Greedy

TestGreedy = contract_of(DeterministicVerifierContract, lambda: Greedy())


def one_hot(*tokens):
    return torch.eye(6)[list(tokens)]


SHAPE = TreeShape.from_rank_paths([[0], [1], [0, 0], [1, 0], [1, 0, 0]])
TREE = TokenTree(SHAPE, np.array([5, 1, 2, 3, 3, 4]))


def test_the_targets_tokens_lead_down_the_tree():
    verdict = Greedy().verify(Context([5]), TREE, one_hot(2, 0, 3, 0, 4, 1))
    assert verdict == Verdict((2, 4, 5), 1)


def test_it_stops_where_no_child_carries_the_targets_token():
    assert Greedy().verify(Context([5]), TREE, one_hot(2, 0, 1, 0, 0, 0)) == Verdict((2,), 1)
    assert Greedy().verify(Context([5]), TREE, one_hot(3, 0, 0, 0, 0, 0)) == Verdict((), 3)


def test_among_equals_the_lowest_id_wins():
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        assert Greedy().target_token(Context([0]), torch.ones(5000, dtype=dtype), 1) == 0
