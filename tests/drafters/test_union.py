"""Union by hand: the first drafter's candidates, then what the next ones add."""

import numpy as np
import pytest
import torch
from helpers.contracts import contract_of

from specexp.artifacts import ArtifactError
from specexp.bench.observers import Sources
from specexp.builders import StaticTree
from specexp.config.artifacts import save_artifact
from specexp.core.context import Context
from specexp.core.dialogue import Request
from specexp.core.loop import Decoder
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.drafters import PhraseCache, PromptLookup, TokenRecycling, Union
from specexp.testing.drafters import DrafterContract
from specexp.testing.fakes import FakeDrafter, counting_model

TestUnion = contract_of(DrafterContract, lambda: Union([PromptLookup(candidates=2), TokenRecycling(k=4)]))
TestUnionOfThree = contract_of(
    DrafterContract,
    lambda: Union([TokenRecycling(k=2, state="carry"), PromptLookup(), TokenRecycling(k=3, update="merge")]),
)


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


class Even(FakeDrafter):
    """Knows what follows even numbers."""


class Pair(FakeDrafter):
    """Guesses 0 first, then the next number."""


def test_nodes_are_counted_by_the_drafter_that_proposed_them():
    """Root 4 has the nodes 5 (Even) and 0; below 5 are 0 and 6; root 7 has 0 and 8. The target accepts 5, 6 and 8."""
    even = Even(lambda path: [] if path[-1] % 2 else [path[-1] + 1])
    union = Union([even, Pair(lambda path: [0, path[-1] + 1], 2)])
    sources = Sources(union)
    decoder = Decoder(counting_model(9), union, StaticTree([[0], [1], [0, 0], [0, 1]]))
    assert decoder.generate([3, 4], max_new_tokens=5, observers=[sources]).token_ids == [5, 6, 7, 8, 0]
    assert sources.nodes == {"Even": 1, "Pair": 5}
    assert sources.accepted == {"Even": 1, "Pair": 2}


def test_a_graft_is_a_source_and_other_nodes_are_of_the_drafter_in_the_phrase_cache():
    tree = TokenTree(TreeShape([-1, 0, 1], [-1, 0, 0]), np.array([4, 5, 6]), grafted=np.array([False, False, True]))
    sources = Sources(PhraseCache(Even(lambda path: [])))
    sources(Outcome(Context([4]), tree, torch.empty(0), accepted=(1,), new_token_ids=(5, 7)))
    assert sources.nodes == {"Even": 1, "grafted phrases": 1}
    assert sources.accepted == {"Even": 1, "grafted phrases": 0}


def test_each_drafter_is_shown_the_vocabulary():
    with pytest.raises(ValueError, match="vocabulary size 4, got 8"):
        Union([PromptLookup(), TokenRecycling(k=8)]).check_vocabulary(4)
