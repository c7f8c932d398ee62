"""The law of what a composition says, tested on targets whose every probability is known until a deviation is found or
excluded.

Several joints are tested, for a verifier may be right in each step and wrong across them, as with noise that is frozen,
or right on average and wrong behind accepted drafts: three consecutive tokens, the first tokens of three consecutive
steps, tokens by their place in a step, tokens by the one before them, and how often the first candidate comes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specexp.core.decoder import Decoder
from specexp.verify.exercised import Exercised
from specexp.verify.statistics import (
    POWER,
    GoodnessOfFit,
    goodness_of_fit,
    of_known_choices,
    samples_needed,
)
from specexp.verify.toy import MANNERS, Manner
from specexp.verify.toy_run import (
    BLOCK,
    CELLS,
    CHUNK,
    COMPARED,
    TOKENS,
    PartsFactory,
    Tally,
    ToyLaw,
    sample_chunk,
    toy_vocabulary,
)

LOOKS = (1 / 32, 1 / 16, 1 / 8, 0.24, 0.31, 0.38, 0.46, 0.6, 1.0)
"""Shares of the most samples at which the counts are looked at."""
MISSES = (0.0, 0.0, 0.0, 0.01, 0.015, 0.01, 0.005, 0.005, 0.005)
"""Chance that each look excludes a deviation that is there: most of it where exact samples mostly allow it first."""
assert math.isclose(sum(MISSES), 1 - POWER)
_SUSPICIOUS = 0.005
"""A p-value below which no look but the last one excludes anything: a smaller deviation may be on its way."""
_KEPT = 0.25
"""Share of the level that is tested at: chi-square's tail is only nearly that of counts."""
_STATISTICS = 5
BLOCKS = CHUNK * TOKENS // BLOCK
"""Triples of tokens of a chunk."""
Chunks = Callable[[Manner, range], Iterable[Tally]]
"""Decodes chunks of these numbers on a toy of this manner."""
Tell = Callable[[str, int, int], None]
"""Takes what is being sampled, how much of it there is, and how much there will be at most."""
Decision = Literal["found", "excluded", "undecided"]


@dataclass(frozen=True)
class ToyLawTest:
    """What one manner of toy target gave.

    Attributes:
        manner: Of the toy.
        law: ``[LIVE]`` what the target says with, by place in its law.
        tally: Everything that was counted.
        fits: Tests by what they look at; ``tokens`` is the joint of three consecutive ones.
        least: Level of each test at each look.
        below: Total variation that the joint's stays below, with the confidence of the last look.
        decision: A deviation was found; or one of the stated size excluded; or neither within what was allowed.
    """

    manner: Manner
    law: NDArray[np.float64]
    tally: Tally
    fits: Mapping[str, GoodnessOfFit]
    least: float
    below: float
    decision: Decision

    @property
    def worst(self) -> str:
        """The test with the least p-value."""
        return min(self.fits, key=lambda name: self.fits[name].p_value)


@dataclass(frozen=True)
class JointTest:
    """What the continuations of one composition said on the toy targets.

    Attributes:
        toys: By manner.
        total_variation: Deviation of the joint of three tokens that was to be found or excluded.
        level: Probability that all tests at all looks refuse an exact sampler.
    """

    toys: tuple[ToyLawTest, ...]
    total_variation: float
    level: float

    @property
    def passed(self) -> bool:
        """Whether no test finds a difference from the target."""
        return all(toy.decision != "found" for toy in self.toys)

    @property
    def excluded(self) -> bool:
        """Whether the deviation is excluded on all toys."""
        return all(toy.decision == "excluded" for toy in self.toys)

    @property
    def p_value(self) -> float:
        """The least one, after all that were looked at."""
        least = min(toy.fits[toy.worst].p_value / toy.least for toy in self.toys)
        return min(1.0, least * self.level)

    @property
    def below(self) -> float:
        """Total variation that every toy's joint stays below."""
        return max(toy.below for toy in self.toys)

    @property
    def blocks(self) -> int:
        """Triples of tokens, all toys together."""
        return sum(toy.tally.blocks for toy in self.toys)

    @property
    def branches(self) -> Exercised:
        """How the steps ended, all toys together."""
        total = Exercised()
        for toy in self.toys:
            total.add(toy.tally.branches)
        return total

    @property
    def sentence(self) -> str:
        """What is known now."""
        if not self.passed:
            return "deviation found"
        if self.excluded:
            return (
                f"no deviation above total variation {self.total_variation:g} of the joint of three tokens found "
                f"(power {100 * POWER:.0f} %)"
            )
        return (
            f"no deviation found, and above total variation {self.below:.2g} none is left "
            f"(power {100 * POWER:.0f} %): {self.total_variation:g} needs more samples"
        )


