"""Rejection sampling is exact: output probabilities by arithmetic, not by counting samples."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from helpers.branching import continued, joint_of, logits_of, mixed, outcomes, same
from helpers.contracts import contract_of
from helpers.drawn_trees import DRAFTS, TARGETS, Draft, output_of, paths_of, seeded, share, step
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.builders import Chain, DySpecGreedy, KConfig, SpecInfer
from specexp.builders.graft import grafted
from specexp.core.context import Context
from specexp.core.loop import Decoder
from specexp.core.sampling import Processors
from specexp.core.tree import NodeKind, TokenTree, TreeShape
from specexp.drafters import DraftModel
from specexp.testing.fakes import hashed_model
from specexp.testing.verifiers import LosslessVerifierContract
from specexp.verifiers import RejectionSampling, rejection_sampling
from specexp.verifiers.rejection_sampling import residual, sample, without

TestDefault = contract_of(LosslessVerifierContract, lambda: RejectionSampling())
TestProcessed = contract_of(LosslessVerifierContract, lambda: RejectionSampling(temperature=0.7, top_k=4, top_p=0.9))
TestGreedyTemperature = contract_of(LosslessVerifierContract, lambda: RejectionSampling(temperature=0))


TREES = {
    "chain": (NodeKind.DRAWN, (1, 1)),
    "two without replacement": (NodeKind.DRAWN, (2,)),
    "two, then two": (NodeKind.DRAWN, (2, 2)),
    "three without replacement": (NodeKind.DRAWN, (3,)),
    "two with replacement": (NodeKind.DRAWN_WITH_REPLACEMENT, (2,)),
    "three with replacement": (NodeKind.DRAWN_WITH_REPLACEMENT, (3,)),
    "two, then two with replacement": (NodeKind.DRAWN_WITH_REPLACEMENT, (2, 2)),
}


@pytest.mark.variants(21)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("q", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize(("kind", "widths"), TREES.values(), ids=TREES)
def test_the_output_of_a_step_has_the_targets_distribution(kind, widths, q, target):
    possible = sum(share > 0 for share in q(()))
    if kind is NodeKind.DRAWN:
        widths = tuple(min(width, possible) for width in widths)
    found = output_of(RejectionSampling(), Draft(q), kind, widths, target)
    length = len(widths) + 1
    assert same(continued(found, length, target), joint_of(target, length))


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


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("q", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("kind", [NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT])
@pytest.mark.parametrize("grafts", [{(): (1,)}, {(): (2, 0), (0,): (1,), (1,): (2, 1)}])
def test_point_masses_below_draws_are_exact(grafts, kind, q, target):
    """A grafted token equal to a drawn one is that node; the others are tried after the draws."""
    for widths in ((1,), (2, 1)):
        if sum(part > 0 for part in q(())) < widths[0] and kind is NodeKind.DRAWN:
            continue
        found = output_of(RejectionSampling(), Draft(q), kind, widths, target, grafts)
        assert same(continued(found, 3, target), joint_of(target, 3))


@pytest.mark.variants(12)
@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
@pytest.mark.parametrize("q", DRAFTS.values(), ids=DRAFTS)
@pytest.mark.parametrize("kind", [NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT])
@pytest.mark.parametrize("anchors", [1, 2])
def test_grafts_at_places_that_depend_on_the_draws_are_exact(anchors, kind, q, target):
    """They hang from the last nodes of the most probable path that was drawn, and are other phrases there."""
    widths = (2, 1) if sum(part > 0 for part in q(())) > 1 else (1, 1)
    weighted = []
    for nested, probability in Draft(q).trees(kind, widths):
        drawn = Draft(q).token_tree(nested, kind)
        chances = [1.0, *(q(path[:-1])[path[-1]] for path in paths_of(drawn)[1:])]
        drawn = replace(drawn, log_probs=np.log(chances, dtype=np.float32))
        rows = (0, *drawn.best_path())[-anchors:]
        last = int(drawn.tokens[rows[-1]])
        tree = grafted(drawn, [(row, [(last + 1) % 3, last]) for row in rows], room=9)
        assert tree.grafted is not None
        weighted.append((probability, step(RejectionSampling(), tree, target)))
    found = mixed(weighted)
    assert same(continued(found, 5, target), joint_of(target, 5))


@examples(40)
@given(
    st.integers(0, 10**6),
    st.sampled_from([2, 16, 1024]),
    st.sampled_from([7, 100]),
    st.sampled_from([NodeKind.DRAWN, NodeKind.DRAWN_WITH_REPLACEMENT]),
    st.sampled_from([(1, 1), (2, 1), (3,)]),
    st.sampled_from([3, 4]),
)
def test_any_two_distributions(seed, parts, target_parts, kind, widths, vocabulary):
    drafted, target = seeded(seed, parts, vocabulary), seeded(seed + 1, target_parts, vocabulary)

    def q(path):  # at least as many possible tokens as are drawn
        enough = sum(part > 0 for part in drafted(path)) >= max(widths)
        return drafted(path) if enough else (0.25, 0.25, 0.5, 0.0)[:vocabulary]

    found = output_of(RejectionSampling(), Draft(q), kind, widths, target)
    length = len(widths) + 1
    assert same(continued(found, length, target), joint_of(target, length))


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


def test_a_draft_model_that_is_the_target_is_always_accepted():
    model = hashed_model(30)
    decoder = Decoder(model, DraftModel(hashed_model(30)), Chain(4, candidates="drawn"), RejectionSampling())
    for sequence in range(5):
        result = decoder.generate([1, 2, 3], max_new_tokens=50, sequence=sequence, seed=0)
        assert result.steps == 10
        assert result.accepted_drafts == 40


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


@pytest.mark.parametrize("builder", [KConfig([3, 2], "drawn"), SpecInfer([4, 3]), DySpecGreedy(9), Chain(3)])
def test_there_are_numbers_enough_for_any_step(builder):
    draft, verifier = DraftModel(hashed_model(4, seed=2)), RejectionSampling(1.3)
    decoder = Decoder(hashed_model(4, seed=1, spread=0.5), draft, builder, verifier)
    for sequence in range(3):
        assert len(decoder.generate([1], max_new_tokens=40, sequence=sequence, seed=0).token_ids) == 40


@pytest.mark.parametrize(("kind", "widths"), TREES.values(), ids=TREES)
@pytest.mark.variants(1)
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
