"""The law of the first tokens on the configured models, against the target's own probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.core.sampling import Processors
from specexp.core.tree import TokenTree, TreeShape
from specexp.scheduling import Batched, Job, SerialSpeculative
from specexp.verify.statistics import GoodnessOfFit, goodness_of_fit

Start = tuple[int, ...]
SHARE = 0.25
"""Of a composition's level: as much again is given away, for chi-square's tail is only nearly that of counts."""
WIDTH = 48
"""Beginnings of an answer that are told apart; the others are one cell."""
_PLAIN_LANES = 8
"""Continuations that plain decoding takes through a pass together."""


@dataclass(frozen=True)
class Starts:
    """The likeliest beginnings of an answer.

    Attributes:
        prompt_id: Id of the prompt.
        sequences: Token ids, all of one length, the most probable first.
        probabilities: ``[m]`` of each, as the target gives them; the others share the rest.
    """

    prompt_id: str
    sequences: tuple[Start, ...]
    probabilities: NDArray[np.float64]

    def count(self, said: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """``[m + 1]`` how often each was said, and how often another."""
        place = {sequence: index for index, sequence in enumerate(self.sequences)}
        indices = [place.get(tuple(one), len(place)) for one in said]
        return np.bincount(indices, minlength=len(place) + 1)


@dataclass(frozen=True)
class FirstTokens:
    """What one composition said first after one prompt.

    Attributes:
        prompt_id: Id of the prompt.
        fit: Counts of the likeliest beginnings against the target's probabilities.
    """

    prompt_id: str
    fit: GoodnessOfFit


def first_p_value(tests: Sequence[FirstTokens]) -> float:
    """One p-value for all prompts: of the sum of their chi-squares; 0 if one hit what is impossible."""
    if any(test.fit.impossible for test in tests):
        return 0.0
    degrees = sum(test.fit.degrees for test in tests)
    statistic = sum(test.fit.chi_square for test in tests)
    return 1.0 if degrees == 0 else float(stats.chi2.sf(statistic, degrees))


def likely_starts(
    model: Runtime, prompt_id: str, prompt: Sequence[int], processors: Processors, tokens: int
) -> Starts:
    """Find the likeliest beginnings by a beam over the target's exact probabilities, one tree pass a token.

    Args:
        model: The target; its first slot is used.
        prompt_id: Id of the prompt.
        prompt: ``[p]`` token ids.
        processors: Temperature, top-k and top-p of the target.
        tokens: Length of a beginning.

    Raises:
        ValueError: the target's logits are not finite.
    """
    model.cache.truncate(0, 0)
    model.prefill(0, prompt[:-1])
    beam: list[tuple[Start, float]] = [((), 1.0)]
    for _ in range(tokens):
        tree, rows = _tree(prompt[-1], [start for start, _ in beam])
        (logits,) = model.tree_pass((0,), (tree,))
        grown: list[tuple[Start, float]] = []
        for (start, probability), row in zip(beam, rows, strict=True):
            after = processors.probabilities(logits[row])  # [V]
            best = np.argsort(-after, kind="stable")[:WIDTH]
            grown += [((*start, int(token)), probability * float(after[token])) for token in best]
        beam = sorted((one for one in grown if one[1] > 0), key=lambda one: -one[1])[:WIDTH]
        if not beam:
            raise ValueError(f"the target's logits after prompt {prompt_id!r} are no numbers to sample from")
    model.cache.truncate(0, 0)
    return Starts(prompt_id, tuple(start for start, _ in beam), np.array([share for _, share in beam]))


def _tree(root: int, starts: Sequence[Start]) -> tuple[TokenTree, list[int]]:
    """A tree that holds every start, and the row of the last token of each."""
    row_of: dict[Start, int] = {(): 0}
    parents, tokens = [-1], [root]
    for start in starts:
        for length in range(1, len(start) + 1):
            if start[:length] not in row_of:
                row_of[start[:length]] = len(parents)
                parents.append(row_of[start[: length - 1]])
                tokens.append(start[length - 1])
    ranks = [-1, *(parents[1:row].count(parents[row]) for row in range(1, len(parents)))]
    return TokenTree(TreeShape(parents, ranks), np.array(tokens, dtype=np.int64)), [
        row_of[start] for start in starts
    ]


def say(
    model: Runtime, parts: Parts, starts: Starts, prompt: Sequence[int], samples: int, seed: int
) -> list[list[int]]:
    """The first tokens of many continuations of one prompt.

    Args:
        model: The target.
        parts: Any composition.
        starts: Beginnings, whose length is decoded.
        prompt: ``[p]`` token ids.
        samples: How many continuations.
        seed: Seed of the run.
    """
    strategy = Batched(_PLAIN_LANES) if parts.drafter is None else SerialSpeculative()
    length = len(starts.sequences[0])
    jobs = [Job(tuple(prompt), f"{starts.prompt_id}/first#{number}", length) for number in range(samples)]
    with strategy.open(model, parts) as executor:
        return [result.token_ids for result in executor.run(jobs, seed=seed).results]


def compare_starts(starts: Starts, said: Sequence[Sequence[int]]) -> FirstTokens:
    """Test what was said first.

    Args:
        starts: Likeliest beginnings.
        said: What a composition said.
    """
    rest = max(0.0, 1.0 - float(starts.probabilities.sum()))
    shares = np.append(starts.probabilities, rest if rest > 1e-6 else 0.0)
    return FirstTokens(starts.prompt_id, goodness_of_fit(starts.count(said), shares))
