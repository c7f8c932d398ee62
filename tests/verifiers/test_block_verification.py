"""Block verification is exact, accepts more than rejection sampling, and is found if it has one of two known faults."""

from itertools import pairwise

import numpy as np
import pytest
from helpers.branching import continued, joint_of, same
from helpers.contracts import contract_of
from helpers.drawn_trees import DRAFTS, TARGETS, Draft, mean_length, output_of, seeded, step

from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.testing.verifiers import LosslessVerifierContract
from specexp.verifiers import BlockVerification, RejectionSampling

TestDefault = contract_of(LosslessVerifierContract, lambda: BlockVerification())
TestProcessed = contract_of(LosslessVerifierContract, lambda: BlockVerification(temperature=0.7, top_k=4, top_p=0.9))
TestGreedyTemperature = contract_of(LosslessVerifierContract, lambda: BlockVerification(temperature=0))


@pytest.mark.parametrize("length", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("seed", [0, 1])
def test_chains_of_one_to_five_are_exact(length, seed):
    """Distributions that differ at every place, of two tokens for the longest chains."""
    vocabulary = 3 if length < 5 else 2
    q, target = seeded(seed, 16, vocabulary), seeded(seed + 7, 100, vocabulary)
    found = output_of(BlockVerification(), Draft(q), NodeKind.DRAWN, (1,) * length, target)
    assert same(continued(found, length + 1, target), joint_of(target, length + 1))


def test_two_tokens_by_hand():
    """The example of Sun et al.: p = (1/3, 2/3), q = (2/3, 1/3), two drafts. Rejection sampling accepts 10/9.

    a_1 is 1/2 after token 0 and 1 after token 1; a_2 is 1/4, 1, 1/2 and 1 after 00, 01, 10 and 11. So both drafts pass
    with probability 4/9 * 1/4 + 2/9 + 2/9 * 1/2 + 1/9 = 5/9. The first alone passes after token 1 (h_1 = 1) and not
    after token 0 (h_1 = 0): it is accepted alone in the other half of 10, with 1/9. Together 2 * 5/9 + 1/9 = 11/9.
    """
    draft, target = Draft(lambda path: (2 / 3, 1 / 3)), lambda path: (1 / 3, 2 / 3)
    lengths = [
        mean_length(output_of(verifier(), draft, NodeKind.DRAWN, (1, 1), target)) - 1
        for verifier in (RejectionSampling, BlockVerification)
    ]
    assert lengths == pytest.approx([10 / 9, 11 / 9], abs=1e-7)


@pytest.mark.parametrize("seed", range(4))
def test_it_accepts_more_the_longer_the_chain_and_as_much_as_rejection_sampling_for_one_draft(seed):
    draft, target = Draft(seeded(seed, 16)), seeded(seed + 7, 100)
    gains = []
    for length in (1, 2, 3, 4):
        widths = (1,) * length
        block, token = (
            mean_length(output_of(verifier(), draft, NodeKind.DRAWN, widths, target))
            for verifier in (BlockVerification, RejectionSampling)
        )
        gains.append(block / token)
    assert gains[0] == pytest.approx(1, abs=1e-12)
    assert all(shorter <= longer + 1e-12 for shorter, longer in pairwise(gains))
    assert gains[-1] > 1


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_point_masses_have_the_outputs_of_rejection_sampling(target):
    tokens = np.array([0, 2, 1, 2])
    chain = TokenTree(TreeShape([-1, 0, 1, 2], [-1, 0, 0, 0]), tokens)
    assert same(step(BlockVerification(), chain, target), step(RejectionSampling(), chain, target))


def test_of_several_children_it_tries_the_first():
    """Below a tree's first children it is exact too: the others are ignored."""
    target = TARGETS["different"]
    found = output_of(BlockVerification(), Draft(DRAFTS["some"]), NodeKind.DRAWN, (2, 1), target)
    assert same(continued(found, 3, target), joint_of(target, 3))
