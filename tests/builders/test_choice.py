"""Several builders, one of which makes the tree of a step."""

import pytest
from helpers.contracts import contract_of

from specexp.builders import Chain, Choice, DySpecGreedy, DySpecThreshold, KConfig, SpecInfer
from specexp.controllers import ThresholdTracker
from specexp.core.dialogue import Plan
from specexp.core.parts import check_composition
from specexp.core.tree import NodeKind
from specexp.drafters import DraftModel, PromptLookup, TokenRecycling
from specexp.testing.builders import TreeBuilderContract, grow, plenty

TestChoice = contract_of(TreeBuilderContract, lambda: Choice([KConfig([2, 2]), Chain(3)]))


def shape(builder, plan):
    return grow(builder, plenty, plan).shape.rank_paths[1:]


def test_the_plan_names_the_builder_and_the_first_is_the_default():
    choice = Choice([Chain(2), KConfig([3])])
    assert shape(choice, Plan()) == ((0,), (0, 0))
    assert shape(choice, Plan(choice=1)) == ((0,), (1,), (2,))
    assert shape(choice, Plan(choice=0, max_depth=1)) == ((0,),)
    assert shape(Choice([Chain(1), choice]), Plan(choice=1)) == (
        (0,),
        (0, 0),
    )  # a choice inside one takes its first


def test_it_needs_whatever_one_of_them_needs():
    choice = Choice([Chain(5), KConfig([4, 2]), DySpecGreedy(7)])
    assert (choice.num_choices, choice.max_nodes, choice.max_candidates) == (
        3,
        12,
        DySpecGreedy(7).max_candidates,
    )
    assert choice.needs_log_probs
    assert choice.kind is NodeKind.DRAWN
    assert not choice.accepts_fewer_candidates


def test_each_of_them_must_go_together_with_the_drafter():
    check_composition(DraftModel(), Choice([Chain(2), SpecInfer([2]), DySpecGreedy(4)]))
    with pytest.raises(
        ValueError, match="SpecInfer draws its candidates and PromptLookup has no distribution"
    ):
        check_composition(PromptLookup(), Choice([Chain(2), SpecInfer([1])]))
    with pytest.raises(
        ValueError, match="KConfig asks for 9 candidates a node and TokenRecycling ranks at most"
    ):
        check_composition(TokenRecycling(k=8), Choice([Chain(2), Choice([KConfig([9])])]))


def test_a_planned_threshold_must_be_followed_by_all():
    check_composition(DraftModel(), Choice([DySpecThreshold()]), None, ThresholdTracker())
    with pytest.raises(ValueError, match="ThresholdTracker plans a threshold and Choice follows none"):
        check_composition(DraftModel(), Choice([DySpecThreshold(), Chain(2)]), None, ThresholdTracker())


def test_no_builder_is_refused():
    with pytest.raises(ValueError, match="Choice was given no builder"):
        Choice([])
