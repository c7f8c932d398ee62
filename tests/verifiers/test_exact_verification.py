"""Verifiers of drawn nodes are exact: output probabilities by arithmetic, not by counting samples."""

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from helpers.branching import continued, joint_of, mixed, same
from helpers.drawn_trees import DRAFTS, TARGETS, Draft, mean_length, output_of, paths_of, seeded, step
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.builders import Chain, DySpecGreedy, KConfig, SpecInfer
from specexp.builders.graft import grafted
from specexp.core.loop import Decoder
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel
from specexp.testing.fakes import hashed_model
from specexp.verifiers import BlockVerification, RejectionSampling, TraversalVerification

DRAWN, AGAIN = NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT
OF_TREES = [RejectionSampling, TraversalVerification]
FORMS = {
    RejectionSampling: {DRAWN: [(1, 1), (2,), (2, 2), (3,)], AGAIN: [(2,), (3,), (2, 2)]},
    BlockVerification: {DRAWN: [(1,), (1, 1), (1, 1, 1)]},
    TraversalVerification: {DRAWN: [(1, 1), (2, 1), (2, 2), (1, 2, 1)], AGAIN: [(2, 1), (2, 2), (3,)]},
}
QUICK = [(1,), (1, 1), (1, 1, 1), (2,), (2, 1)]
STEPS = [
    pytest.param(verifier, kind, widths, marks=[] if kind is DRAWN and widths in QUICK else pytest.mark.slow)
    for verifier, kinds in FORMS.items()
    for kind, forms in kinds.items()
    for widths in forms
]
every_target = pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
some_drafts = pytest.mark.parametrize(
    ("verifier", "q"), [*product([RejectionSampling], DRAFTS.values()), (TraversalVerification, DRAFTS["some"])]
)


def possible(q):
    return sum(share > 0 for share in q(()))


@every_target
@pytest.mark.parametrize("q", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize(("verifier", "kind", "widths"), STEPS)
def test_the_output_of_a_step_has_the_targets_distribution(verifier, kind, widths, q, target):
    if kind is DRAWN:  # no more draws than possible tokens
        widths = tuple(min(width, possible(q)) for width in widths)
    found = output_of(verifier(), Draft(q), kind, widths, target)
    length = len(widths) + 1
    assert same(continued(found, length, target), joint_of(target, length))


@every_target
@some_drafts
@pytest.mark.parametrize("kind", [DRAWN, AGAIN])
@pytest.mark.parametrize("grafts", [{(): (1,)}, {(): (2, 0), (0,): (1,), (1,): (2, 1)}])
def test_point_masses_below_draws_are_exact(grafts, kind, verifier, q, target):
    """A grafted token equal to a drawn one is that node; the others are tried after the draws."""
    for widths in ((1,), (2, 1)):
        if possible(q) < widths[0] and kind is DRAWN:
            continue
        found = output_of(verifier(), Draft(q), kind, widths, target, grafts)
        assert same(continued(found, 3, target), joint_of(target, 3))


@pytest.mark.variants(18)
@every_target
@some_drafts
@pytest.mark.parametrize("kind", [DRAWN, AGAIN])
@pytest.mark.parametrize("anchors", [1, 2])
def test_grafts_at_places_that_depend_on_the_draws_are_exact(anchors, kind, verifier, q, target):
    """They hang from the last nodes of the most probable path that was drawn, and are other phrases there."""
    draft, weighted = Draft(q), []
    for nested, probability in draft.trees(kind, (min(2, possible(q)), 1)):
        drawn = draft.token_tree(nested, kind)
        chances = [1.0, *(q(path[:-1])[path[-1]] for path in paths_of(drawn)[1:])]
        drawn = replace(drawn, log_probs=np.log(chances, dtype=np.float32))
        rows = (0, *drawn.best_path())[-anchors:]
        last = int(drawn.tokens[rows[-1]])
        tree = grafted(drawn, [(row, [(last + 1) % 3, last]) for row in rows], room=9)
        assert tree.grafted is not None
        weighted.append((probability, step(verifier(), tree, target)))
    assert same(continued(mixed(weighted), 5, target), joint_of(target, 5))


@examples(40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 16, 1024]),
    st.sampled_from([7, 100]),
    st.sampled_from([DRAWN, AGAIN]),
    st.sampled_from([(1, 1), (2, 1), (3,), (1, 2)]),
    st.sampled_from([3, 4]),
)
def test_any_two_distributions_are_exact_and_traversal_accepts_no_less(seed, parts, of_target, kind, widths, size):
    drafted, target = seeded(seed, parts, size), seeded(seed + 1, of_target, size)

    def q(path):  # at least as many possible tokens as are drawn
        enough = sum(part > 0 for part in drafted(path)) >= max(widths)
        return drafted(path) if enough else (0.25, 0.25, 0.5, 0.0)[:size]

    topdown, traversal = (output_of(verifier(), Draft(q), kind, widths, target) for verifier in OF_TREES)
    length = len(widths) + 1
    for found in (topdown, traversal):
        assert same(continued(found, length, target), joint_of(target, length))
    assert mean_length(traversal) >= mean_length(topdown) - 1e-12


@pytest.mark.parametrize("verifier", FORMS)
def test_a_draft_model_that_is_the_target_is_always_accepted(verifier):
    model = hashed_model(30)
    decoder = Decoder(model, DraftModel(hashed_model(30)), Chain(4, candidates="drawn"), verifier())
    for sequence in range(5):
        result = decoder.generate([1, 2, 3], max_new_tokens=50, sequence=sequence, seed=0)
        assert (result.steps, result.accepted_drafts) == (10, 40)


BUILDERS = [KConfig([3, 2], "drawn"), SpecInfer([4, 3]), DySpecGreedy(9)]


@pytest.mark.parametrize(("verifier", "builder"), [*product(OF_TREES, BUILDERS), (RejectionSampling, Chain(3))])
def test_there_are_numbers_enough_for_any_step(verifier, builder):
    draft = DraftModel(hashed_model(4, seed=2))
    decoder = Decoder(hashed_model(4, seed=1, spread=0.5), draft, builder, verifier(1.3))
    for sequence in range(3):
        assert len(decoder.generate([1], max_new_tokens=40, sequence=sequence, seed=0).token_ids) == 40
