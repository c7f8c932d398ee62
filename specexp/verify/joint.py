"""The law of what a composition says, tested on a target whose every probability is known.

Two joints are tested, for a verifier may be right in each step and wrong across them, as with noise that is frozen:
the first tokens of a continuation, against the enumerated probabilities of all sequences; and the first tokens of
three consecutive steps, each placed in the distribution it should come from.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.core.decode import Decoder
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.sampling import Processors
from specexp.verify.statistics import GoodnessOfFit, goodness_of_fit
from specexp.verify.toy import LIVE, PROMPT, ToyTarget, toy_models

PartsFactory = Callable[[Any], Parts]
"""Gives new parts; it is handed the toy draft model, for drafters that need one."""

STEPS = 3
"""Consecutive steps whose joint is tested."""
PLACES = 5
"""Equally probable places of a token in its distribution."""
_MOST_TOKENS = 512


@dataclass(frozen=True)
class JointTest:
    """What the continuations of one composition said on the toy target.

    Attributes:
        tokens: The joint of the first ``tested_tokens`` tokens against enumeration.
        steps: The joint of the first tokens of three consecutive steps; None for a deterministic verifier, whose
            output is right even where a coupled drafter has looked ahead at its noise, so that where a step ends
            depends on what comes next.
        tested_tokens: T.
        steps_needed: Mean number of steps that gave the T tokens.
        tokens_per_step: New tokens a step, over all steps.
        sequences: ``[m, T]`` possible sequences, the most probable first.
        counts: ``[m]`` how often each was said.
        probabilities: ``[m]`` of each.
    """

    tokens: GoodnessOfFit
    steps: GoodnessOfFit | None
    tested_tokens: int
    steps_needed: float
    tokens_per_step: float
    sequences: NDArray[np.int64]
    counts: NDArray[np.int64]
    probabilities: NDArray[np.float64]

    @property
    def fits(self) -> tuple[GoodnessOfFit, ...]:
        """The tests that were made."""
        return (self.tokens,) if self.steps is None else (self.tokens, self.steps)

    @property
    def passed(self) -> bool:
        """Whether no test finds a difference from the target."""
        return all(fit.passed for fit in self.fits)

    @property
    def p_value(self) -> float:
        """The least of the chi-square tests."""
        return min(fit.p_value for fit in self.fits)

    @property
    def total_variation(self) -> float:
        """Of the first tokens' joint, rare sequences pooled."""
        return self.tokens.total_variation

    @property
    def bound(self) -> float:
        """What exact samples keep below."""
        return self.tokens.bound

    @property
    def detectable(self) -> float:
        """Total variation of the first tokens' joint that is surely found, with 90 % probability."""
        return self.tokens.detectable


def joint_test(
    make_parts: PartsFactory,
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
    samples: int = 4000,
    tokens: int = 4,
    level: float = 1e-3,
    vocabulary: int | None = None,
    seed: int = 0,
) -> JointTest:
    """Decode many continuations of one prompt on a toy target, and test their law.

    Args:
        make_parts: Gives new parts, exactly as configured; called with the toy draft model.
        temperature: The target is to be sampled at; with ``top_k`` and ``top_p`` it says what is right.
        top_k: Top-k of the target.
        top_p: Top-p of the target.
        samples: continuations.
        tokens: T; all continuations go on for three steps at least.
        level: Probability with which each test refuses an exact sampler (two tests a joint).
        vocabulary: V; just wide enough for the parts if None.
        seed: Seed of the toy models and of the run.

    Raises:
        ValueError: the parts do not go with the toy models, or one fails; the sentence says why.

    Example:
        >>> joint_test(lambda draft: Parts(DraftModel(draft), Chain(), SampleMatch())).passed  # doctest: +SKIP
        True
    """
    target, decoder = toy_decoder(make_parts, temperature, vocabulary, seed)
    processors = Processors(temperature, top_k, top_p)
    sequences, probabilities = target.joint(processors, tokens)
    order = np.argsort(-probabilities, kind="stable")
    sequences, probabilities = sequences[order], probabilities[order]
    said = [_continue(decoder, tokens, seed, number) for number in range(samples)]
    counts, elsewhere = _count(sequences, np.array([one.token_ids[:tokens] for one in said]))
    return JointTest(
        tokens=goodness_of_fit(
            np.append(counts, elsewhere), np.append(probabilities, 0.0), level=level, seed=seed
        ),
        steps=None
        if decoder.parts.verifier.sampling == "deterministic"
        else _test_steps(said, target, processors, level, seed),
        tested_tokens=tokens,
        steps_needed=float(np.mean([one.steps_of(tokens) for one in said])),
        tokens_per_step=sum(sum(one.lengths) for one in said) / sum(len(one.lengths) for one in said),
        sequences=sequences,
        counts=counts,
        probabilities=probabilities,
    )


