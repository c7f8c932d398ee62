"""The tests behind a verdict: right sizes under exact samples, and the power they state."""

import numpy as np
import pytest
from helpers.combined_fit import combined_p_value

from specexp.verify.statistics import (
    POWER,
    RARE,
    goodness_of_fit,
    pooled,
    two_sample_p_value,
)

SHARES = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])


def samples(shares, n, runs, seed=0):
    return np.random.default_rng(seed).multinomial(n, shares, size=runs)


def test_exact_samples_are_refused_as_often_as_the_level_says():
    fits = [goodness_of_fit(counts, SHARES, level=0.05) for counts in samples(SHARES, 500, 1000)]
    refused = np.mean([fit.p_value < fit.level for fit in fits])
    assert 0.03 < refused < 0.07
    assert np.mean([fit.total_variation > fit.bound for fit in fits]) <= 0.05
    assert np.quantile([fit.p_value for fit in fits], [0.25, 0.5, 0.75]) == pytest.approx(
        [0.25, 0.5, 0.75], abs=0.06
    )


def test_a_deviation_of_the_stated_size_is_found():
    """The worst form of a given total variation, spread as the probabilities are, is found with 90 %."""
    n, level = 800, 1e-3
    stated = goodness_of_fit(samples(SHARES, n, 1)[0], SHARES, level=level).detectable
    half = np.array([1, -1, -1, 1, -1, 1, -1]) * SHARES
    half[half > 0] /= half[half > 0].sum()
    half[half < 0] /= -half[half < 0].sum()
    wrong = SHARES + stated * half
    assert np.abs(wrong - SHARES).sum() / 2 == pytest.approx(stated)
    found = [
        goodness_of_fit(counts, SHARES, level=level).p_value < level for counts in samples(wrong, n, 400)
    ]
    assert np.mean(found) >= POWER - 0.03


def test_numbers_of_a_fit_one_can_check_by_hand():
    fit = goodness_of_fit(np.array([60, 40]), np.array([0.5, 0.5]), level=0.05)
    assert fit.chi_square == pytest.approx(4.0)
    assert fit.p_value == pytest.approx(0.0455, abs=1e-4)
    assert fit.total_variation == pytest.approx(0.1)
    assert not fit.passed
    assert fit.samples == 100


def test_rare_cells_are_pooled_by_what_is_expected_alone():
    observed, expected = pooled(np.array([9.0, 50.0, 0.0, 3.0]), np.array([2.0, 50.0, 2.5, 7.5]))
    assert expected.tolist() == [50.0, 7.5 + 2.5 + 2.0]
    assert observed.tolist() == [50.0, 12.0]
    observed, expected = pooled(np.array([1.0, 9.0]), np.array([4.0, 6.0]))
    assert expected.tolist() == [10.0]
    assert (pooled(np.zeros(3), np.full(3, RARE))[1] == RARE).all()


def test_what_cannot_be_said_must_not_be_said():
    fit = goodness_of_fit(np.array([99, 1, 0]), np.array([1.0, 0.0, 0.0]), level=1e-6)
    assert fit.impossible == 1
    assert fit.p_value == 0.0
    assert not fit.passed
    assert combined_p_value([fit]) == 0.0
    sure = goodness_of_fit(np.array([100, 0, 0]), np.array([1.0, 0.0, 0.0]), level=0.01)
    assert sure.passed
    assert sure.detectable == pytest.approx(1 - 0.1**0.01)


def test_nothing_counted_is_refused():
    with pytest.raises(ValueError, match="no sample was counted"):
        goodness_of_fit(np.zeros(2, dtype=np.int64), np.array([0.5, 0.5]), level=0.01)


def test_two_samples_of_one_law_and_of_two():
    ours, theirs = samples(SHARES, 400, 500, seed=1), samples(SHARES, 400, 500, seed=2)
    same = np.mean([two_sample_p_value(*pair) < 0.05 for pair in zip(ours, theirs, strict=True)])
    assert 0.02 < same < 0.08
    other = samples(SHARES[::-1], 400, 1)[0]
    assert two_sample_p_value(ours[0], other) < 1e-12
    assert two_sample_p_value(np.array([400, 0]), np.array([390, 0])) == 1.0
    assert two_sample_p_value(np.array([400, 0]), np.array([0, 390])) < 1e-12


def test_several_samples_find_together_what_none_finds_alone():
    wrong = SHARES + np.array([0.03, -0.03, 0.02, -0.02, 0.0, 0.0, 0.0])
    fits = [goodness_of_fit(counts, SHARES, level=1e-4) for counts in samples(wrong, 400, 20)]
    assert min(fit.p_value for fit in fits) > 1e-6
    assert combined_p_value(fits) < 1e-6
    right = [goodness_of_fit(counts, SHARES, level=1e-4) for counts in samples(SHARES, 400, 20)]
    assert combined_p_value(right) > 1e-3
