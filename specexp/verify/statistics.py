"""Do counts come from these probabilities? Pearson's chi-square, total variation, and what both can detect."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import optimize, stats

RARE = 5.0
"""Cells expected less often than this are pooled: the chi-square approximation needs no better."""
POWER = 0.9
"""Probability with which a deviation of the stated size is found."""
_NULL_SAMPLES = 400


@dataclass(frozen=True)
class GoodnessOfFit:
    """Counts beside the probabilities they should come from, rare cells pooled.

    Attributes:
        observed: ``[c]`` counts of the pooled cells.
        expected: ``[c]`` expected counts.
        impossible: Counts in cells of probability 0, of which there may be none at all.
        chi_square: Pearson's statistic.
        p_value: Its p-value at ``c - 1`` degrees of freedom; 0 if an impossible cell was hit.
        total_variation: Half the sum of the absolute differences of observed and expected shares.
        bound: Total variation that exact samples exceed with at most the probability ``level``.
        level: Level of each of the two tests.
        detectable: Every deviation with at least this total variation over the pooled cells is found by the
            chi-square test with a probability of at least 90 %; with one possible cell, by a count elsewhere.
    """

    observed: NDArray[np.float64]
    expected: NDArray[np.float64]
    impossible: int
    chi_square: float
    p_value: float
    total_variation: float
    bound: float
    level: float
    detectable: float

    @property
    def samples(self) -> int:
        """How many were counted."""
        return round(float(self.observed.sum())) + self.impossible

    @property
    def passed(self) -> bool:
        """Whether neither test finds a difference."""
        return self.p_value >= self.level and self.total_variation <= self.bound


def goodness_of_fit(
    counts: NDArray[np.int64], probabilities: NDArray[np.float64], *, level: float, seed: int = 0
) -> GoodnessOfFit:
    """Test counts against known probabilities.

    The bound on total variation is its mean over simulated exact samples plus what McDiarmid's inequality allows
    at ``level``, so it needs no assumption about the tail.

    Args:
        counts: ``[m]`` how often each cell was seen.
        probabilities: ``[m]`` of the cells; what they lack of 1 belongs to no cell and is shared among all.
        level: Probability with which each of the two tests refuses exact samples.
        seed: Seed of the simulation.

    Raises:
        ValueError: nothing was counted.
    """
    n = int(counts.sum())
    if n == 0:
        raise ValueError("there is nothing to test: no sample was counted")
    possible = probabilities > 0
    impossible = int(counts[~possible].sum())
    shares = probabilities[possible] / probabilities[possible].sum()
    observed, expected = pooled(counts[possible].astype(np.float64), n * shares)
    chi_square = float(((observed - expected) ** 2 / expected).sum())
    degrees = observed.size - 1
    p_value = 1.0 if degrees == 0 else float(stats.chi2.sf(chi_square, degrees))
    null = np.random.default_rng(seed).multinomial(n, expected / expected.sum(), size=_NULL_SAMPLES)
    mean = float(np.abs(null - expected).sum(axis=1).mean()) / (2 * n)
    return GoodnessOfFit(
        observed,
        expected,
        impossible,
        chi_square,
        0.0 if impossible else p_value,
        (float(np.abs(observed - expected).sum()) + impossible) / (2 * n),
        mean + math.sqrt(math.log(1 / level) / (2 * n)),
        level,
        1 - (1 - POWER) ** (1 / n) if shares.size == 1 else detectable_total_variation(n, degrees, level),
    )


def pooled(
    observed: NDArray[np.float64], expected: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Merge the rarest cells until every cell is expected at least :data:`RARE` times.

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


def detectable_total_variation(samples: int, degrees: int, level: float) -> float:
    """Smallest total variation that the chi-square test surely finds, with probability :data:`POWER`.

    A deviation ``d`` from cell probabilities ``p`` has the non-centrality ``n * sum(d**2 / p)``, which is at least
    ``4 * n * TV**2`` (Cauchy-Schwarz), whatever its form.

    Args:
        samples: n.
        degrees: Degrees of freedom; 0 can find nothing.
        level: Level of the test.
    """
    if degrees == 0:
        return 1.0
    threshold = stats.chi2.isf(level, degrees)
    needed = optimize.brentq(
        lambda noncentrality: stats.ncx2.sf(threshold, degrees, noncentrality) - POWER,
        1e-9,
        100.0 + 10 * threshold,
    )
    return min(1.0, math.sqrt(needed / (4 * samples)))


def two_sample_p_value(counts: NDArray[np.int64], others: NDArray[np.int64]) -> float:
    """Chi-square test that two samples have one distribution; 1 where one cell holds both.

    Args:
        counts: ``[m]`` of the first sample.
        others: ``[m]`` of the second, in the same cells.
    """
    n, m = int(counts.sum()), int(others.sum())
    total = (counts + others).astype(np.float64)
    order = np.argsort(-total, kind="stable")
    smaller = min(n, m) / (n + m)  # a cell is as rare as the smaller sample makes it
    kept = int((total[order] * smaller >= RARE).sum())
    while kept > 0 and 0 < total[order[kept:]].sum() * smaller < RARE:
        kept -= 1
    table = np.array(
        [[*(sample[order[:kept]].tolist()), float(sample[order[kept:]].sum())] for sample in (counts, others)]
    )
    table = table[:, table.sum(axis=0) > 0]
    if table.shape[1] < 2:
        return 1.0
    expected = table.sum(axis=1, keepdims=True) * table.sum(axis=0, keepdims=True) / table.sum()
    return float(stats.chi2.sf(((table - expected) ** 2 / expected).sum(), table.shape[1] - 1))
