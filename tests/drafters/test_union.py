"""Union by hand: the first drafter's candidates, then what the next ones add."""

import numpy as np
import pytest
from helpers.contracts import contract_of

from specexp.artifacts import ArtifactError
from specexp.config.artifacts import save_artifact
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.drafters import PromptLookup, TokenRecycling, Union
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import FakeDrafter

TestUnion = contract_of(DrafterContract, lambda: Union([PromptLookup(candidates=2), TokenRecycling(k=4)]))
TestUnionOfThree = contract_of(
    DrafterContract,
    lambda: Union([TokenRecycling(k=2, state="carry"), PromptLookup(), TokenRecycling(k=3, update="merge")]),
)


@pytest.mark.parametrize("count", [0, 1, 65])
def test_a_number_of_drafters_that_is_not_allowed_is_refused(count):
    with pytest.raises(
        ValueError, match=f"drafters: List should have at {'most 64' if count > 2 else 'least 2'} items"
    ):
        Union([PromptLookup()] * count)


def test_too_many_drafters_are_refused_before_any_is_made(tmp_path):
    drafters = [{"class_path": "PromptLookup"}] * 20_000
    parts = {
        "drafter": {"class_path": "Union", "init_args": {"drafters": drafters}},
        "builder": {"class_path": "Chain"},
    }
    with pytest.raises(ArtifactError, match="at most 64"):
        save_artifact(tmp_path / "many", "composition", {"parts.json": parts})


def fixed(*tokens):
    return FakeDrafter(lambda path: tokens, max_candidates=len(tokens))


@pytest.mark.parametrize(("k", "expected"), [(1, [5]), (3, [5, 2, 7]), (6, [5, 2, 7, 1, -1, -1])])
def test_candidates_keep_their_drafters_order_and_appear_once(k, expected):
    drafter = Union([fixed(5, 2), fixed(2, 7, 5, 1)])
    request = Request(np.array([9]), np.array([-1]), np.array([-1]), np.array([0]), k)
    assert drafter.propose(Context([9]), request).tokens.tolist() == [expected]


def test_a_drafter_without_candidates_leaves_its_ranks_to_the_next():
    drafter = Union([FakeDrafter(lambda path: [], 3), fixed(4, 6)])
    request = Request(np.array([9]), np.array([-1]), np.array([-1]), np.array([0]), 2)
    assert drafter.propose(Context([9]), request).tokens.tolist() == [[4, 6]]


def test_each_drafter_is_shown_the_vocabulary():
    with pytest.raises(ValueError, match="vocabulary size 4, got 8"):
        Union([PromptLookup(), TokenRecycling(k=8)]).check_vocabulary(4)
