"""A tree that grows pass by pass answers every row as step-by-step decoding of its branch would."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from helpers.examples import examples
from hypothesis import given, strategies as st

from specexp.core.language_model import LanguageModel
from specexp.core.runtime import Growth
from specexp.core.tree import TokenTree, TreeShape
from specexp.testing.fakes import hashed_model

pytestmark = pytest.mark.unit


def rows_of(parents, start, stop):
    """Depths and visibility of the rows ``start`` to ``stop`` behind those fed before."""
    shape = TreeShape(parents, [-1] + [0] * (len(parents) - 1))
    return shape.depths[start:stop], shape.ancestor_mask[start:stop, :stop]


def grow(model, tokens, depths, visible):
    """``[m, V]`` logits of further rows of one tree."""
    (logits,) = model.grow([0], [Growth(tokens, depths, visible)]).logits
    return logits


def grown(model, tokens, parents, passes):
    """``[n + 1, V]`` logits of a tree fed in passes."""
    return torch.cat([grow(model, tokens[start:stop], *rows_of(parents, start, stop)) for start, stop in passes])


@st.composite
def growing(draw):
    """A tree and how it is cut into passes."""
    parents = [-1]
    for row in range(1, draw(st.integers(1, 12))):
        parents.append(draw(st.integers(0, row - 1)))
    cuts = sorted({0, len(parents), *draw(st.lists(st.integers(0, len(parents)), max_size=4))})
    kept = [0]
    for row in range(1, len(parents)):
        if parents[row] == kept[-1] and draw(st.booleans()):
            kept.append(row)
    return parents, list(pairwise(cuts)), kept


@examples(80)
@given(st.lists(st.tuples(growing(), st.integers(0, 1000)), min_size=1, max_size=3))
def test_several_passes_equal_one_and_the_next_follows_the_kept_rows(steps):
    """Logits are a function of all visible tokens by position, so a wrong row, mask or position shows."""
    fake = hashed_model(11)
    model, text = LanguageModel(fake), [1, 2, 3]
    model.prefill(0, text)
    for (parents, passes, kept), seed in steps:
        tokens = np.random.default_rng(seed).integers(11, size=len(parents))
        answers = grown(model, tokens, parents, passes)
        shape = TreeShape(parents, [-1] + [0] * (len(parents) - 1))
        for row in range(len(parents)):
            branch = [int(tokens[index]) for index in (0, *shape.path(row))]
            assert answers[row].tolist() == list(fake.next_logits((*text, *branch)))
        model.cache.commit(0, kept)
        text += tokens[kept].tolist()
        assert model.cache.lengths[0] == len(text)
        assert model.cache.uncommitted[0] == 0


def test_room_is_made_in_the_middle_of_a_tree():
    fake = hashed_model(11, context_limit=5000)
    model, tokens = LanguageModel(fake), np.arange(400) % 11
    model.prefill(0, [1, 2, 3])
    capacities, passes = set(), [(start, start + 8) for start in range(0, 400, 8)]
    answers = []
    for start, stop in passes:
        answers.append(grow(model, tokens[start:stop], np.arange(start, stop), np.tri(8, stop, k=start, dtype=bool)))
        capacities.add(model.cache.capacity)
    assert len(capacities) > 1
    assert torch.cat(answers)[-1].tolist() == list(fake.next_logits((1, 2, 3, *tokens.tolist())))


def test_a_pass_of_a_whole_tree_drops_a_growing_one():
    fake = hashed_model(11)
    model = LanguageModel(fake)
    model.prefill(0, [1, 2, 3])
    grow(model, np.array([4, 5]), np.array([0, 1]), np.tri(2, dtype=bool))
    (answers,) = model.tree_pass([0], [TokenTree(TreeShape([-1, 0], [-1, 0]), np.array([7, 8]))]).logits
    assert answers[1].tolist() == list(fake.next_logits((1, 2, 3, 7, 8)))
