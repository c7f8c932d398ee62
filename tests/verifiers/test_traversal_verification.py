"""Traversal verification is exact on every kind of tree, and accepts at least as much as rejection sampling."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.branching import continued, joint_of, mixed, same
from helpers.contracts import contract_of
from helpers.drawn_trees import DRAFTS, TARGETS, Draft, mean_length, output_of, paths_of, seeded, step
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.builders import Chain, DySpecGreedy, KConfig, SpecInfer
from specexp.builders.graft import grafted
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.drafters import DraftModel
from specexp.testing.fakes import hashed_model
from specexp.testing.verifiers import LosslessVerifierContract
from specexp.verifiers import BlockVerification, RejectionSampling, TraversalVerification

TestDefault = contract_of(LosslessVerifierContract, lambda: TraversalVerification())
TestProcessed = contract_of(
    LosslessVerifierContract, lambda: TraversalVerification(temperature=0.7, top_k=4, top_p=0.9)
)
TestGreedyTemperature = contract_of(LosslessVerifierContract, lambda: TraversalVerification(temperature=0))

DRAWN, AGAIN = NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT
TREES = [
    (DRAWN, (1, 1)),
    (DRAWN, (2, 1)),
    (DRAWN, (2, 2)),
    (DRAWN, (1, 2, 1)),
    (AGAIN, (2, 1)),
    (AGAIN, (2, 2)),
    (AGAIN, (3,)),
]


@pytest.mark.variants(21)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("q", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize(("kind", "widths"), TREES)
def test_the_output_of_a_step_has_the_targets_distribution(kind, widths, q, target):
    if kind is DRAWN:  # no more draws than possible tokens
        widths = tuple(min(width, sum(share > 0 for share in q(()))) for width in widths)
    found = output_of(TraversalVerification(), Draft(q), kind, widths, target)
    length = len(widths) + 1
    assert same(continued(found, length, target), joint_of(target, length))


def test_three_children_with_two_each_are_exact():
    q, target = seeded(5, 16), seeded(12, 100)
    found = output_of(TraversalVerification(), Draft(q), DRAWN, (3, 2), target)
    assert same(continued(found, 3, target), joint_of(target, 3))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("kind", [DRAWN, AGAIN])
@pytest.mark.parametrize("grafts", [{(): (1,)}, {(): (2, 0), (0,): (1,), (1,): (2, 1)}])
def test_point_masses_below_draws_are_exact(grafts, kind, target):
    for widths in ((1,), (2, 1)):
        found = output_of(TraversalVerification(), Draft(DRAFTS["some"]), kind, widths, target, grafts)
        assert same(continued(found, 3, target), joint_of(target, 3))


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("anchors", [1, 2])
def test_grafts_at_places_that_depend_on_the_draws_are_exact(anchors, target):
    """They hang from the last nodes of the most probable path that was drawn, and are other phrases there."""
    draft, weighted = Draft(DRAFTS["some"]), []
    for nested, probability in draft.trees(DRAWN, (2, 1)):
        drawn = draft.token_tree(nested, DRAWN)
        chances = [1.0, *(draft.q(path[:-1])[path[-1]] for path in paths_of(drawn)[1:])]
        drawn = replace(drawn, log_probs=np.log(chances, dtype=np.float32))
        last = int(drawn.tokens[drawn.best_path()[-1]])
        rows = (0, *drawn.best_path())[-anchors:]
        tree = grafted(drawn, [(row, [(last + 1) % 3, last]) for row in rows], room=9)
        weighted.append((probability, step(TraversalVerification(), tree, target)))
    assert same(continued(mixed(weighted), 5, target), joint_of(target, 5))


@examples(25)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 16, 1024]),
    st.sampled_from([7, 100]),
    st.sampled_from([DRAWN, AGAIN]),
    st.sampled_from([(1, 1), (2, 1), (3,), (1, 2)]),
    st.sampled_from([3, 4]),
)
def test_any_two_distributions_are_exact_and_accept_no_less(seed, parts, target_parts, kind, widths, vocabulary):
    drafted, target = seeded(seed, parts, vocabulary), seeded(seed + 1, target_parts, vocabulary)

    def q(path):  # at least as many possible tokens as are drawn
        enough = sum(part > 0 for part in drafted(path)) >= max(widths)
        return drafted(path) if enough else (0.25, 0.25, 0.5, 0.0)[:vocabulary]

    found, topdown = (
        output_of(verifier(), Draft(q), kind, widths, target) for verifier in (TraversalVerification, RejectionSampling)
    )
    length = len(widths) + 1
    assert same(continued(found, length, target), joint_of(target, length))
    assert mean_length(found) >= mean_length(topdown) - 1e-12


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


def test_a_draft_model_that_is_the_target_is_always_accepted():
    model = hashed_model(30)
    decoder = Decoder(model, DraftModel(hashed_model(30)), Chain(4, candidates="drawn"), TraversalVerification())
    for sequence in range(5):
        result = decoder.generate([1, 2, 3], max_new_tokens=50, sequence=sequence, seed=0)
        assert (result.steps, result.accepted_drafts) == (10, 40)


@pytest.mark.parametrize("builder", [KConfig([3, 2], "drawn"), SpecInfer([4, 3]), DySpecGreedy(9)])
def test_there_are_numbers_enough_for_any_step(builder):
    draft, verifier = DraftModel(hashed_model(4, seed=2)), TraversalVerification(1.3)
    decoder = Decoder(hashed_model(4, seed=1, spread=0.5), draft, builder, verifier)
    for sequence in range(3):
        assert len(decoder.generate([1], max_new_tokens=40, sequence=sequence, seed=0).token_ids) == 40


def test_a_chain_of_a_thousand_nodes_is_verified():
    """The walk is no recursion."""
    size = 1200
    shape = TreeShape(np.arange(size + 1) - 1, [-1] + [0] * size)
    tree = TokenTree(shape, np.zeros(size + 1, dtype=np.int64))
    logits = torch.zeros(size + 1, 3, dtype=torch.float64)
    assert len(TraversalVerification().verify(Context([0]), tree, logits).accepted) < 50
