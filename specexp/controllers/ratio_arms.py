"""What bandits know of the things they choose from: discounted sums of what each brought and took."""

from __future__ import annotations

from math import inf, log, sqrt
from statistics import NormalDist
from typing import Any, Literal

from specexp.core.context import Context

Policy = Literal["ucb", "thompson"]

_SUMS = 6


class RatioArms:
    """Several things of which the one with the best ratio of sums, gain over cost, is to be played.

    A play of a thing brings ``gain - rate * cost``, where ``rate`` is the best ratio among them: what it brought beyond
    what it cost was worth. The best one brings 0 in the mean, any other less. A thing's index is its mean plus

    - ``ucb``: ``exploration * sd * sqrt(log(plays) / its plays)``,
    - ``thompson``: a draw from the posterior of the mean, normal with deviation ``exploration * sd / sqrt(its plays)``,
      keyed by place,

    and the highest index is played; first of all everything once. ``sd`` is that of what the thing brought, and of all
    as long as it has few plays.

    Args:
        count: how many things.
        policy: how is explored.
        exploration: how much; 0 always plays what was best so far.
        window: plays that are remembered: older ones fade out.
    """

    def __init__(self, count: int, policy: Policy, exploration: float, window: int) -> None:
        self.policy = policy
        self.exploration = exploration
        self.window = window
        self.sums = [[0.0] * _SUMS for _ in range(count)]

    def clear(self) -> None:
        """Forget all plays."""
        self.sums = [[0.0] * _SUMS for _ in self.sums]

    def add(self, number: int, gain: float, cost: float) -> None:
        """A play of a thing; costs are above 0."""
        keep = 1 - 1 / self.window
        self.sums = [[keep * value for value in sums] for sums in self.sums]
        new = (1.0, gain, cost, gain * gain, cost * cost, gain * cost)
        self.sums[number] = [old + value for old, value in zip(self.sums[number], new, strict=True)]

    def ratios(self) -> list[float | None]:
        """Gain over cost of everything; None of what was not played."""
        return [sums[1] / sums[2] if sums[2] > 0 else None for sums in self.sums]

    def load(self, sums: list[Any], name: str) -> None:
        """Take saved :attr:`sums`.

        Raises:
            ValueError: they are of another number of things.
        """
        if [len(one) for one in sums] != [_SUMS] * len(self.sums):
            raise ValueError(
                f"the state of a {name} must hold {_SUMS} sums for each of {len(self.sums)} values"
            )
        self.sums = [[float(value) for value in one] for one in sums]

    def best(self, context: Context, explores: bool) -> int:
        """Number of what is to be played.

        Args:
            context: the sequence, which keys what is drawn.
            explores: whether it may be another one than the best so far.
        """
        played = [sums[0] > 0 for sums in self.sums]
        if explores and not all(played):
            return played.index(False)
        if not any(played):
            return 0
        rate = max(sums[1] / sums[2] for sums in self.sums if sums[0] > 0)
        gains = [(sums[1] - rate * sums[2]) / sums[0] if sums[0] > 0 else -inf for sums in self.sums]
        if explores and self.exploration > 0:
            plays = sum(sums[0] for sums in self.sums)
            spreads = self._spreads(rate, gains)
            if self.policy == "ucb":
                widths = [sqrt(log(max(plays, 1.0)))] * len(gains)
            else:
                uniforms = context.uniforms("bandit", len(context) - 1, size=len(gains))
                widths = [NormalDist().inv_cdf(float(uniform)) for uniform in uniforms]
            gains = [
                gain + self.exploration * width * spread / sqrt(sums[0])
                for gain, width, spread, sums in zip(gains, widths, spreads, self.sums, strict=True)
            ]
        return gains.index(max(gains))

    def _spreads(self, rate: float, gains: list[float]) -> list[float]:
        """Standard deviation of what each thing brought; that of all counts as one more play of each."""
        squares = [
            max(sums[3] - 2 * rate * sums[5] + rate * rate * sums[4] - sums[0] * gain * gain, 0.0)
            for sums, gain in zip(self.sums, gains, strict=True)
        ]
        pooled = sum(squares) / sum(sums[0] for sums in self.sums)
        return [
            sqrt((square + pooled) / (sums[0] + 1)) for square, sums in zip(squares, self.sums, strict=True)
        ]
