"""Parts that cannot work together are refused when composed, in one sentence that names the change to make."""

import re

import pytest

from specexp.builders import (
    BeamRerank,
    Chain,
    Choice,
    DySpecGreedy,
    DySpecThreshold,
    Graft,
    KConfig,
    SpecInfer,
    StaticTree,
)
from specexp.controllers import ConfidenceThreshold, Fixed
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.loop import Decoder
from specexp.core.parts import check_composition
from specexp.drafters import DraftModel, PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.testing.fakes import DistributionDrafter, counting_model, hashed_model
from specexp.verifiers import (
    BlockVerification,
    Greedy,
    KeyedSampling,
    RejectionSampling,
    SampleMatch,
    TraversalVerification,
)

pytestmark = pytest.mark.unit


class PlansThreshold(Controller):
    plans_threshold = True

    def plan(self, context):
        return Plan(threshold=0.1)


def any_draft():
    return DistributionDrafter(lambda tokens: [0.5, 0.5])


NEITHER = ": give both drafter and builder, or neither"
NO_DISTRIBUTION = "has no distribution to draw from: set candidates to top-k"
IMPOSSIBLE = [
    ((None, Chain(3)), f"the composition has no drafter{NEITHER}"),
    ((PromptLookup(), None), f"the composition has no builder{NEITHER}"),
    (
        (PromptLookup(candidates=2), KConfig([3])),
        "KConfig asks for 3 candidates a node, but PromptLookup ranks at most 2: narrow the tree or widen the drafter",
    ),
    ((PromptLookup(), Chain(3, candidates="drawn")), f"Chain draws its candidates, but PromptLookup {NO_DISTRIBUTION}"),
    (
        (Union([PromptLookup(), any_draft()]), StaticTree([[0], [1]], candidates="drawn")),
        f"StaticTree draws its candidates, but Union {NO_DISTRIBUTION}",
    ),
    (
        (TokenRecycling(), Graft(Chain(2))),
        "Graft asks for phrases of 5 tokens, but TokenRecycling has none: wrap it in a PhraseCache",
    ),
    (
        (PhraseCache(phrase_length=3), Graft(Chain(2))),
        "Graft asks for phrases of 5 tokens, but PhraseCache keeps phrases of 3: set phrase_length of both to the",
    ),
    (
        (PhraseCache(TokenRecycling()), DySpecGreedy(candidates="top-k")),
        "DySpecGreedy needs draft probabilities, but PhraseCache gives none",
    ),
    (
        (TokenRecycling(), DySpecGreedy(candidates="top-k")),
        "DySpecGreedy needs draft probabilities, but TokenRecycling gives none: use the drafter DraftModel or a",
    ),
    (
        (DraftModel(coupled=True), DySpecGreedy(), KeyedSampling()),
        "DySpecGreedy draws its candidates, but DraftModel is coupled: set candidates to top-k or coupled to false",
    ),
    (
        (DraftModel(coupled=True), Chain(3), RejectionSampling()),
        "DraftModel is coupled, but RejectionSampling draws noise of its own: set coupled to false or verify with",
    ),
    (
        (Union([PromptLookup(), TokenRecycling(coupled=True)]), Chain(3), SampleMatch()),
        "Union is coupled, but SampleMatch draws noise of its own",
    ),
    (
        (PromptLookup(), Chain(3), BlockVerification()),
        "BlockVerification gains nothing if Chain does not draw: set candidates to drawn or verify with",
    ),
    (
        (DraftModel(), Choice([Chain(2), KConfig([2, 2])]), TraversalVerification()),
        "TraversalVerification gains nothing if Choice does not draw: use a builder that draws or verify with",
    ),
    (
        (DraftModel(), KConfig([2, 1], "drawn"), BlockVerification()),
        "BlockVerification verifies chains, but KConfig makes trees: use a Chain or verify with TraversalVerification",
    ),
    (
        (any_draft(), DySpecGreedy(), None, PlansThreshold()),
        "PlansThreshold plans a threshold, but DySpecGreedy does not take one: use DySpecThreshold",
    ),
    (
        (any_draft(), DySpecThreshold(acceptance_power=0.4), RejectionSampling(), ConfidenceThreshold()),
        "ConfidenceThreshold may end a draft because of a drawn token, which changes the output: set acceptance_power",
    ),
]
POSSIBLE = [
    (None, None),
    (None, None, RejectionSampling()),
    (any_draft(), DySpecGreedy(), RejectionSampling()),
    (any_draft(), SpecInfer([4, 2]), SampleMatch(), Fixed()),
    (any_draft(), DySpecThreshold(), RejectionSampling(), PlansThreshold()),
    (DraftModel(), KConfig([2, 2], "drawn"), RejectionSampling()),
    (None, None, BlockVerification()),
    (DraftModel(), Chain(3, "drawn"), BlockVerification()),
    (DraftModel(), Choice([Chain(2, "drawn"), Chain(3, "drawn")]), BlockVerification()),
    (DraftModel(), Chain(3, "drawn"), TraversalVerification()),
    (any_draft(), SpecInfer([4, 2]), TraversalVerification()),
    (DraftModel(coupled=True), DySpecGreedy(candidates="top-k"), KeyedSampling()),
    (DraftModel(coupled=True), BeamRerank(), Greedy()),
    (PromptLookup(), Chain(3), RejectionSampling()),
    (TokenRecycling(k=4), KConfig([4, 4]), SampleMatch()),
    (PromptLookup(candidates=2), StaticTree([[0], [1]]), RejectionSampling()),
]


def names(parts):
    return "-".join(type(part).__name__ for part in parts if part is not None) if isinstance(parts, tuple) else ""


@pytest.mark.parametrize(("parts", "sentence"), IMPOSSIBLE, ids=names)
def test_parts_that_cannot_work_together_are_refused(parts, sentence):
    with pytest.raises(ValueError, match=f"^{re.escape(sentence)}[^\n]*$"):
        check_composition(*parts)


@pytest.mark.parametrize("parts", POSSIBLE, ids=names)
def test_parts_that_can_work_together_are_not(parts):
    check_composition(*parts)


def test_a_dynamic_tree_makes_do_with_a_small_vocabulary():
    """Its budget bounds the candidates it may request; a draft of 9 tokens has no 64."""
    result = Decoder(counting_model(9), DraftModel(counting_model(9)), DySpecGreedy(64)).generate([1])
    assert result.token_ids[:3] == [2, 3, 4]


@pytest.mark.parametrize(
    ("draft", "sentence"),
    [
        (None, r"DraftModel has no model yet: pass one, as in DraftModel\(pair\.draft\)"),
        (counting_model(8), "the draft model must have the target's vocabulary of 9 tokens, got 8"),
    ],
)
def test_a_draft_model_must_have_a_model_of_the_targets_vocabulary(draft, sentence):
    with pytest.raises(ValueError, match=sentence):
        Decoder(counting_model(9), DraftModel(draft), Chain(3))


def test_a_tree_must_fit_the_context():
    target = hashed_model(20, context_limit=64)
    for builder in (DySpecGreedy(64), BeamRerank(budget=64), DySpecThreshold(max_nodes=64), KConfig([64])):
        name = type(builder).__name__
        with pytest.raises(ValueError, match=rf"{name} makes trees of up to 64 nodes.*holds 64"):
            Decoder(target, any_draft(), builder)
    Decoder(target, DraftModel(hashed_model(20)), DySpecGreedy(63))