def joint_test(
    make_parts: PartsFactory,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    total_variation: float = 0.05,
    level: float = 1e-3,
    most: int | None = None,
    vocabulary: int | None = None,
    seed: int = 0,
) -> JointTest:
    """Sample a composition on the toy targets until a deviation from the target's law is found or excluded.

    Args:
        make_parts: Gives new parts, exactly as configured; called with the toy draft model.
        temperature: The target is to be sampled at; with ``top_k`` and ``top_p`` it says what is right.
        top_k: Top-k of the target.
        top_p: Top-p of the target.
        total_variation: Deviation of the joint of three tokens to be found or excluded.
        level: Probability with which exact samples are refused.
        most: Triples of tokens on each toy at most; as many as the decision needs if None.
        vocabulary: V; just wide enough for the parts if None.
        seed: Seed of the toy models and of the run.

    Raises:
        ValueError: the parts do not go with the toy models, or one fails; the sentence says why.

    Example:
        >>> joint_test(lambda draft: Parts(DraftModel(draft), Chain(), SampleMatch())).sentence  # doctest: +SKIP
        'no deviation above total variation 0.05 of the joint of three tokens found (power 95 %)'
    """
    law = ToyLaw(temperature, top_k, top_p, vocabulary or toy_vocabulary(make_parts), seed)
    decoder = compose(make_parts, law)

    def chunks(manner: Manner, numbers: range) -> Iterable[Tally]:
        return (sample_chunk(make_parts, law, manner, number) for number in numbers)

    own_noise = decoder.parts.verifier.sampling != "deterministic"
    return sample_until_known(chunks, law, own_noise, total_variation, level, most)


def compose(make_parts: PartsFactory, law: ToyLaw) -> Decoder:
    """The parts on a toy target.

    Raises:
        ValueError: they do not go together.
    """
    toy = law.toy("open")
    return Decoder(toy.target, *make_parts(toy.draft))


def sample_until_known(
    chunks: Chunks,
    law: ToyLaw,
    own_noise: bool,
    total_variation: float,
    level: float,
    most: int | None = None,
    tell: Tell = lambda what, done, most: None,
) -> JointTest:
    """Sample and look, until every toy has a decision or one has found a deviation.

    The looks share the level, and the last of them the chance of missing a deviation: each adds its own.

    Args:
        chunks: Decodes.
        law: Of the target.
        own_noise: Whether the verifier draws noise of its own, step by step. Another's output is right even where a
            coupled drafter has looked ahead at its noise, so that where a step ends depends on what comes next.
        total_variation: To be found or excluded.
        level: Probability with which exact samples are refused.
        most: Triples of tokens on each toy at most.
        tell: Takes how far it is.
    """
    each = level * _KEPT / (len(LOOKS) * len(MANNERS) * (_STATISTICS if own_noise else 2))
    toys = {manner: _Sampled(manner, law, own_noise, total_variation, each, most) for manner in MANNERS}
    for look in range(len(LOOKS)):
        open_ones = [(toy, toy.numbers(look)) for toy in toys.values() if toy.decision == "undecided"]
        # all are asked for before any is waited for
        asked = [(toy, numbers, chunks(toy.manner, numbers)) for toy, numbers in open_ones]
        for toy, numbers, tallies in asked:
            for done, tally in enumerate(tallies, numbers.start + 1):
                toy.tally.add(tally)
                tell(f"{toy.manner} toy", done * BLOCKS, toy.most)
            toy.look(look)
        if any(toy.decision == "found" for toy in toys.values()):
            break
    return JointTest(tuple(toy.result() for toy in toys.values()), total_variation, level)


