"""The tests behind a verdict: right sizes under exact samples, and the power they state."""

import numpy as np
import pytest

from specexp.verify.statistics import (
    POWER,
    RARE,
    combined_p_value,
    detectable_total_variation,
    goodness_of_fit,
    of_known_choices,
    pooled,
    samples_needed,
)

SHARES = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.03, 0.01])


def samples(shares, n, runs, seed=0):
    return np.random.default_rng(seed).multinomial(n, shares, size=runs)


def test_exact_samples_are_refused_as_often_as_the_level_states():
    fits = [goodness_of_fit(counts, SHARES) for counts in samples(SHARES, 500, 1000)]
    refused = np.mean([fit.p_value < 0.05 for fit in fits])
    assert 0.03 < refused < 0.07
    assert np.quantile([fit.p_value for fit in fits], [0.25, 0.5, 0.75]) == pytest.approx([0.25, 0.5, 0.75], abs=0.06)


def off_by(total_variation):
    """The law that is hardest to tell from SHARES at this total variation: spread as the probabilities are."""
    half = np.array([1, -1, -1, 1, -1, 1, -1]) * SHARES
    half[half > 0] /= half[half > 0].sum()
    half[half < 0] /= -half[half < 0].sum()
    wrong = SHARES + total_variation * half
    assert np.abs(wrong - SHARES).sum() / 2 == pytest.approx(total_variation)
    return wrong


def test_a_deviation_of_the_stated_size_is_found():
    n, level = 800, 1e-3
    degrees = goodness_of_fit(samples(SHARES, n, 1)[0], SHARES).degrees
    stated = detectable_total_variation(n, degrees, level)
    found = [goodness_of_fit(counts, SHARES).p_value < level for counts in samples(off_by(stated), n, 400)]
    assert np.mean(found) >= POWER - 0.03
    assert samples_needed(stated, degrees, level) == pytest.approx(n, rel=0.01)


def test_chi_squares_by_hand():
    strata, half = np.array([[60, 40], [50, 50], [0, 0], [30, 70]]), np.array([0.5, 0.5])
    fit = goodness_of_fit(strata[0], half)
    assert (fit.chi_square, fit.p_value) == (pytest.approx(4.0), pytest.approx(0.0455, abs=1e-4))
    assert fit.samples == 100
    several = goodness_of_fit(strata, half)
    assert (several.chi_square, several.degrees) == (pytest.approx(4.0 + 0.0 + 16.0), 3)
    with pytest.raises(ValueError, match="no sample was counted"):
        goodness_of_fit(strata[2], half)


def test_guesses_of_known_probabilities_by_hand():
    """100 guesses, each right with a half: 60 right is two standard deviations."""
    fit = of_known_choices(100, 60, 50, 25)
    assert (fit.chi_square, fit.degrees) == (pytest.approx(4.0), 1)
    assert fit.p_value == pytest.approx(0.0455, abs=1e-4)
    assert of_known_choices(3, 3, 0.5, 0.4).p_value == 1.0  # too few to say


def test_rare_cells_are_pooled_by_expected_counts():
    observed, expected = pooled(np.array([9.0, 50.0, 0.0, 3.0]), np.array([4.0, 50.0, 5.0, 15.0]))
    assert expected.tolist() == [50.0, 15.0 + 5.0 + 4.0]
    assert observed.tolist() == [50.0, 12.0]
    observed, expected = pooled(np.array([1.0, 9.0]), np.array([8.0, 6.0]))
    assert expected.tolist() == [14.0]
    assert (pooled(np.zeros(3), np.full(3, RARE))[1] == RARE).all()


def test_impossible_and_certain_outcomes():
    fit = goodness_of_fit(np.array([99, 1, 0]), np.array([1.0, 0.0, 0.0]))
    assert fit.impossible == 1
    assert fit.p_value == 0.0
    assert combined_p_value([fit]) == 0.0
    assert goodness_of_fit(np.array([0, 1, 0]), np.array([1.0, 0.0, 0.0])).p_value == 0.0
    sure = goodness_of_fit(np.array([100, 0, 0]), np.array([1.0, 0.0, 0.0]))
    assert sure.p_value == 1.0
    assert detectable_total_variation(100, 0, 1e-3) == pytest.approx(1 - 0.05**0.01)
    assert samples_needed(0.05, 0, 1e-3) == 59  # 0.95 ** 59 is the first below 0.05


def test_several_samples_find_together_what_none_finds_alone():
    wrong = SHARES + np.array([0.03, -0.03, 0.02, -0.02, 0.0, 0.0, 0.0])
    fits = [goodness_of_fit(counts, SHARES) for counts in samples(wrong, 400, 20)]
    assert min(fit.p_value for fit in fits) > 1e-6
    assert combined_p_value(fits) < 1e-6
    right = [goodness_of_fit(counts, SHARES) for counts in samples(SHARES, 400, 20)]
    assert combined_p_value(right) > 1e-3
