"""Prompt lookup by hand: longest suffix first, newest first, distinct."""

import numpy as np
import pytest
from helpers.contracts import contract_of
from helpers.requests import begun, chain_request

from specexp.core.outcome import Outcome
from specexp.core.tree import NO_CANDIDATE, root_tree
from specexp.drafters import PromptLookup
from specexp.testing.drafters import DrafterContract

pytestmark = pytest.mark.unit

TestPromptLookup = contract_of(DrafterContract, lambda: PromptLookup())
TestSeveralCandidates = contract_of(DrafterContract, lambda: PromptLookup(max_ngram=2, candidates=4))


def ask(drafter, context, k, path=()):
    found = drafter.propose(context, chain_request(context, path, k)).tokens[0].tolist()
    return [token for token in found if token != NO_CANDIDATE]


def test_the_longest_suffix_is_looked_up_first():
    # "1 2" was followed by 3; 2 alone later by 9, 8.
    drafter = PromptLookup(max_ngram=3, candidates=4)
    context = begun(drafter, [1, 2, 3, 5, 2, 9, 6, 2, 8, 1, 2])
    assert ask(drafter, context, 4) == [3, 8, 9]


def test_of_equal_length_the_newest_comes_first():
    drafter = PromptLookup(max_ngram=1, candidates=4)
    context = begun(drafter, [2, 3, 2, 4, 2, 3, 2, 5, 2])
    assert ask(drafter, context, 4) == [5, 3, 4]
    assert ask(drafter, context, 2) == [5, 3]


def test_suffixes_shorter_than_min_ngram_are_not_looked_up():
    drafter = PromptLookup(max_ngram=3, min_ngram=2, candidates=4)
    assert ask(drafter, begun(drafter, [1, 2, 3, 7, 2]), 4) == []


def test_the_path_through_the_tree_belongs_to_the_suffix():
    drafter = PromptLookup(max_ngram=2, candidates=1)
    context = begun(drafter, [1, 2, 3, 4, 9, 3, 8, 1])
    assert ask(drafter, context, 1) == [2]
    assert ask(drafter, context, 1, (2,)) == [3]
    assert ask(drafter, context, 1, (2, 3)) == [4]  # "2 3", although 3 alone was last followed by 8


def test_committed_tokens_are_found_and_drafted_ones_are_not():
    drafter = PromptLookup(candidates=4)
    context = begun(drafter, [1, 2])
    ask(drafter, context, 4, (3, 4))
    assert ask(drafter, context, 4, (3,)) == []
    context.append([7, 2])
    drafter.observe(Outcome(context, root_tree(2), None, (), (7, 2)))
    assert ask(drafter, context, 4) == [7]


@pytest.mark.parametrize("max_ngram", [1, 2, 5])
def test_an_index_grown_step_by_step_is_the_one_built_at_once(max_ngram):
    tokens = np.random.default_rng(0).integers(4, size=60).tolist()
    drafter = PromptLookup(max_ngram=max_ngram, candidates=4)
    grown = begun(drafter, tokens[:3])
    for start in range(3, 60, 3):
        grown.append(tokens[start : start + 3])
        drafter.observe(Outcome(grown, root_tree(0), None, (), ()))
    at_once = begun(drafter, tokens)
    for path in [(), (0,), (1, 2), (3, 3, 3)]:
        assert ask(drafter, grown, 4, path) == ask(drafter, at_once, 4, path)


def test_a_new_turn_is_indexed_too():
    drafter = PromptLookup()
    context = begun(drafter, [1, 2])
    context.next_turn([5, 6, 1])
    drafter.begin(context, None)
    assert ask(drafter, context, 1) == [2]
    assert ask(drafter, context, 1, (2,)) == [5]


def test_sequences_are_indexed_separately():
    drafter = PromptLookup()
    begun(drafter, [1, 2, 1])
    assert ask(drafter, begun(drafter, [1]), 1) == []


def test_the_shortest_suffix_may_not_be_longer_than_the_longest():
    with pytest.raises(ValueError, match="min_ngram must be at most max_ngram 3, got 4"):
        PromptLookup(min_ngram=4)
