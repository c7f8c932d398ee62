"""Tests the distribution of a composition's output on toy targets with known probabilities.

A verifier may be right in each step but wrong across steps, for example with frozen noise. It may also be right on
average but wrong after accepted drafts. Several joint distributions are therefore tested:

- three consecutive tokens, and the first tokens of three consecutive steps,
- tokens by their position in a step, and tokens by the preceding token,
- how often the first candidate is the output.

The required power determines the number of samples. With ``n`` triples of tokens, a deviation of total variation ``TV``
has a non-centrality of at least ``4 * n * TV**2``. ``n`` is the smallest number at which Pearson's chi-square test
finds this deviation with probability ``1 - MISS``. The test looks at the samples twice. A toy is finished after
``n / 2`` triples if the deviation would have given a larger chi-square with probability ``1 - MISS``, the usual case.
Otherwise, the other half is sampled. In total, the probability of a miss is at most ``1 - POWER``.

All tests and looks share a quarter of the level (Bonferroni), so exact compositions are rejected less often than that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from specexp.verify.result import Decision, LosslessCheck
from specexp.verify.statistics import (
    LOOKS,
    MISS,
    POWER,
    SHARE,
    GoodnessOfFit,
    detectable_total_variation,
    goodness_of_fit,
    of_known_choices,
    samples_needed,
)
from specexp.verify.toy import BLOCK, CHUNK, COMPARED, MANNERS, TOKENS, Manner, Tally, ToyLaw

BLOCKS = CHUNK * TOKENS // BLOCK
"""Number of triples of tokens in a chunk."""
Chunks = Callable[[Manner, Sequence[int]], Iterable[Tally]]
"""Decodes the chunks with the given numbers on a toy model of the given manner."""


class JointTest:
    """Tests the joint distributions on all toys. The constructor requests the first half of the samples.

    Args:
        own_noise: Whether the verifier draws new noise in each step. If not, a coupled drafter may know the noise in
            advance. Step lengths then depend on the next tokens even if the output is right, so they are not tested.
    """

    def __init__(
        self,
        chunks: Chunks,
        law: ToyLaw,
        own_noise: bool,
        total_variation: float,
        level: float,
        most: int | None = None,
    ) -> None:
        self.own_noise = own_noise
        self.total_variation = total_variation
        self.level = level
        self.each = level * SHARE / (LOOKS * len(MANNERS) * (5 if own_noise else 2))
        self.laws = {manner: law.toy(manner).law(law.processors) for manner in MANNERS}
        self.needed = {
            manner: samples_needed(total_variation, int((shares > 0).sum()) ** BLOCK - 1, self.each, 1 - MISS)
            for manner, shares in self.laws.items()
        }
        self._chunks = chunks
        self._numbers = {
            manner: [math.ceil(min(n, most or n) / BLOCKS) for n in (needed / 2, needed)]
            for manner, needed in self.needed.items()
        }
        self._first = {manner: chunks(manner, range(half)) for manner, (half, _) in self._numbers.items()}

    @property
    def chunks(self) -> int:
        """Maximum number of chunks to decode."""
        return sum(whole for _, whole in self._numbers.values())

    @cached_property
    def check(self) -> LosslessCheck:
        """The result of the test. The second half of the samples is decoded only if needed."""
        tallies = {manner: sum(found, Tally()) for manner, found in self._first.items()}
        fits = self._fits(tallies)
        if min(fit.p_value for fit in fits.values()) >= self.each:
            for manner in MANNERS:
                if not self._settled(manner, tallies, fits):
                    tallies[manner] += sum(self._chunks(manner, range(*self._numbers[manner])), Tally())
            fits = self._fits(tallies)
        least = min(fit.p_value for fit in fits.values())
        joints = [fits[f"{manner}: tokens"] for manner in MANNERS]
        finds = max(detectable_total_variation(fit.samples, fit.cells - 1, self.each) for fit in joints)
        decision: Decision = "undecided"
        if least < self.each:
            decision, evidence = "found", "deviation found"
        elif all(self._settled(manner, tallies, fits) for manner in MANNERS):
            decision, finds = "excluded", self.total_variation
            evidence = (
                f"on toys, no deviation above total variation {self.total_variation:g} of the joint of three tokens "
                f"found (power {100 * POWER:.0f} %)"
            )
        else:
            evidence = (
                f"on toys, no deviation found; one above total variation {finds:.2g} would have been (power "
                f"{100 * POWER:.0f} %), but excluding {self.total_variation:g} needs more samples"
            )
        total = sum(tallies.values(), Tally())
        p_value = min(1.0, least / self.each * self.level)
        check = LosslessCheck("toy joint", decision, total.blocks, evidence, finds, p_value, self.level, fits)
        return replace(check, branches=total.branches)

    def _fits(self, tallies: dict[Manner, Tally]) -> dict[str, GoodnessOfFit]:
        return {
            f"{manner}: {name}": fit
            for manner, tally in tallies.items()
            for name, fit in joint_fits(tally, self.laws[manner], self.own_noise).items()
        }

    def _settled(self, manner: Manner, tallies: dict[Manner, Tally], fits: dict[str, GoodnessOfFit]) -> bool:
        """Return whether a toy has enough samples to find or exclude a deviation of the stated size."""
        blocks, needed = tallies[manner].blocks, self.needed[manner]
        return blocks >= needed or (blocks >= needed / 2 and fits[f"{manner}: tokens"].excludes(self.total_variation))


def joint_fits(tally: Tally, law: NDArray[np.float64], own_noise: bool) -> dict[str, GoodnessOfFit]:
    """Test counts against the target's probabilities by rank, ``[LIVE]``; test step lengths only with ``own_noise``."""
    shares = np.append(law, 0.0)
    joint = np.einsum("i,j,k->ijk", shares, shares, shares).ravel()
    fits = {
        "tokens": goodness_of_fit(tally.tokens.ravel(), joint),
        "by last token": goodness_of_fit(tally.by_last, shares),
    }
    if own_noise:
        if tally.starts.sum():
            fits["steps"] = goodness_of_fit(tally.starts.ravel(), joint)
        fits["by place in a step"] = goodness_of_fit(tally.by_place, shares)
        if tally.first_choice[0]:
            fits["first candidate"] = of_known_choices(*tally.first_choice.tolist())
    return fits


class EqualityTest:
    """Compares at least ``tokens`` tokens from a deterministic verifier with the expected tokens, on the toys."""

    def __init__(self, chunks: Chunks, tokens: int) -> None:
        numbers = range(math.ceil(tokens / (len(MANNERS) * CHUNK * COMPARED)))
        self.chunks = len(MANNERS) * len(numbers)
        self._tallies = [chunks(manner, numbers) for manner in MANNERS]

    @cached_property
    def check(self) -> LosslessCheck:
        """The result of all comparisons."""
        total = sum((tally for tallies in self._tallies for tally in tallies), Tally())
        # With a larger share of wrong tokens, at least one would have been found with probability POWER.
        finds = 1 - (1 - POWER) ** (1 / total.compared)
        decision: Decision = "found" if total.wrong else "excluded"
        evidence = f"on toys, fewer than 1 in {1 / finds:,.0f} (power {100 * POWER:.0f} %)"
        check = LosslessCheck("toy equality", decision, total.compared, evidence, finds, branches=total.branches)
        return replace(check, outcomes={"wrong": len(total.wrong)}, wrong=tuple(total.wrong))
