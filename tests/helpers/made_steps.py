"""Passes and steps that take what a formula says."""

import numpy as np

from specexp.artifacts.kinds.latency_profile import MeasuredPass
from specexp.profile.measure import StepTiming


class MadeArm:
    """What fitting asks of an arm that was decoded."""

    class arm:  # noqa: N801
        name = "made"

    def __init__(self, composition: str, steps: list[StepTiming]) -> None:
        self.composition = composition
        self.steps = steps


def passes(base, prefix_ms=0.0, token_ms=0.0, prefixes=(64, 256, 448), sizes=(1, 2, 4, 8, 16, 32)):
    """``base`` milliseconds by tokens behind 256, and what a longer prefix adds."""
    made = []
    for prefix in prefixes:
        for tokens in sizes:
            ms = base(tokens) + (prefix_ms + token_ms * tokens) * (prefix - 256) / 1e3
            made.append(MeasuredPass(tokens, prefix, ms, ms, ms))
    return made


def steps(profile, count=200, seed=0, drafts=True, noise=0.0):
    """Steps of trees of many sizes that take what a profile says."""
    generator = np.random.default_rng(seed)
    made = []
    for number in range(count):
        nodes = int(generator.integers(1, 32)) if drafts and number % 10 else 0
        fed = (1, 4) if nodes else ()
        new_tokens = 1 + int(generator.integers(0, min(nodes, 5) + 1))
        prefix = int(generator.integers(20, 400))
        seconds = profile.step_seconds(nodes + 1, fed, new_tokens, prefix)
        seconds *= float(np.exp(noise * generator.standard_normal()))
        made.append(StepTiming(nodes + 1, fed, new_tokens, prefix, seconds, seconds, 0.0))
    return made
