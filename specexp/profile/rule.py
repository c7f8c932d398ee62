"""A rule of thumb for the acceptance rate above which drafting pays off, given the costs of a step."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from statistics import median
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from specexp.builders import Chain
from specexp.builders.sequoia import best_trees
from specexp.core.latency import LatencyProfile
from specexp.core.loop import Decoder
from specexp.drafters import DraftModel
from specexp.profile.passes import PassSamples, TargetPass, TimedPass
from specexp.profile.roofline import limit_samples, roofline_of

if TYPE_CHECKING:
    from specexp.artifacts.kinds.latency_profile import Roofline
    from specexp.models.pair import ModelPair

MOST_NODES, DEEPEST = 32, 12
LATER = (0.35, 0.16, 0.09, 0.05, 0.02)
"""Share of the first candidate's misses in which the draft's second, third, ... candidate is right.

Measured with the embedded pair at temperature 0.7 (``experiments/papers/dyspec/acceptance/sampling.json``)."""
_ROWS = (1, 2, 4, 8, 16, MOST_NODES + 1)
_PREFIX, _REPEATS, _LENGTH, _NEW_TOKENS = 64, 8, 3, 48
_TEXT = 'def read_config(path):\n    """Return the settings of a file as a dictionary."""\n'


class Payoff(NamedTuple):
    """The best tree's modelled speedup over plain decoding, and its size."""

    speedup: float
    nodes: int
    depth: int


def payoff(profile: LatencyProfile, acceptance: float, *, chain: bool) -> Payoff:
    """Return the size and speedup of the best chain, or best tree of up to 32 nodes (0 nodes and 1.0 if none pays off).
    ``acceptance`` is the probability that the first candidate is accepted after an accepted token.
    """
    # candidates are ranked, so none is more likely than the first
    later = () if chain else tuple(min(acceptance, (1 - acceptance) * share) for share in LATER)
    trees = best_trees((acceptance, *later), MOST_NODES)
    plain = profile.step_seconds(1)
    best = Payoff(1.0, 0, 0)
    for depth in range(1, DEEPEST + 1):
        passes = [1] * depth if profile.draft_ms else []
        values = trees.values(depth).tolist()  # [nodes + 1] tokens per step
        for nodes in range(depth, depth + 1 if chain else MOST_NODES + 1):
            further = values[nodes] - 1  # new tokens besides the one that step_seconds counts
            seconds = profile.step_seconds(nodes + 1, passes) + further * profile.token_ms / 1e3
            best = max(best, Payoff(values[nodes] * plain / seconds, nodes, depth))
    return best


def break_even(profile: LatencyProfile, *, chain: bool) -> float | None:
    """Return the lowest acceptance, in steps of 0.05, that gives a speedup of at least 1.1, or None."""
    grid = (number / 20 for number in range(1, 20))
    return next((one for one in grid if payoff(profile, one, chain=chain).speedup >= 1.1), None)


def measure_quickly(pair: ModelPair) -> tuple[LatencyProfile, Roofline, float]:
    """Time a pair with a draft model for a few seconds. Return its profile, the device's limits and the acceptance.

    ``python -m specexp.profile`` measures these in detail, with intervals, by prefix length and by composition.
    """
    model = pair.target_runtime()
    draft = DraftModel(pair.draft_runtime(), coupled=True)
    limits = limit_samples(pair.target, model)
    assert limits is not None
    text = np.arange(5, 5 + 2 * _PREFIX)  # arbitrary tokens: the time depends only on their number
    target_ms = _milliseconds(TargetPass(model, text), _ROWS, limits)
    decoder = Decoder(model, draft, Chain(length=_LENGTH))
    prompt = pair.tokenizer(_TEXT).input_ids
    for _ in range(2):  # the first run is the warm-up
        found = decoder.generate(prompt, max_new_tokens=_NEW_TOKENS, seed=0)
    outside = sum(found.seconds.values()) - found.seconds["target"] - found.seconds["draft"]
    profile = LatencyProfile(
        pair.name,
        target_ms,
        {1: 1e3 * found.seconds["draft"] / max(found.draft_passes, 1)},
        step_ms=1e3 * outside / found.steps,
        source="measured",
    )
    return profile, roofline_of(limits), found.accepted_drafts / max(sum(found.drafted_at), 1)


def _milliseconds(timed: TimedPass, rows: Sequence[int], limits: PassSamples) -> dict[int, float]:
    samples = PassSamples(timed, [_PREFIX], rows)
    for one in (samples, limits):
        one.warm_up()
    for repetition in range(_REPEATS):
        for block in (*samples.blocks(repetition), *limits.blocks(repetition)):
            block()
    medians = [median(samples.milliseconds[_PREFIX, size]) for size in rows]
    # a pass over more rows never takes less time, except because of disturbances
    return dict(zip(rows, accumulate(medians, max), strict=True))
