"""Parts that cannot work together are refused when composed, in one sentence that says what to change."""

import pytest

from specexp.builders import BeamRerank, Chain, DySpecGreedy, DySpecThreshold, KConfig, SpecInfer, StaticTree
from specexp.controllers import Fixed
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.loop import Decoder
from specexp.core.parts import check_composition
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling, Union
from specexp.testing.fakes import DistributionDrafter, counting_model, hashed_model
from specexp.verifiers import Greedy, KeyedSampling, RejectionSampling, SampleMatch, TypicalAcceptance


class PlansThreshold(Controller):
    plans_threshold = True

    def plan(self, context):
        return Plan(threshold=0.1)


def any_draft():
    return DistributionDrafter(lambda tokens: [0.5, 0.5])


IMPOSSIBLE = {
    "a tree without a drafter": (
        (None, Chain(3)),
        "the composition has no drafter: give both drafter and builder, or neither",
    ),
    "a drafter without a tree": (
        (PromptLookup(), None),
        "the composition has no builder: give both drafter and builder, or neither",
    ),
    "a tree wider than the drafter": (
        (PromptLookup(candidates=2), KConfig([3])),
        "KConfig asks for 3 candidates a node and PromptLookup ranks at most 2: narrow the tree or widen the "
        "drafter",
    ),
    "drawn nodes of a drafter without distribution": (
        (PromptLookup(), Chain(3, candidates="drawn")),
        "Chain draws its candidates and PromptLookup has no distribution to draw from: set candidates to top-k",
    ),
    "drawn nodes of several drafters": (
        (Union([PromptLookup(), any_draft()]), StaticTree([[0], [1]], candidates="drawn")),
        "StaticTree draws its candidates and Union has no distribution to draw from",
    ),
    "a dynamic tree without draft probabilities": (
        (TokenRecycling(), DySpecGreedy(candidates="top-k")),
        "DySpecGreedy decides by draft probabilities and TokenRecycling gives none: draft with DraftModel or build a "
        "static tree",
    ),
    "draws of a coupled draft": (
        (DraftModel(coupled=True), DySpecGreedy(), KeyedSampling()),
        "DySpecGreedy draws its candidates and DraftModel is coupled: set candidates to top-k or coupled to false",
    ),
    "a coupled draft and rejection sampling": (
        (DraftModel(coupled=True), Chain(3), RejectionSampling()),
        "DraftModel is coupled, but RejectionSampling draws noise of its own: set coupled to false or verify with "
        "KeyedSampling",
    ),
    "a coupled part of a union": (
        (Union([PromptLookup(), TokenRecycling(coupled=True)]), Chain(3), TypicalAcceptance()),
        "Union is coupled, but TypicalAcceptance draws noise of its own",
    ),
    "a planned threshold nobody follows": (
        (any_draft(), DySpecGreedy(), None, PlansThreshold()),
        "PlansThreshold plans a threshold and DySpecGreedy follows none: use DySpecThreshold",
    ),
}


@pytest.mark.parametrize(("parts", "sentence"), IMPOSSIBLE.values(), ids=IMPOSSIBLE)
def test_what_cannot_work_is_refused(parts, sentence):
    with pytest.raises(ValueError) as refusal:
        check_composition(*parts)
    assert str(refusal.value).startswith(sentence)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "parts",
    [
        (None, None),
        (None, None, RejectionSampling()),
        (any_draft(), DySpecGreedy(), RejectionSampling()),
        (any_draft(), SpecInfer([4, 2]), SampleMatch(), Fixed()),
        (any_draft(), DySpecThreshold(), TypicalAcceptance(), PlansThreshold()),
        (DraftModel(), KConfig([2, 2], "drawn"), RejectionSampling()),
        (DraftModel(coupled=True), DySpecGreedy(candidates="top-k"), KeyedSampling()),
        (DraftModel(coupled=True), BeamRerank(), Greedy()),
        (PromptLookup(), Chain(3), RejectionSampling()),
        (TokenRecycling(k=4), KConfig([4, 4]), SampleMatch()),
        (PromptLookup(candidates=2), StaticTree([[0], [1]]), RejectionSampling()),
    ],
    ids=lambda parts: "-".join(type(part).__name__ for part in parts if part is not None) or "plain",
)
def test_what_can_work_is_not(parts):
    check_composition(*parts)


def test_a_dynamic_tree_makes_do_with_a_small_vocabulary():
    """Its budget bounds the candidates it may ask for; a draft of 9 tokens has no 64."""
    result = Decoder(counting_model(9), DraftModel(counting_model(9)), DySpecGreedy(64)).generate([1])
    assert result.token_ids[:3] == [2, 3, 4]


def test_a_draft_model_needs_a_model():
    with pytest.raises(
        ValueError, match=r"DraftModel has no model yet: pass one, as in DraftModel\(pair\.draft\)"
    ):
        Decoder(counting_model(9), DraftModel(), Chain(3))


def test_a_draft_has_the_targets_vocabulary():
    with pytest.raises(ValueError, match="the draft model has 8 tokens and the target 9: a draft must have"):
        Decoder(counting_model(9), DraftModel(counting_model(8)), Chain(3))


def test_a_tree_must_fit_the_context():
    target = hashed_model(20, context_limit=64)
    for builder in (DySpecGreedy(64), BeamRerank(budget=64), DySpecThreshold(max_nodes=64), KConfig([64])):
        with pytest.raises(
            ValueError, match=rf"{type(builder).__name__} makes trees of up to 64 nodes.*holds 64"
        ):
            Decoder(target, any_draft(), builder)
    Decoder(target, DraftModel(hashed_model(20)), DySpecGreedy(63))
