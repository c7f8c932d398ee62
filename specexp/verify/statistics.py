"""Pearson's chi-square test of counts against known probabilities, and the deviation that it can detect."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

RARE = 10.0
"""Cells with a smaller expected count are pooled, because the chi-square approximation is poor in the far tail."""
POWER = 0.95
"""Probability of finding a deviation of the stated size."""
SHARE = 0.25
"""Share of the significance level that tests use. The rest is a margin, since chi-square only approximates the tail."""
LOOKS = 2
"""Number of times that a joint distribution is tested: after half of its samples, and after all of them."""
MISS = (1 - POWER) / LOOKS
"""Probability that one of these tests misses a deviation of the stated size."""


@dataclass(frozen=True)
class GoodnessOfFit:
    """The result of a chi-square test, with rare cells pooled."""

    observed: NDArray[np.float64]  # [c] counts of the pooled cells
    expected: NDArray[np.float64]  # [c]
    impossible: int  # counts in cells of probability 0
    chi_square: float  # Pearson's statistic, summed over strata
    degrees: int
    p_value: float  # 0 if an impossible cell was hit
    cells: int  # number of cells with positive probability, before rare ones were pooled

    @property
    def samples(self) -> int:
        """Number of samples counted."""
        return round(float(self.observed.sum())) + self.impossible

    def excludes(self, total_variation: float) -> bool:
        """Return whether a deviation of this size would have given a larger chi-square with probability 1 - MISS."""
        if self.degrees == 0:  # a single cell: any other token is a deviation
            return bool((1 - total_variation) ** self.samples <= MISS)
        noncentral = 4 * self.samples * total_variation**2
        return bool(self.chi_square <= stats.ncx2.ppf(MISS, self.degrees, noncentral))


def goodness_of_fit(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> GoodnessOfFit:
    """Test counts ``[m]``, or ``[s, m]`` in ``s`` strata, against probabilities ``[m]``, which need not sum to 1.

    Raises ValueError if all counts are 0.
    """
    strata = np.atleast_2d(counts)
    if strata.sum() == 0:
        raise ValueError("there is nothing to test: no sample was counted")
    possible = probabilities > 0
    shares = probabilities[possible] / probabilities[possible].sum()
    impossible = int(strata[:, ~possible].sum())
    kept = [one for one in strata[:, possible].astype(np.float64) if one.sum()]
    cells = [pooled(one, one.sum() * shares) for one in kept] or [(np.zeros(1), np.full(1, float(impossible)))]
    observed, expected = (np.concatenate(part) for part in zip(*cells, strict=True))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = observed.size - len(cells)
    p_value = 0.0 if impossible else _tail(chi_square, degrees)
    return GoodnessOfFit(observed, expected, impossible, chi_square, degrees, p_value, shares.size)


def combined_p_value(fits: Sequence[GoodnessOfFit]) -> float:
    """Return one p-value for several independent tests, from the sum of their chi-squares."""
    if any(fit.impossible for fit in fits):
        return 0.0
    return _tail(sum(fit.chi_square for fit in fits), sum(fit.degrees for fit in fits))


def _tail(chi_square: float, degrees: int) -> float:
    return 1.0 if degrees == 0 else float(stats.chi2.sf(chi_square, degrees))


def pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the rarest of ``m`` cells until every expected count is at least :data:`RARE`, or one cell is left.

    Only the expected counts decide which cells are merged. Returns the remaining cells, largest expected count first.
    """
    order = np.argsort(-expected, kind="stable")
    observed, expected = observed[order], expected[order]
    kept = int((expected >= RARE).sum())
    while kept > 0 and 0 < expected[kept:].sum() < RARE:
        kept -= 1
    if kept == expected.size:
        return observed, expected
    rest = observed[kept:].sum(), expected[kept:].sum()
    return np.append(observed[:kept], rest[0]), np.append(expected[:kept], rest[1])


def of_known_choices(count: float, hits: float, expected: float, variance: float) -> GoodnessOfFit:
    """Test the number of correct guesses (``hits``) among ``count`` guesses, each with its own probability ``p``.

    ``expected`` is the sum of ``p``, and ``variance`` is the sum of ``p * (1 - p)``.
    """
    observed = np.array([hits, count - hits])
    wanted = np.array([expected, count - expected])
    if variance < RARE:
        return GoodnessOfFit(observed, wanted, 0, 0.0, 0, 1.0, 2)
    square = (hits - expected) ** 2 / variance
    return GoodnessOfFit(observed, wanted, 0, square, 1, _tail(square, 1), 2)


def _noncentrality(degrees: int, level: float, power: float) -> float:
    return float(special.chndtrinc(stats.chi2.isf(level, degrees), degrees, 1 - power))


def detectable_total_variation(samples: int, degrees: int, level: float) -> float:
    """Return the smallest total variation that the chi-square test detects with probability :data:`POWER`.

    Any deviation ``d`` from cell probabilities ``p`` has the non-centrality ``n * sum(d**2 / p)``, which is at least
    ``4 * n * TV**2`` (Cauchy-Schwarz).
    """
    if degrees == 0:
        return float(1 - (1 - POWER) ** (1 / samples))
    return min(1.0, math.sqrt(_noncentrality(degrees, level, POWER) / (4 * samples)))


def samples_needed(total_variation: float, degrees: int, level: float, power: float = POWER) -> int:
    """Return the number of samples needed to detect a total variation: ``noncentrality / (4 * TV**2)``."""
    if degrees == 0:
        return math.ceil(math.log(1 - power) / math.log(1 - total_variation))
    return math.ceil(_noncentrality(degrees, level, power) / (4 * total_variation**2))