class _Sampled:
    """The samples of one toy so far."""

    def __init__(
        self,
        manner: Manner,
        law: ToyLaw,
        own_noise: bool,
        total_variation: float,
        each: float,
        most: int | None,
    ) -> None:
        self.manner = manner
        self.law = law.toy(manner).law(law.processors)
        self.own_noise = own_noise
        self.total_variation = total_variation
        self.each = each
        degrees = int((self.law > 0).sum()) ** BLOCK - 1
        needed = samples_needed(total_variation, degrees, each, 1 - MISSES[-1])
        self._plan = [needed * share for share in LOOKS]
        self.most = needed if most is None else min(needed, most)
        self.tally = Tally()
        self.fits: dict[str, GoodnessOfFit] = {}
        self.decision: Decision = "undecided"
        self._chunks = 0

    def numbers(self, look: int) -> range:
        """Chunks still to be decoded before a look."""
        wanted = math.ceil(min(self._plan[look], self.most) / BLOCKS)
        numbers = range(self._chunks, max(wanted, self._chunks))
        self._chunks = numbers.stop
        return numbers

    def look(self, look: int) -> None:
        """Decide, if the counts allow it."""
        self.fits = tests_of(self.tally, self.law, self.own_noise)
        complete = look == len(LOOKS) - 1 and self.tally.blocks >= self._plan[-1]
        least = min(fit.p_value for fit in self.fits.values())
        chance = self.fits["tokens"].chance_if_off_by(self.total_variation)
        if least < self.each:
            self.decision = "found"
        elif complete or (least >= _SUSPICIOUS and chance <= MISSES[look]):
            self.decision = "excluded"

    def result(self) -> ToyLawTest:
        """What is known now."""
        below = self.fits["tokens"].total_variation_below(MISSES[-1])
        if self.decision == "excluded":  # at a look that may miss it more often than the last one may
            below = min(below, self.total_variation)
        return ToyLawTest(self.manner, self.law, self.tally, self.fits, self.each, below, self.decision)


def tests_of(tally: Tally, law: NDArray[np.float64], own_noise: bool) -> dict[str, GoodnessOfFit]:
    """Every test of the counts against the target's law.

    Args:
        tally: Counts.
        law: ``[LIVE]`` by place.
        own_noise: Whether where a step ends may be looked at.
    """
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
    assert all(counts.shape[-1] == CELLS for counts in (tally.by_place, tally.by_last))
    return fits


def equality_test(chunks: Chunks, tokens: int, tell: Tell = lambda what, done, most: None) -> Tally:
    """Compare a composition whose output is decided with what it has to say on the toy targets, token for token.

    Args:
        chunks: Decodes and compares.
        tokens: To compare, at least.
        tell: Takes how far it is.
    """
    total = Tally()
    each = CHUNK * COMPARED
    numbers = range(math.ceil(tokens / (len(MANNERS) * each)))
    for manner in MANNERS:
        for done, tally in enumerate(chunks(manner, numbers), 1):
            total.add(tally)
            tell(f"{manner} toy, tokens compared", done * each, len(numbers) * each)
    return total


def chance_below(samples: int) -> float:
    """Share of wrong tokens that would have shown among so many with a probability of 95 %."""
    return 1.0 if samples == 0 else float(1 - (1 - POWER) ** (1 / samples))
