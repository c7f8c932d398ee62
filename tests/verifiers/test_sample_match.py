"""Sample and match: the target's own samples, found in the tree or not."""

from unittest.mock import patch

import numpy as np
import pytest
import torch
from helpers.branching import continued, joint_of, joint_p_value, logits_of, same, sampled_outcomes
from helpers.contracts import contract_of

from specexp.builders import KConfig
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.testing.fakes import FakeDrafter, bigram_model
from specexp.testing.verifiers import LosslessVerifierContract
from specexp.verifiers import SampleMatch, rejection_sampling

TestDefault = contract_of(LosslessVerifierContract, lambda: SampleMatch())
TestProcessed = contract_of(LosslessVerifierContract, lambda: SampleMatch(temperature=0.7, top_k=4, top_p=0.9))
TestGreedyTemperature = contract_of(LosslessVerifierContract, lambda: SampleMatch(temperature=0))


TREE = TokenTree(TreeShape([-1, 0, 0, 1, 2, 2], [-1, 0, 1, 0, 0, 1]), np.array([9, 1, 2, 0, 3, 1]))


@pytest.mark.parametrize(
    ("samples", "accepted", "bonus"),
    [
        ([0], (), 0),
        ([1, 1], (1,), 1),
        ([1, 0, 2], (1, 3), 2),
        ([2, 0], (2,), 0),
        ([2, 3, 3], (2, 4), 3),
        ([2, 1, 0], (2, 5), 0),
    ],
)
def test_it_follows_the_child_that_carries_the_targets_sample(samples, accepted, bonus):
    waiting = iter(samples)
    with patch.object(rejection_sampling, "sample", lambda distribution, uniform: next(waiting)):
        verdict = SampleMatch().verify(Context([9]), TREE, torch.zeros(6, 4))
    assert (verdict.accepted, verdict.bonus) == (accepted, bonus)
    assert list(waiting) == []


FORMS = {
    "root alone": ([-1], [9]),
    "chain": ([-1, 0, 1], [9, 1, 0]),
    "siblings": ([-1, 0, 0, 0], [9, 2, 0, 1]),
    "two levels": ([-1, 0, 0, 1, 1, 2], [9, 0, 1, 2, 1, 0]),
}


@pytest.mark.parametrize("kind", NodeKind)
@pytest.mark.parametrize(("parents", "tokens"), FORMS.values(), ids=FORMS)
def test_the_output_of_a_step_has_the_targets_distribution(parents, tokens, kind):
    """By arithmetic over every way a step can go; how the nodes were chosen does not matter."""
    ranks = [-1, *(parents[1:row].count(parents[row]) for row in range(1, len(parents)))]
    shape = TreeShape(parents, ranks)
    drawn = kind is not NodeKind.POINT_MASS
    inner = sorted(set(parents) - {-1})
    q = {row: np.full(3, 1 / 3, dtype=np.float32) for row in inner} if drawn else None
    draws = {row: shape.children[row] for row in inner} if kind is NodeKind.DRAWN_WITH_REPLACEMENT else None
    tree = TokenTree(shape, np.array(tokens), None, np.full(len(tokens), kind, dtype=np.int8), q, draws)

    def target(path):
        weights = 1 + np.arange(3) + 2.0 * len(path) + np.array([3 * sum(path), 0, len(path)])
        return weights / weights.sum()

    paths = [tuple(tree.tokens[list(shape.path(row))].tolist()) for row in range(len(tokens))]
    logits = logits_of([target(path) for path in paths])
    found = sampled_outcomes(SampleMatch(), tree, logits, rejection_sampling)
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    length = shape.max_depth + 1
    assert same(continued(found, length, target), joint_of(target, length))


def test_three_tokens_have_the_targets_joint_distribution():
    """Over several steps, whose numbers differ: drafts are often the target's second best."""
    logits = np.random.default_rng(3).standard_normal((3, 3))
    p = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    drafter = FakeDrafter(lambda tokens: np.argsort(-logits[tokens[-1]]).tolist(), max_candidates=2)
    decoder = Decoder(bigram_model(logits.tolist()), drafter, KConfig([2, 1]), SampleMatch())
    assert joint_p_value(decoder, p) > 1e-3
