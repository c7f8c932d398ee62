"""How often exact samples are refused: the five statistics at all looks, on continuations whose tokens are drawn by
hand from the target's law.

What a step's end has to do with its tokens is kept: a step goes on as long as each token is the draft model's best one,
as it does under every exact verifier of a chain of point masses.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from numpy.typing import NDArray

from specexp.verify.exercised import Exercised
from specexp.verify.joint import JointTest, sample_until_known
from specexp.verify.toy import LIVE, Manner
from specexp.verify.toy_run import BLOCK, CELLS, CHUNK, TOKENS, Tally, ToyLaw

LAW = ToyLaw()
DEPTH = 3
"""Of the chain."""


@cache
def tables(manner: Manner):
    """The target's law by place, the token of every place after two tokens, and the place of the draft's best one."""
    toy = LAW.toy(manner)
    places = toy.places[:LIVE, :LIVE]
    best = toy.draft.table[:LIVE, :LIVE, :LIVE].argmax(axis=-1)
    guess = np.take_along_axis(places, best[..., np.newaxis], axis=-1)[..., 0]
    return toy.law(LAW.processors), places.argsort(axis=-1), guess


def counted(*coordinates: NDArray[np.int64], shape: tuple[int, ...]) -> NDArray[np.int64]:
    return np.bincount(
        np.ravel_multi_index(coordinates, shape).ravel(), minlength=int(np.prod(shape))
    ).reshape(shape)


def exact(generator: np.random.Generator, manner: Manner, continuations: int) -> Tally:
    """What so many continuations of an exact sampler are counted as."""
    law, token_of, guess_at = tables(manner)
    places = generator.choice(LIVE, size=(continuations, TOKENS), p=law)  # [n, t]
    before, last = generator.integers(LIVE, size=(2, continuations))
    lasts, stands = np.empty_like(places), np.empty_like(places)
    first_choice = np.zeros(4)
    in_step = np.zeros(continuations, dtype=np.int64)
    depth = np.zeros(continuations, dtype=np.int64)
    for at in range(TOKENS):
        place, guess = places[:, at], guess_at[before, last]
        depth = np.where(in_step == 0, min(DEPTH, TOKENS - at - 1), depth)
        drafted, hit = in_step < depth, place == guess
        shares = law[guess[drafted]]
        first_choice += drafted.sum(), hit[drafted].sum(), shares.sum(), (shares * (1 - shares)).sum()
        lasts[:, at], stands[:, at] = last, np.minimum(in_step + 1, 3) if at else 0
        before, last = last, token_of[before, last, place]
        in_step = np.where(drafted & hit, in_step + 1, 0)
    begins = stands.reshape(-1, CHUNK * TOKENS) <= 1
    order = begins.cumsum(axis=1) - 1
    whole = begins & (order < begins.sum(axis=1, keepdims=True) // BLOCK * BLOCK)
    first = places[whole.reshape(places.shape)]
    joint = (CELLS,) * BLOCK
    return Tally(
        tokens=counted(*places.reshape(-1, BLOCK).T, shape=joint),
        starts=counted(*first.reshape(-1, BLOCK).T, shape=joint),
        by_place=counted(stands, places, shape=(4, CELLS)),
        by_last=counted(lasts, places, shape=(CELLS, CELLS)),
        first_choice=first_choice,
        branches=Exercised(steps=int(begins.sum()), tokens=places.size),
    )


def joint_test(seed: int, level: float) -> JointTest:
    """An exact composition, as a verification tests it."""
    generator = np.random.default_rng(seed)

    def chunks(manner: Manner, numbers: range):
        if numbers:
            yield exact(generator, manner, len(numbers) * CHUNK)

    return sample_until_known(chunks, LAW, True, 0.05, level)


@pytest.mark.slow
def test_exact_samples_raise_no_more_alarms_than_they_may():
    """At the default level, of which the toy targets have half: 0.05 % a composition. Of 300 with other seeds, 0 were
    refused; with the odd steps of each continuation dropped, 9 % of the p-values of "steps" lay below 0.01.
    """
    tests = [joint_test(seed, level=5e-4) for seed in range(400)]
    assert sum(not test.passed for test in tests) <= 1
    for toy in range(2):
        for name in ("tokens", "by last token", "steps", "by place in a step", "first candidate"):
            p_values = np.array([test.toys[toy].fits[name].p_value for test in tests])
            assert (p_values < 0.1).mean() < 0.15, name
            assert (p_values < 0.01).mean() < 0.03, name
