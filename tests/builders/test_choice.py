"""Choice, which builds with one of several builders, and AllCandidates."""

import pytest
from helpers.contracts import contract_of

from specexp.builders import AllCandidates, Chain, Choice, DySpecGreedy, DySpecThreshold, KConfig, SpecInfer
from specexp.controllers import ThresholdTracker
from specexp.core.dialogue import Plan
from specexp.core.loop import Decoder
from specexp.core.parts import check_composition
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.testing.builders import TreeBuilderContract, grow, plenty
from specexp.testing.fakes import hashed_model

pytestmark = pytest.mark.unit

TestChoice = contract_of(TreeBuilderContract, lambda: Choice([KConfig([2, 2]), Chain(3)]))
TestAllCandidates = contract_of(TreeBuilderContract, lambda: AllCandidates(12, candidates=3, max_depth=4))
TestFewNodes = contract_of(TreeBuilderContract, lambda: AllCandidates(3, candidates=2))


def shape(builder, plan):
    return grow(builder, plenty, plan).shape.rank_paths[1:]


def test_the_plan_names_the_builder_and_the_first_is_the_default():
    choice = Choice([Chain(2), KConfig([3])])
    assert shape(choice, Plan()) == ((0,), (0, 0))
    assert shape(choice, Plan(choice=1)) == ((0,), (1,), (2,))
    assert shape(choice, Plan(choice=0, max_depth=1)) == ((0,),)
    nested = Choice([Chain(1), choice])
    assert shape(nested, Plan(choice=1)) == ((0,), (0, 0))  # an inner choice takes its first


def test_it_needs_whatever_one_of_them_needs():
    choice = Choice([Chain(5), KConfig([4, 2]), DySpecGreedy(7)])
    assert (choice.num_choices, choice.max_nodes, choice.max_candidates) == (3, 12, 7)
    assert choice.needs_log_probs
    assert choice.kind is NodeKind.DRAWN
    assert not choice.accepts_fewer_candidates


DYSPEC = DySpecThreshold()


@pytest.mark.parametrize(
    ("drafter", "builders", "controller", "message"),
    [
        (PromptLookup(), [Chain(2), SpecInfer([1])], None, "SpecInfer draws its candidates, but PromptLookup has no"),
        (TokenRecycling(k=8), [Chain(2), Choice([KConfig([9])])], None, "KConfig asks for 9 candidates a node"),
        (DraftModel(), [DYSPEC, Chain(2)], ThresholdTracker(), "plans a threshold, but Choice does not take one"),
    ],
)
def test_each_of_them_must_fit_the_other_parts(drafter, builders, controller, message):
    with pytest.raises(ValueError, match=message):
        check_composition(drafter, Choice(builders), None, controller)


def test_builders_that_fit_are_accepted():
    check_composition(DraftModel(), Choice([Chain(2), SpecInfer([2]), DySpecGreedy(4)]))
    check_composition(DraftModel(), Choice([DYSPEC]), None, ThresholdTracker())


def test_no_builder_is_refused():
    with pytest.raises(ValueError, match="Choice was given no builder"):
        Choice([])


def test_a_tree_of_all_candidates_ends_where_the_drafter_has_no_more():
    seen = []
    decoder = Decoder(hashed_model(24), PromptLookup(candidates=4), AllCandidates())
    decoder.generate([5, 6, 7, 5, 8, 5], max_new_tokens=9, observers=[seen.append])
    assert seen[0].tree.shape.rank_paths[:3] == ((), (0,), (1,))
    assert seen[0].tree.tokens[:3].tolist() == [5, 8, 6]
