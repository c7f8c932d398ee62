"""The law of a composition's output, tested on toy targets with known probabilities.

A verifier may be right in each step and wrong across steps, as with frozen noise, or right on average and wrong behind
accepted drafts. So several joints are tested:

- three consecutive tokens, and the first tokens of three consecutive steps,
- tokens by their place in a step, and tokens by the one before them,
- how often a first candidate comes.

The power determines the number of samples. With ``n`` triples a deviation of total variation ``TV`` has a
non-centrality of at least ``4 * n * TV**2``. ``n`` is the least number at which Pearson's chi-square finds it at the
level with probability ``1 - MISS``. The test has two looks. After ``n / 2`` triples a toy is settled if the deviation
would have given a larger chi-square with probability ``1 - MISS``, as for most exact compositions. Otherwise the other
half is drawn. Both misses together are at most ``1 - POWER``.

Tests and looks share a quarter of the level (Bonferroni), so exact samples are refused with less than the level.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
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
from specexp.verify.toy import (
    BLOCK,
    CHUNK,
    COMPARED,
    MANNERS,
    TOKENS,
    Manner,
    PartsFactory,
    Tally,
    ToyLaw,
    compose,
    sample_chunk,
    toy_vocabulary,
)

BLOCKS = CHUNK * TOKENS // BLOCK
"""Triples of tokens in a chunk."""
Chunks = Callable[[Manner, Sequence[int]], Iterable[Tally]]
"""Decodes the chunks of these numbers on a toy of this manner."""


def joint_test(
    make_parts: PartsFactory,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    total_variation: float = 0.05,
    level: float = 1e-3,
    most: int | None = None,
    seed: int = 0,
) -> LosslessCheck:
    """Sample a composition on the toy targets to find or exclude a deviation from the target's law.

    Temperature, top-k and top-p of the target define the law.

    Args:
        make_parts: Makes new parts, exactly as configured, given the toy draft model.
        total_variation: Deviation of the joint of three tokens to be found or excluded.
        level: Probability with which exact samples are refused, at most.
        most: Triples of tokens on each toy at most; as many as the decision needs if None.
        seed: Seed of the toy models and of the run.

    Raises:
        ValueError: The parts do not go with the toy models, or one fails.

    Example:
        >>> joint_test(lambda draft: Parts(DraftModel(draft), Chain(), SampleMatch())).evidence  # doctest: +SKIP
        'no deviation above total variation 0.05 of the joint of three tokens found (power 95 %)'
    """
    law = ToyLaw(temperature, top_k, top_p, toy_vocabulary(make_parts), seed)
    verifier = compose(make_parts, law)[1].parts.verifier

    def chunks(manner: Manner, numbers: Sequence[int]) -> Iterable[Tally]:
        return (sample_chunk(make_parts, law, manner, number) for number in numbers)

    return JointTest(chunks, law, verifier.sampling != "deterministic", total_variation, level, most).check


class JointTest:
    """A test of the joints on all toys. The first half of the samples is requested at once, for other processes.

    Args:
        own_noise: Whether the verifier draws noise of its own, step by step. Otherwise a coupled drafter may know the
            noise in advance, so the end of a step depends on the next tokens although the output is right.
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
        """The result of all samples."""
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
                f"no deviation above total variation {self.total_variation:g} of the joint of three tokens found "
                f"(power {100 * POWER:.0f} %)"
            )
        else:
            evidence = (
                f"no deviation found; one above total variation {finds:.2g} would have been (power "
                f"{100 * POWER:.0f} %), and {self.total_variation:g} needs more samples"
            )
        total = sum(tallies.values(), Tally())
        p_value = min(1.0, least / self.each * self.level)
        return LosslessCheck(
            "toy joint",
            decision,
            total.blocks,
            evidence,
            finds,
            p_value,
            self.level,
            fits,
            branches=total.branches,
        )

    def _fits(self, tallies: dict[Manner, Tally]) -> dict[str, GoodnessOfFit]:
        return {
            f"{manner}: {name}": fit
            for manner, tally in tallies.items()
            for name, fit in joint_fits(tally, self.laws[manner], self.own_noise).items()
        }

    def _settled(self, manner: Manner, tallies: dict[Manner, Tally], fits: dict[str, GoodnessOfFit]) -> bool:
        """Return whether the counts of a toy are enough for the stated deviation."""
        blocks, needed = tallies[manner].blocks, self.needed[manner]
        return blocks >= needed or (
            blocks >= needed / 2 and fits[f"{manner}: tokens"].excludes(self.total_variation)
        )


def joint_fits(tally: Tally, law: NDArray[np.float64], own_noise: bool) -> dict[str, GoodnessOfFit]:
    """Test the counts against the target's law ``[LIVE]`` by rank; ends of steps only for noise of their own."""
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
    """A comparison of a deterministic verifier's tokens on the toys with the expected ones, of at least ``tokens``."""

    def __init__(self, chunks: Chunks, tokens: int) -> None:
        numbers = range(math.ceil(tokens / (len(MANNERS) * CHUNK * COMPARED)))
        self.chunks = len(MANNERS) * len(numbers)
        self._tallies = [chunks(manner, numbers) for manner in MANNERS]

    @cached_property
    def check(self) -> LosslessCheck:
        """The result of all comparisons."""
        total = sum((tally for tallies in self._tallies for tally in tallies), Tally())
        # A larger share of wrong tokens shows at least once with probability POWER.
        finds = 1 - (1 - POWER) ** (1 / total.compared)
        return LosslessCheck(
            "toy equality",
            "found" if total.wrong else "excluded",
            total.compared,
            f"no token differs, so fewer than 1 in {1 / finds:,.0f} are wrong (power {100 * POWER:.0f} %)",
            finds,
            outcomes={"wrong": len(total.wrong)},
            wrong=tuple(total.wrong),
            branches=total.branches,
        )
