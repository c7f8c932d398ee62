"""Do counts come from these probabilities? Pearson's chi-square, what it can find, and what it excludes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

RARE = 10.0
"""Cells expected less often than this are pooled: far out in its tail the chi-square approximation needs so many."""
POWER = 0.95
"""Probability with which a deviation of the stated size is found."""


@dataclass(frozen=True)
class GoodnessOfFit:
    """Counts beside the probabilities they should come from, rare cells pooled.

    Attributes:
        observed: ``[c]`` counts of the pooled cells.
        expected: ``[c]`` expected counts.
        impossible: Counts in cells of probability 0, of which there may be none at all.
        chi_square: Pearson's statistic; of several strata their sum.
        degrees: Its degrees of freedom.
        p_value: Its p-value; 0 if an impossible cell was hit.
        cells: Cells of positive probability before the rare ones were pooled.
    """

    observed: NDArray[np.float64]
    expected: NDArray[np.float64]
    impossible: int
    chi_square: float
    degrees: int
    p_value: float
    cells: int

    @property
    def samples(self) -> int:
        """How many were counted."""
        return round(float(self.observed.sum())) + self.impossible

    @property
    def _all_pooled(self) -> bool:
        """Whether there were too few samples to tell any cells apart."""
        return self.degrees == 0 and self.cells > 1

    def chance_if_off_by(self, total_variation: float) -> float:
        """How probable a statistic no larger than this one is at most, if the law is off by this total variation.

        The bound on the non-centrality is that of :meth:`total_variation_below`.

        Args:
            total_variation: Between the law that was sampled and the stated one, over the pooled cells.
        """
        if self.impossible or self._all_pooled:
            return 1.0
        if self.degrees == 0:
            return float((1 - total_variation) ** self.samples)
        return float(stats.ncx2.cdf(self.chi_square, self.degrees, 4 * self.samples * total_variation**2))

    def total_variation_below(self, miss: float) -> float:
        """Bound on the total variation of the law that was sampled from the stated one, over the pooled cells.

        A deviation ``d`` from cell probabilities ``p`` has the non-centrality ``n * sum(d**2 / p)``, which is at least
        ``4 * n * TV**2`` (Cauchy-Schwarz), whatever its form; so a law further off than the bound gives a statistic as
        small as this one with at most the probability ``miss``.

        Args:
            miss: Probability that the bound is too small.
        """
        if self.impossible or self._all_pooled:
            return 1.0
        if self.degrees == 0:  # one cell, and whatever else is said shows at once
            return 1.0 - float(miss ** (1 / self.samples))
        if stats.chi2.cdf(self.chi_square, self.degrees) <= miss:
            return 0.0
        most = 100.0 + 10 * self.chi_square
        noncentrality = optimize.brentq(
            lambda value: stats.ncx2.cdf(self.chi_square, self.degrees, value) - miss, 1e-9, most
        )
        return min(1.0, math.sqrt(noncentrality / (4 * self.samples)))


def goodness_of_fit(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> GoodnessOfFit:
    """Test counts against known probabilities.

    Args:
        counts: ``[m]`` how often each cell was seen, or ``[s, m]`` of strata of one law each.
        probabilities: ``[m]`` of the cells; what they lack of 1 belongs to no cell and is shared among all.

    Raises:
        ValueError: nothing was counted.
    """
    strata = np.atleast_2d(counts)
    if strata.sum() == 0:
        raise ValueError("there is nothing to test: no sample was counted")
    possible = probabilities > 0
    shares = probabilities[possible] / probabilities[possible].sum()
    impossible = int(strata[:, ~possible].sum())
    cells = []
    for stratum in strata[:, possible].astype(np.float64):
        if stratum.sum():
            cells.append(pooled(stratum, stratum.sum() * shares))
    if not cells:  # nothing but what is impossible
        cells = [(np.zeros(1), np.full(1, float(impossible)))]
    observed, expected = (np.concatenate(part) for part in zip(*cells, strict=True))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = observed.size - len(cells)
    p_value = 1.0 if degrees == 0 else float(stats.chi2.sf(chi_square, degrees))
    return GoodnessOfFit(
        observed, expected, impossible, chi_square, degrees, 0.0 if impossible else p_value, shares.size
    )


def pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the rarest cells until every cell is expected at least :data:`RARE` times, or one is left.

    Args:
        observed: ``[m]`` counts.
        expected: ``[m]`` expected counts, which alone decide.

    Returns:
        Counts and expected counts of the cells that are left, the most expected first.
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
    """Test how often guesses came true whose probabilities were known, each another: the square of a normal deviate.

    Args:
        count: Guesses.
        hits: Those that came true.
        expected: Sum of their probabilities.
        variance: Sum of ``p * (1 - p)``.
    """
    observed, wanted = np.array([hits, count - hits]), np.array([expected, count - expected])
    if variance < RARE:
        return GoodnessOfFit(observed, wanted, 0, 0.0, 0, 1.0, 2)
    square = (hits - expected) ** 2 / variance
    return GoodnessOfFit(observed, wanted, 0, square, 1, float(stats.chi2.sf(square, 1)), 2)


def noncentrality(degrees: int, level: float, power: float = POWER) -> float:
    """Of a deviation that the chi-square test at this level finds with this probability.

    Args:
        degrees: Degrees of freedom, at least 1.
        level: Level of the test.
        power: Probability of finding it.
    """
    threshold = stats.chi2.isf(level, degrees)
    found = optimize.brentq(
        lambda value: stats.ncx2.sf(threshold, degrees, value) - power, 1e-9, 100.0 + 10 * threshold
    )
    return float(found)


def detectable_total_variation(samples: int, degrees: int, level: float, power: float = POWER) -> float:
    """Smallest total variation that the chi-square test surely finds, whatever its form.

    Args:
        samples: n.
        degrees: Degrees of freedom; with 0 one cell holds everything, and only what is impossible shows.
        level: Level of the test.
        power: Probability of finding it.
    """
    if degrees == 0:
        return float(1 - (1 - power) ** (1 / samples))
    return min(1.0, math.sqrt(noncentrality(degrees, level, power) / (4 * samples)))


def samples_needed(total_variation: float, degrees: int, level: float, power: float = POWER) -> int:
    """Samples that surely show a deviation of this total variation, whatever its form.

    Args:
        total_variation: Of the law over its cells.
        degrees: Degrees of freedom; 0 where one cell holds everything.
        level: Level of the test.
        power: Probability of finding it.
    """
    if degrees == 0:
        return math.ceil(math.log(1 - power) / math.log(1 - total_variation))
    return math.ceil(noncentrality(degrees, level, power) / (4 * total_variation**2))


def p_text(p_value: float | None) -> str | None:
    """A p-value as a person reads it; one too small to tell is never 0."""
    if p_value is None:
        return None
    return "<1e-4" if p_value < 1e-4 else f"{p_value:.4f}"
