"""Draws have exactly the distribution of one-by-one sampling, and depend on their uniform numbers alone."""

from itertools import permutations, product

import numpy as np
import pytest
import torch
from helpers.examples import examples
from hypothesis import given, strategies as st
from scipy import stats

from specexp.core.noise import uniforms
from specexp.drafters.ranking import draw

Q = np.array([0.4, 0.3, 0.15, 0.1, 0.05])


def keyed(places, seed=0):
    """Return the uniform numbers of rows at these places."""

    def numbers(rows, start, count):
        return np.concatenate([uniforms((seed, 1), places[row], [()], start, count) for row in rows.tolist()])

    return numbers


def drawn(q, k, places=None, **options):
    q = torch.as_tensor(np.atleast_2d(q), dtype=torch.float32)
    return draw(q, keyed(range(len(q)) if places is None else places), k, **options)


def many(q, k, count, **options):
    """``[count, k]`` draws from one distribution at as many places."""
    return drawn(np.tile(q, (count, 1)), k, **options).tokens


def fits(samples, expected):
    """Whether rows of ``samples`` have these probabilities (chi-square)."""
    found, counts = np.unique(samples, axis=0, return_counts=True)
    seen = dict(zip(map(tuple, found.tolist()), counts.tolist(), strict=True))
    assert set(seen) <= set(expected)
    observed = [seen.get(outcome, 0) for outcome in expected]
    return stats.chisquare(observed, np.array(list(expected.values())) * len(samples)).pvalue > 1e-3


def test_all_of_a_distribution_in_order():
    """The last draws depend on all others, so a bias of a later round would show here."""
    expected = {}
    for order in permutations(range(5)):
        left = 1 - np.concatenate(([0], np.cumsum(Q[list(order)])[:-1]))
        expected[order] = np.prod(Q[list(order)] / left)
    assert fits(many(Q, 5, 10_000), expected)


def test_ordered_draws_with_replacement_are_independent():
    expected = {triple: np.prod(Q[list(triple)]) for triple in product(range(5), repeat=3)}
    assert fits(many(Q, 3, 20_000, replacement=True), expected)


def test_a_vocabulary_of_many_blocks_is_drawn_from_as_a_small_one():
    """The five tokens are in four blocks of a vocabulary that is not a multiple of a block."""
    places = [0, 127, 128, 300, 998]
    q = np.zeros(999)
    q[places] = Q
    expected = {(places[a], places[b]): Q[a] * Q[b] / (1 - Q[a]) for a, b in permutations(range(5), 2)}
    assert fits(many(q, 2, 8_000), expected)


vocabularies = st.sampled_from([1, 2, 3, 127, 128, 129, 300])


@examples(80)
@given(vocabularies, st.integers(1, 6), st.integers(0, 10**6), st.booleans(), st.sampled_from([0.02, 0.3, 1.0]))
def test_the_number_of_draws_does_not_change_them(vocabulary, rows, seed, replacement, concentration):
    generator = np.random.default_rng(seed)
    q = generator.dirichlet([concentration] * vocabulary, size=rows).astype(np.float32)
    places = generator.integers(10**6, size=rows).tolist()
    most = drawn(q, 40, places, replacement=replacement)
    for k in (1, 2, 7, 8, 9, 25):
        fewer = drawn(q, k, places, replacement=replacement)
        width = min(k, most.tokens.shape[1])
        assert fewer.tokens.tolist() == most.tokens[:, :width].tolist()
        assert fewer.log_probs.tolist() == most.log_probs[:, :width].tolist()
    for row in range(rows):
        alone = drawn(q[row], 40, [places[row]], replacement=replacement).tokens[0]
        assert most.tokens[row, : alone.size].tolist() == alone.tolist()
        assert (most.tokens[row, alone.size :] == -1).all()
    enough = generator.uniform(0.01, 1.2, size=rows)
    stopped = drawn(q, 40, places, replacement=replacement, enough=enough)
    probability = np.where(most.tokens >= 0, np.exp(most.log_probs, dtype=np.float64), 0.0)
    held_before = probability.cumsum(axis=1) - probability
    for row in range(rows):
        drawn_here = stopped.tokens[row][stopped.tokens[row] >= 0]
        wanted = (most.tokens[row] >= 0) & (held_before[row] < enough[row] - 1e-6)
        spare = (most.tokens[row] >= 0) & (held_before[row] < enough[row] + 1e-6)
        assert wanted.sum() <= drawn_here.size <= spare.sum()
        assert drawn_here.tolist() == most.tokens[row, : drawn_here.size].tolist()


@examples(40)
@given(vocabularies, st.integers(0, 10**6), st.booleans())
def test_the_distribution_is_unchanged(vocabulary, seed, replacement):
    generator = np.random.default_rng(seed)
    q = torch.from_numpy(generator.dirichlet([0.3] * vocabulary, size=3).astype(np.float32))
    before = q.clone()
    answer = draw(q, keyed(range(3)), 20, replacement=replacement)
    assert torch.equal(q, before)
    assert (answer.q == before.numpy()).all()
    there = answer.tokens >= 0
    rows = np.nonzero(there)[0]
    assert np.exp(answer.log_probs[there]) == pytest.approx(answer.q[rows, answer.tokens[there]], rel=1e-5)


@pytest.mark.parametrize(
    ("vocabulary", "possible"),
    [
        (3, {2: 1.0}),
        (128, {127: 1.0}),
        (200, {199: 1.0}),
        (400, {5: 0.7, 200: 0.2, 399: 0.1}),
        (3, {0: 1.0, 2: 1e-12}),  # without replacement the tail comes second, by any uniform number
    ],
)
def test_exactly_the_possible_tokens_are_drawn(vocabulary, possible):
    """The second row, with many possible tokens, does not matter."""
    q = np.zeros((2, vocabulary))
    q[0, list(possible)] = list(possible.values())
    q[1] = 1 / vocabulary
    for place in range(20):
        tokens, wide = drawn(q, 6, [place, 1000]).tokens
        assert sorted(tokens[: len(possible)].tolist()) == sorted(possible)
        assert (tokens[len(possible) :] == -1).all()
        assert (wide >= 0).sum() == min(vocabulary, 6)
    certain = max(possible, key=possible.get)
    if possible[certain] == 1:
        assert drawn(q[0], 5, replacement=True).tokens.tolist() == [[certain] * 5]


def test_the_lowest_and_the_highest_numbers_stay_within_the_vocabulary():
    q = torch.tensor([[0.0, 0.25, 0.0, 0.75, 0.0]])
    for number, token in ((2.0**-54, 1), (1 - 2.0**-53, 3)):
        answer = draw(q, lambda rows, start, count, number=number: np.full((rows.size, count), number), 1)
        assert answer.tokens.tolist() == [[token]]
