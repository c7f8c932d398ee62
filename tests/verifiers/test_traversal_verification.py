"""Traversal verification decides chains as block verification does, and accepts more than rejection sampling."""

import numpy as np
import pytest
import torch
from helpers.branching import continued, joint_of, same
from helpers.contracts import contract_of
from helpers.drawn_trees import TARGETS, Draft, mean_length, output_of, seeded, step

from specexp.core.context import Context
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.testing.verifiers import LosslessVerifierContract
from specexp.verifiers import BlockVerification, RejectionSampling, TraversalVerification

TestDefault = contract_of(LosslessVerifierContract, lambda: TraversalVerification())
TestProcessed = contract_of(LosslessVerifierContract, lambda: TraversalVerification(0.7, top_k=4, top_p=0.9))
TestGreedyTemperature = contract_of(LosslessVerifierContract, lambda: TraversalVerification(temperature=0))

DRAWN = NodeKind.DRAWN


def test_three_children_with_two_each_are_exact():
    q, target = seeded(5, 16), seeded(12, 100)
    found = output_of(TraversalVerification(), Draft(q), DRAWN, (3, 2), target)
    assert same(continued(found, 3, target), joint_of(target, 3))


@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_chain_has_the_outputs_of_block_verification(length):
    draft, target = Draft(seeded(3, 16)), seeded(4, 100)
    for nested, _ in draft.trees(DRAWN, (1,) * length):
        chain = draft.token_tree(nested, DRAWN)
        assert same(step(TraversalVerification(), chain, target), step(BlockVerification(), chain, target))


def test_a_tree_is_accepted_more_often_than_by_rejection_sampling():
    draft, target = Draft(seeded(0, 16)), seeded(7, 100)
    for widths in ((1, 1), (2, 1), (2, 2)):
        ours, topdown = (
            mean_length(output_of(verifier(), draft, DRAWN, widths, target))
            for verifier in (TraversalVerification, RejectionSampling)
        )
        assert ours > topdown


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_point_masses_are_exact_and_accept_as_much_as_rejection_sampling(target):
    shape = TreeShape([-1, 0, 0, 1, 2], [-1, 0, 1, 0, 0])
    tree = TokenTree(shape, np.array([0, 2, 1, 2, 0]))
    found, topdown = (step(verifier(), tree, target) for verifier in (TraversalVerification, RejectionSampling))
    assert same(continued(found, 3, target), joint_of(target, 3))
    assert mean_length(found) == pytest.approx(mean_length(topdown), abs=1e-12)


def test_a_chain_of_a_thousand_nodes_is_verified():
    """The walk is no recursion."""
    size = 1200
    shape = TreeShape(np.arange(size + 1) - 1, [-1] + [0] * size)
    tree = TokenTree(shape, np.zeros(size + 1, dtype=np.int64))
    logits = torch.zeros(size + 1, 3, dtype=torch.float64)
    assert len(TraversalVerification().verify(Context([0]), tree, logits).accepted) < 50
