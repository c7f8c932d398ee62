"""A bandit over draft lengths, node budgets or builders: it tries them, and settles on the fastest."""

from __future__ import annotations

from math import inf, log, sqrt
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome

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
        squares = [
            max(sums[3] - 2 * rate * sums[5] + rate * rate * sums[4] - sums[0] * gain * gain, 0.0)
            for sums, gain in zip(self.sums, gains, strict=True)
        ]
        pooled = sum(squares) / sum(sums[0] for sums in self.sums)
        return [
            sqrt((square + pooled) / (sums[0] + 1)) for square, sums in zip(squares, self.sums, strict=True)
        ]


class Bandit(Controller):
    """Chooses one of some values at every step, by the goodput each has given so far.

    Goodput, tokens per second, is a ratio: what decodes a text fastest is the value with the best ratio of sums, tokens
    over seconds, not the best mean of ratios (:class:`~specexp.controllers.bandit.RatioArms` says what is played
    meanwhile). Seconds are modelled where the run has a latency profile (then nothing depends on a clock), else
    measured.

    Args:
        over: what the values are: draft lengths (``depths``), node budgets (``nodes``), or numbers of the builders of a
            :class:`~specexp.builders.Choice` (``choices``).
        values: what is chosen from; null switches speculation off, as 0 does for lengths and budgets.
        policy: how it explores: by upper confidence bounds or by Thompson's draws.
        exploration: how much it explores; 0 always plays what was best so far.
        window: steps it remembers: older ones fade out.
        learn: false: plays the best of what was learned, explores and learns nothing.
        state: ``carry`` keeps what was learned from prompt to prompt, ``cold`` starts every prompt anew.

    Raises:
        ValueError: no values, the same one twice, or one below 0.

    Example:
        >>> controller = Bandit("depths", [0, 2, 4, 8, 16])
    """

    def __init__(
        self,
        over: Literal["depths", "nodes", "choices"],
        values: list[Annotated[int, Field(ge=0)] | None],
        policy: Policy = "ucb",
        exploration: Annotated[float, Field(ge=0)] = 1.0,
        window: Annotated[int, Field(ge=2)] = 2000,
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        meant = [0 if value is None and over != "choices" else value for value in values]
        if not values or len(set(meant)) < len(values):
            raise ValueError(f"Bandit was given the values {values}; different ones are needed, at least one")
        self.over = over
        self.values = values
        self.learn = self.learns = learn
        self.reads_answers = False
        self.state = state
        if over == "choices":
            self.num_choices = 1 + max((value for value in values if value is not None), default=0)
        self._profile: LatencyProfile | None = None
        self._arms = RatioArms(len(values), policy, exploration, window)
        self._played: PerSequence[tuple[int, int]] = PerSequence()

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile

    @override
    def plan(self, context: Context) -> Plan:
        number = self._arms.best(context, self.learn)
        self._played[context] = len(context), number  # for observe; no plan looks at it
        return self._plan_of(self.values[number])

    @override
    def observe(self, outcome: Outcome) -> None:
        context = outcome.context
        position, number = self._played.pop(context, (-1, 0))
        if not self.learn or position != len(context) - len(outcome.new_token_ids):
            return  # a step that was not planned: the last token of an output
        tokens = float(len(outcome.new_token_ids))
        profile = self._profile
        seconds = sum(outcome.seconds.values()) if profile is None else profile.outcome_seconds(outcome)
        if seconds > 0:
            self._arms.add(number, tokens, seconds)

    @override
    def reset(self) -> None:
        self._arms.clear()
        self._played.clear()

    def goodput(self) -> list[float | None]:
        """Tokens per second of every value; None of one that was not played."""
        return self._arms.ratios()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "over": self.over,
            "values": list(self.values),
            "sums": [list(one) for one in self._arms.sums],
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("over", "sums", "values"))
        if (state["over"], list(state["values"])) != (self.over, self.values):
            raise ValueError(
                f"the state is of a Bandit over {state['over']} {list(state['values'])}, but this one is over "
                f"{self.over} {self.values}"
            )
        self._arms.load(state["sums"], "Bandit")

    def _plan_of(self, value: int | None) -> Plan:
        if value is None:
            return Plan(max_depth=0)
        if self.over == "choices":
            return Plan(choice=value)
        if self.over == "nodes":
            return Plan(max_nodes=value) if value else Plan(max_depth=0)
        return Plan(max_depth=value)