def toy_decoder(
    make_parts: PartsFactory, temperature: float, vocabulary: int | None = None, seed: int = 0
) -> tuple[ToyTarget, Decoder]:
    """The toy target, and the parts composed with it.

    Raises:
        ValueError: they do not go together.
    """
    target, draft = toy_models(vocabulary or vocabulary_for(make_parts), temperature, seed=seed)
    return target, Decoder(target, *make_parts(draft))


def vocabulary_for(make_parts: PartsFactory) -> int:
    """The smallest toy vocabulary in which the parts find as many candidates as they insist on."""
    parts = make_parts(toy_models(LIVE + 1)[1])
    asked = (
        0 if parts.builder is None or parts.builder.accepts_fewer_candidates else parts.builder.max_candidates
    )
    offered = 0 if parts.drafter is None else parts.drafter.max_candidates
    return max(LIVE + 1, asked, offered)


class _Enough(Exception):  # noqa: N818
    """Ends a continuation that is long enough."""


class _Continuation:
    """One continuation, noted step by step.

    Attributes:
        token_ids: Said so far.
        lengths: Tokens of each step.
    """

    def __init__(self, tokens: int) -> None:
        self.wanted = tokens
        self.token_ids: list[int] = []
        self.lengths: list[int] = []

    def __call__(self, outcome: Outcome) -> None:
        self.token_ids += outcome.new_token_ids
        self.lengths.append(len(outcome.new_token_ids))
        if len(self.token_ids) >= self.wanted and len(self.lengths) >= STEPS:
            raise _Enough

    def steps_of(self, tokens: int) -> int:
        """How many steps the first tokens took."""
        return int(np.searchsorted(np.cumsum(self.lengths), tokens)) + 1


def _continue(decoder: Decoder, tokens: int, seed: int, number: int) -> _Continuation:
    noted = _Continuation(tokens)
    try:
        decoder.generate(PROMPT, max_new_tokens=_MOST_TOKENS, seed=seed, sequence=number, observers=(noted,))
    except _Enough:
        return noted
    raise ValueError(
        f"{STEPS} steps gave more than {_MOST_TOKENS} tokens: the tree is too deep for the toy test"
    )


def _count(sequences: NDArray[np.int64], said: NDArray[np.int64]) -> tuple[NDArray[np.int64], int]:
    """``[m]`` how often each of ``[m, T]`` sequences is among ``[n, T]``, and how many are none of them."""
    place = {tuple(sequence): index for index, sequence in enumerate(sequences.tolist())}
    counts, elsewhere = np.zeros(len(place), dtype=np.int64), 0
    for one in said.tolist():
        index = place.get(tuple(one))
        if index is None:
            elsewhere += 1
        else:
            counts[index] += 1
    return counts, elsewhere


def _test_steps(
    said: list[_Continuation], target: ToyTarget, processors: Processors, level: float, seed: int
) -> GoodnessOfFit:
    """The first token of each of three steps, as its place in the distribution after what came before it.

    A token that holds the stretch [a, b) of its distribution function gets a uniform place in it, so that the three
    places are independent and uniform whatever the target, if each step starts afresh from the target.
    """
    after = target.probabilities(processors)
    upto = np.cumsum(after, axis=2)
    inside = np.random.default_rng(seed).random((len(said), STEPS))
    counts = np.zeros((PLACES,) * STEPS, dtype=np.int64)
    impossible = 0
    for one, uniforms in zip(said, inside, strict=True):
        history = [*PROMPT, *one.token_ids]
        at = len(PROMPT)
        places = []
        for length, uniform in zip(one.lengths[:STEPS], uniforms, strict=True):
            before, last, token = min(history[at - 2], LIVE), min(history[at - 1], LIVE), history[at]
            share = after[before, last, token]
            impossible += share == 0
            place = (upto[before, last, token] - share + uniform * share) * PLACES
            places.append(min(int(place), PLACES - 1))
            at += length
        counts[tuple(places)] += 1
    flat = np.append(counts.ravel(), impossible)
    return goodness_of_fit(
        flat, np.append(np.full(counts.size, 1 / counts.size), 0.0), level=level, seed=seed
    )
