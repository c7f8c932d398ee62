"""Which ways steps ended, by hand."""

from __future__ import annotations

import numpy as np
import torch

from specexp.core.context import Context
from specexp.core.outcome import Outcome
from specexp.core.tree import ROOT_ONLY, TokenTree, TreeShape
from specexp.verify.result import StepEndings

SHAPE = TreeShape.from_rank_paths([[0], [1], [0, 0], [0, 0, 0]])


def noted(*steps, shape=SHAPE):
    branches = StepEndings()
    for accepted, new in steps:
        tree = TokenTree(shape, np.arange(shape.num_nodes + 1))
        branches.observe(Outcome(Context([0]), tree, torch.zeros(shape.num_nodes + 1, 8), accepted, new))
    return branches


def test_every_way_a_step_can_end_is_counted():
    found = noted(
        ((), (7,)),  # nothing of two candidates accepted
        ((1,), (1, 7)),  # its child refused
        ((2,), (2, 7)),  # a leaf, but not the deepest
        ((1, 3, 4), (1, 3, 4, 7)),  # everything
        ((1, 3), (1, 3)),  # cut by the limit: how it would have ended is unknown
    )
    assert dict(found.rejected) == {1: 1, 2: 1}
    assert dict(found.leaves) == {1: 1, 3: 1}
    assert (found.steps, found.tokens, found.rows, found.whole, sum(found.rejected.values())) == (
        5,
        11,
        25,
        1,
        2,
    )
    assert found.never == ["rejected at depth 3"]
    assert str(found) == (
        "rejected at depth 1 to 3: 1, 1, 0; bonus at a leaf 2, of them all accepted 1; nothing drafted 0"
    )


def test_counts_add_up():
    total = noted(((), (7,))) + noted(((1, 3, 4), (1, 3, 4, 7)))
    assert (total.steps, sum(total.rejected.values()), total.whole, total.deepest) == (2, 1, 1, 3)
    assert total.never == ["rejected at depth 2, 3"]


def test_plain_decoding_has_no_branches():
    found = noted(((), (7,)), shape=ROOT_ONLY)
    assert (found.undrafted, found.never) == (1, [])
    assert str(found) == "1 steps, nothing drafted"
