"""Tests the distribution of the first tokens on the configured models against the target's probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from specexp.core.parts import Parts
from specexp.core.runtime import Runtime
from specexp.core.sampling import Processors
from specexp.core.tree import TokenTree, TreeShape
from specexp.scheduling import Batched, Job, SerialSpeculative
from specexp.verify.result import Decision, LosslessCheck
from specexp.verify.statistics import (
    POWER,
    GoodnessOfFit,
    combined_p_value,
    detectable_total_variation,
    goodness_of_fit,
)

Start = tuple[int, ...]
WIDTH = 48
"""The number of beginnings of an answer that are counted individually. All others share one cell."""
_PLAIN_LANES = 8
"""The number of continuations per batch in plain decoding."""


@dataclass(frozen=True)
class Starts:
    """The most likely beginnings of the answer to a prompt, as token sequences."""

    prompt_id: str
    prompt: tuple[int, ...]  # token ids
    sequences: tuple[Start, ...]  # all of one length, the most probable first
    probabilities: NDArray[np.float64]  # [m] the target's probability of each sequence; all others share the rest

    def count(self, drawn: Sequence[Sequence[int]]) -> NDArray[np.int64]:
        """Return counts ``[m + 1]``: one for each of ``sequences``, and one for all others."""
        place = {sequence: index for index, sequence in enumerate(self.sequences)}
        indices = [place.get(tuple(one), len(place)) for one in drawn]
        return np.bincount(indices, minlength=len(place) + 1)

    def fit(self, drawn: Sequence[Sequence[int]]) -> GoodnessOfFit:
        """Test sampled beginnings of answers against the target's probabilities."""
        rest = max(0.0, 1.0 - float(self.probabilities.sum()))
        shares = np.append(self.probabilities, rest if rest > 1e-6 else 0.0)
        return goodness_of_fit(self.count(drawn), shares)


def first_tokens(starts: Sequence[Starts], drawn: Sequence[Sequence[Sequence[int]]], level: float) -> LosslessCheck:
    """Test the beginnings that a composition sampled; one p-value covers all prompts."""
    fits = {one.prompt_id: one.fit(own) for one, own in zip(starts, drawn, strict=True)}
    p_value = combined_p_value(list(fits.values()))
    samples = sum(fit.samples for fit in fits.values())
    finds = detectable_total_variation(samples, sum(fit.degrees for fit in fits.values()), level)
    decision: Decision = "found" if p_value < level else "excluded"
    power = f"(power {100 * POWER:.0f} %)"
    evidence = f"no deviation above total variation {finds:.2g} of your model's first tokens found {power}"
    return LosslessCheck("first tokens", decision, samples, evidence, finds, p_value, level, fits)


def likely_starts(model: Runtime, prompt_id: str, prompt: Sequence[int], processors: Processors, tokens: int) -> Starts:
    """Find the most likely beginnings by beam search with exact probabilities, one tree pass per token in slot 0.

    Raises ValueError if the target's logits are not finite.
    """
    model.cache.truncate(0, 0)
    model.prefill(0, prompt[:-1])
    beam: list[tuple[Start, float]] = [((), 1.0)]
    for _ in range(tokens):
        tree, rows = _tree(prompt[-1], [start for start, _ in beam])
        (logits,) = model.tree_pass((0,), (tree,)).logits
        grown: list[tuple[Start, float]] = []
        for (start, probability), row in zip(beam, rows, strict=True):
            after = processors.probabilities(logits[row])  # [V]
            best = np.argsort(-after, kind="stable")[:WIDTH]
            grown += [((*start, int(token)), probability * float(after[token])) for token in best]
        beam = sorted((one for one in grown if one[1] > 0), key=lambda one: -one[1])[:WIDTH]
        if not beam:
            raise ValueError(f"the target's logits after prompt {prompt_id!r} are not finite")
    model.cache.truncate(0, 0)
    shares = np.array([share for _, share in beam])
    return Starts(prompt_id, tuple(prompt), tuple(start for start, _ in beam), shares)


def _tree(root: int, starts: Sequence[Start]) -> tuple[TokenTree, list[int]]:
    """Return a tree that contains every start, and for each start the row of its last token."""
    prefixes = [(), *sorted({start[:end] for start in starts for end in range(1, len(start) + 1)}, key=len)]
    row_of = {prefix: row for row, prefix in enumerate(prefixes)}
    parents = [-1, *(row_of[prefix[:-1]] for prefix in prefixes[1:])]
    ranks = [-1, *(parents[1:row].count(parents[row]) for row in range(1, len(parents)))]
    tokens = np.array([root, *(prefix[-1] for prefix in prefixes[1:])], dtype=np.int64)
    return TokenTree(TreeShape(parents, ranks), tokens), [row_of[start] for start in starts]


def sample_starts(model: Runtime, parts: Parts, starts: Starts, samples: int, seed: int) -> list[list[int]]:
    """Sample ``samples`` continuations of a prompt, each as long as the sequences in ``starts``."""
    strategy = Batched(_PLAIN_LANES) if parts.drafter is None else SerialSpeculative()
    length = len(starts.sequences[0])
    jobs = [Job(starts.prompt, f"{starts.prompt_id}/first#{number}", length) for number in range(samples)]
    with strategy.open(model, parts) as executor:
        return [result.token_ids for result in executor.run(jobs, seed=seed).results]
