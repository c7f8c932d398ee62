"""Rejection sampling by hand, of point masses, at temperature 0, and with processed targets."""

import numpy as np
import pytest
import torch
from helpers.branching import continued, joint_of, logits_of, mixed, outcomes, same
from helpers.contracts import contract_of
from helpers.drawn_trees import DRAFTS, TARGETS, Draft, paths_of, seeded, share, step

from specexp.core.context import Context
from specexp.core.sampling import Processors
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.testing.verifiers import LosslessVerifierContract
from specexp.verifiers import RejectionSampling, rejection_sampling
from specexp.verifiers.rejection_sampling import residual, sample, without

TestDefault = contract_of(LosslessVerifierContract, lambda: RejectionSampling())
TestProcessed = contract_of(LosslessVerifierContract, lambda: RejectionSampling(temperature=0.7, top_k=4, top_p=0.9))
TestGreedyTemperature = contract_of(LosslessVerifierContract, lambda: RejectionSampling(temperature=0))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("tokens", [(0,), (1, 0), (2, 1), (0, 1, 2)])
def test_point_masses_are_exact(tokens, target):
    """Best candidates, below each of which the first stands again."""
    count = len(tokens)
    shape = TreeShape([-1] + [0] * count + list(range(1, count + 1)), [-1, *range(count)] + [0] * count)
    tree = TokenTree(shape, np.array([0, *tokens] + [tokens[0]] * count))
    found = step(RejectionSampling(), tree, target)
    assert same(continued(found, 3, target), joint_of(target, 3))
    assert found.get((tokens[0], tokens[0], 1), 0.0) == pytest.approx(
        target(())[tokens[0]] * target((0,))[tokens[0]] * target((0, 0))[1], abs=1e-12
    )


def test_by_hand():
    """p = (0.7, 0.2, 0.1), q = (1/4, 1/2, 1/4); token 1 was drawn, then token 0.

    1 is accepted with 0.2 / 0.5 = 0.4. Then r = max(p - q, 0) = (0.45, 0, 0), all on 0, which is accepted for sure.
    """
    draft = Draft(DRAFTS["some"])
    tree = draft.token_tree(((1, 0), {1: ((), {}), 0: ((), {})}), NodeKind.DRAWN)
    found = step(RejectionSampling(), tree, TARGETS["different"])
    first = {}
    for output, probability in found.items():
        first[output[0]] = first.get(output[0], 0) + probability
    assert first == pytest.approx({1: 0.4, 0: 0.6})
    assert all(len(output) == 2 for output in found)  # one of the two is always accepted


@pytest.mark.parametrize("kind", NodeKind)
def test_at_temperature_0_only_the_most_probable_token_is_left(kind):
    """Whatever was drawn: equals go to the lowest id."""
    logits = torch.tensor([[0.0, 2.0, 2.0], [5.0, 1.0, 1.0], [0.0, 1.0, 3.0], [0.0, 4.0, 1.0]])
    q = {0: np.full(3, 1 / 3, dtype=np.float32), 1: np.full(3, 1 / 3, dtype=np.float32)}
    shape = TreeShape([-1, 0, 0, 2], [-1, 0, 1, 0])
    for first, expected in (((2, 1, 0), ((2, 3), 1)), ((2, 0, 0), ((), 1))):
        kinds = np.array([0, kind, kind, kind], dtype=np.int8)
        tree = TokenTree(shape, np.array([0, *first[:2], 2]), None, kinds, q | {2: q[0]})
        for seed in range(20):
            verdict = RejectionSampling(0).verify(Context([0], seed=seed), tree, logits)
            assert (verdict.accepted, verdict.bonus) == expected


@pytest.mark.parametrize("options", [{"temperature": 0.5}, {"top_k": 2}, {"temperature": 1.5, "top_p": 0.7}])
def test_the_processed_target_is_the_one_kept(options):
    logits = np.tile(logits_of(share(5, 3, 2)), (4, 1))
    processed = Processors(**{"temperature": 1.0, **options}).probabilities(torch.from_numpy(logits[0]))
    draft = Draft(DRAFTS["some"])
    verifier, weighted = RejectionSampling(**options), []
    for nested, weight in draft.trees(NodeKind.DRAWN, (2,)):
        tree = draft.token_tree(nested, NodeKind.DRAWN)
        weighted.append((weight, outcomes(verifier, tree, logits, rejection_sampling)))
    assert same(continued(mixed(weighted), 2, lambda path: processed), joint_of(lambda path: processed, 2))


def test_an_empty_residual_leaves_the_distribution_unchanged():
    p = np.array([0.2, 0.3, 0.5])
    assert residual(p, p).tolist() == p.tolist()
    assert residual(p, np.array([0.2, 0.4, 0.4])) == pytest.approx([0, 0, 1])
    assert without(np.array([0.0, 1.0]), 1).tolist() == [0.0, 0.0]
    assert without(np.array([0.25, 0.25, 0.5]), 2).tolist() == [0.5, 0.5, 0.0]


def test_a_token_of_probability_0_is_never_sampled():
    distribution = np.array([0.0, 0.5, 0.0, 0.5, 0.0])
    numbers = [2.0**-54, 0.25, 0.5 - 2**-53, 0.5, 0.75, 1 - 2.0**-53, 1.0]
    assert [sample(distribution, number) for number in numbers] == [1, 1, 1, 3, 3, 3, 3]


def test_every_step_has_fresh_numbers_that_are_not_the_drafts():
    verifier, tree = RejectionSampling(), TokenTree(TreeShape([-1, 0, 1], [-1, 0, 0]), np.array([1, 2, 2]))
    contexts = [Context([1]), Context([1, 1]), Context([1], seed=1), Context([1], sequence=1)]
    numbers = [tuple(verifier.uniforms(context, tree)) for context in contexts]
    numbers.append(tuple(contexts[0].uniforms("draft", 0, size=3).tolist()))
    assert len({number for line in numbers for number in line}) == 5 * 3


@pytest.mark.variants(1)
@pytest.mark.parametrize("widths", [(1, 1), (2,), (3,), (2, 2)])
@pytest.mark.parametrize("kind", [NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT])
def test_logits_on_a_device_are_verified_as_on_the_host(kind, widths, monkeypatch):
    verifier = RejectionSampling(temperature=0.8)
    verdicts = {True: [], False: []}
    for place, found in verdicts.items():
        monkeypatch.setattr(rejection_sampling, "on_host", lambda logits, place=place: place)
        for seed in range(20):
            draft, target = Draft(seeded(seed, 16)), seeded(seed + 1, 100)
            for nested, _ in draft.trees(kind, widths):
                tree = draft.token_tree(nested, kind)
                logits = torch.tensor(np.stack([logits_of(target(path)) for path in paths_of(tree)]))
                found.append(verifier.verify(Context([0], seed=seed), tree, logits))
    assert len(verdicts[True]) > 20
    assert verdicts[True] == verdicts[False]
