"""Pearson's chi-square of counts against known probabilities, and the deviation that it finds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special, stats

RARE = 10.0
"""Cells expected less often than this are pooled: far out in its tail the chi-square approximation needs so many."""
POWER = 0.95
"""Probability with which a deviation of the stated size is found."""
SHARE = 0.25
"""Share of a level that is tested at, since chi-square's tail is only nearly that of counts."""


@dataclass(frozen=True)
class GoodnessOfFit:
    """Counts beside the probabilities they should come from, rare cells pooled.

    Attributes:
        observed: ``[c]`` counts of the pooled cells.
        expected: ``[c]`` expected counts.
        impossible: Counts in cells of probability 0.
        chi_square: Pearson's statistic, summed over strata.
        degrees: Its degrees of freedom.
        p_value: Its p-value, 0 if an impossible cell was hit.
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
        """Number of counted samples."""
        return round(float(self.observed.sum())) + self.impossible


def goodness_of_fit(counts: NDArray[np.int64], probabilities: NDArray[np.float64]) -> GoodnessOfFit:
    """Test counts against known probabilities.

    Args:
        counts: ``[m]`` counts of the cells, or ``[s, m]`` of strata that share one law.
        probabilities: ``[m]`` of the cells. They are scaled to a sum of 1.

    Raises:
        ValueError: There is no count.
    """
    strata = np.atleast_2d(counts)
    if strata.sum() == 0:
        raise ValueError("there is nothing to test: no sample was counted")
    possible = probabilities > 0
    shares = probabilities[possible] / probabilities[possible].sum()
    impossible = int(strata[:, ~possible].sum())
    kept = [one for one in strata[:, possible].astype(np.float64) if one.sum()]
    cells = [pooled(one, one.sum() * shares) for one in kept] or [
        (np.zeros(1), np.full(1, float(impossible)))
    ]
    observed, expected = (np.concatenate(part) for part in zip(*cells, strict=True))
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = observed.size - len(cells)
    p_value = 0.0 if impossible else _tail(chi_square, degrees)
    return GoodnessOfFit(observed, expected, impossible, chi_square, degrees, p_value, shares.size)


def combined_p_value(fits: Sequence[GoodnessOfFit]) -> float:
    """The p-value of several independent samples: that of the sum of their chi-squares."""
    if any(fit.impossible for fit in fits):
        return 0.0
    return _tail(sum(fit.chi_square for fit in fits), sum(fit.degrees for fit in fits))


def _tail(chi_square: float, degrees: int) -> float:
    return 1.0 if degrees == 0 else float(stats.chi2.sf(chi_square, degrees))


def pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the rarest cells until every cell is expected at least :data:`RARE` times, or one is left.

    The expected counts alone decide.

    Args:
        observed: ``[m]`` counts.
        expected: ``[m]`` expected counts.

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
    """Test how many guesses were right, each with a known probability of its own.

    Args:
        count: Number of guesses.
        hits: Number of right guesses.
        expected: Sum of the probabilities ``p``.
        variance: Sum of ``p * (1 - p)``.
    """
    observed, wanted = np.array([hits, count - hits]), np.array([expected, count - expected])
    if variance < RARE:
        return GoodnessOfFit(observed, wanted, 0, 0.0, 0, 1.0, 2)
    square = (hits - expected) ** 2 / variance
    return GoodnessOfFit(observed, wanted, 0, square, 1, _tail(square, 1), 2)


def noncentrality(degrees: int, level: float) -> float:
    """The non-centrality of a deviation that the chi-square test finds with probability :data:`POWER`."""
    return float(special.chndtrinc(stats.chi2.isf(level, degrees), degrees, 1 - POWER))


def detectable_total_variation(samples: int, degrees: int, level: float) -> float:
    """The smallest total variation that the chi-square test finds with probability :data:`POWER`.

    A deviation ``d`` from cell probabilities ``p`` has the non-centrality ``n * sum(d**2 / p)``, which is at least
    ``4 * n * TV**2`` (Cauchy-Schwarz), whatever its form.

    Args:
        samples: n.
        degrees: Degrees of freedom. With 0, one cell holds everything and every other token shows at once.
        level: Level of the test.
    """
    if degrees == 0:
        return float(1 - (1 - POWER) ** (1 / samples))
    return min(1.0, math.sqrt(noncentrality(degrees, level) / (4 * samples)))


def samples_needed(total_variation: float, degrees: int, level: float) -> int:
    """The inverse of :func:`detectable_total_variation`."""
    if degrees == 0:
        return math.ceil(math.log(1 - POWER) / math.log(1 - total_variation))
    return math.ceil(noncentrality(degrees, level) / (4 * total_variation**2))


def p_text(p_value: float | None) -> str | None:
    """A p-value for a person. One below 1e-4 is never printed as 0."""
    if p_value is None:
        return None
    return "<1e-4" if p_value < 1e-4 else f"{p_value:.4f}"
