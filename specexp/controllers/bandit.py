"""Bandits: one of several draft limits, builders or controllers is played at every step, by what each has brought."""

from __future__ import annotations

from math import inf, log, sqrt
from statistics import NormalDist
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.latency import LatencyProfile, outcome_seconds
from specexp.core.outcome import Outcome
from specexp.core.wrappers import ControllerWrapper

Policy = Literal["ucb", "thompson"]
_SUMS = 6  # plays, gain, cost, gain^2, cost^2, gain * cost


class RatioArms:
    """Arms of which the one with the best ratio of sums, gain over cost, is to be played.

    A play of an arm is worth ``gain - rate * cost``, where ``rate`` is the best ratio of all arms: 0 in the mean for
    the best arm, less for any other. An arm's index is its mean worth plus

    - ``ucb``: ``exploration * sd * sqrt(log(plays) / its plays)``,
    - ``thompson``: a draw from the posterior of the mean, normal with deviation ``exploration * sd / sqrt(its plays)``,
      keyed by place,

    and the highest index is played, after every arm was played once. ``sd`` is the deviation of the arm's worth, pooled
    with that of all arms while it has few plays.

    Args:
        policy: how it explores.
        exploration: how much it explores; 0 always plays the best arm so far.
        window: plays that are remembered: older ones fade out.
    """

    def __init__(self, count: int, policy: Policy, exploration: float, window: int) -> None:
        self.policy = policy
        self.exploration = exploration
        self.window = window
        self.profile: LatencyProfile | None = None
        self.sums = [[0.0] * _SUMS for _ in range(count)]
        self._played: PerSequence[tuple[int, int]] = PerSequence()  # position of the root, arm of its step

    def clear(self) -> None:
        """Forget all plays."""
        self.sums = [[0.0] * _SUMS for _ in self.sums]
        self._played.clear()

    def play(self, context: Context, explores: bool) -> int:
        """Choose the arm of the step about to start."""
        number = self.best(context, explores)
        self._played[context] = len(context), number
        return number

    def current(self, context: Context) -> int:
        """Return the arm of the step under way."""
        return self._played.get(context, (-1, 0))[1]

    def end_play(self, outcome: Outcome) -> int | None:
        """Return the arm of a step that is over; None if it was not planned, as the last token of an output."""
        context = outcome.context
        position, number = self._played.pop(context, (-1, 0))
        return number if position == len(context) - len(outcome.new_token_ids) else None

    def add(self, number: int, gain: float, cost: float) -> None:
        """Remember a play; costs are above 0."""
        keep = 1 - 1 / self.window
        self.sums = [[keep * value for value in sums] for sums in self.sums]
        new = (1.0, gain, cost, gain * gain, cost * cost, gain * cost)
        self.sums[number] = [old + value for old, value in zip(self.sums[number], new, strict=True)]

    def add_goodput(self, number: int, outcome: Outcome) -> None:
        """Remember a step as a play that gains its tokens and costs its seconds."""
        seconds = outcome_seconds(outcome, self.profile)
        if seconds > 0:
            self.add(number, float(len(outcome.new_token_ids)), seconds)

    def ratios(self) -> list[float | None]:
        """Return gain over cost of each arm; None before its first play."""
        return [sums[1] / sums[2] if sums[2] > 0 else None for sums in self.sums]

    def load(self, sums: list[Any], name: str) -> None:
        """Take saved :attr:`sums`; raises ``ValueError`` for another number of arms."""
        if [len(one) for one in sums] != [_SUMS] * len(self.sums):
            raise ValueError(
                f"the state of a {name} must hold {_SUMS} sums for each of {len(self.sums)} values"
            )
        self.sums = [[float(value) for value in one] for one in sums]

    def best(self, context: Context, explores: bool) -> int:
        """Return the arm with the highest index or, without exploring, the best arm so far."""
        played = [sums[0] > 0 for sums in self.sums]
        if explores and not all(played):
            return played.index(False)
        if not any(played):
            return 0
        # Dinkelbach: gain - rate * cost has mean 0 for the best ratio and is negative for the others
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
        # n * variance of gain - rate * cost, from the sums of squares and products
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

    Goodput, tokens per second, is a ratio: the fastest value has the best ratio of sums, tokens over seconds, not the
    best mean of ratios (:class:`~specexp.controllers.bandit.RatioArms`). Seconds are modelled where the run has a
    latency profile, else measured.

    Args:
        over: what the values are: draft lengths (``depths``), node budgets (``nodes``), or indices of the builders of a
            :class:`~specexp.builders.Choice` (``choices``).
        values: what is chosen from; null switches speculation off, as 0 does for lengths and budgets.
        policy: how it explores: by upper confidence bounds or by Thompson's draws.
        exploration: how much it explores; 0 always plays the best value so far.
        window: steps it remembers: older ones fade out.
        learn: If False, play the best learned value, without exploring or learning.
        state: ``carry`` keeps what was learned from prompt to prompt, ``cold`` starts every prompt anew.

    Raises:
        ValueError: no values, the same one twice, or one below 0.

    Example:
        >>> controller = Bandit("depths", [0, 2, 4, 8, 16])
    """

    reads_answers = False

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
        self.state = state
        if over == "choices":
            self.num_choices = 1 + max((value for value in values if value is not None), default=0)
        self._arms = RatioArms(len(values), policy, exploration, window)

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._arms.profile = profile

    @override
    def plan(self, context: Context) -> Plan:
        value = self.values[self._arms.play(context, self.learn)]
        if value is None:
            return Plan(max_depth=0)
        if self.over == "choices":
            return Plan(choice=value)
        if self.over == "nodes":
            return Plan(max_nodes=value) if value else Plan(max_depth=0)
        return Plan(max_depth=value)

    @override
    def observe(self, outcome: Outcome) -> None:
        number = self._arms.end_play(outcome)
        if self.learn and number is not None:
            self._arms.add_goodput(number, outcome)

    @override
    def reset(self) -> None:
        self._arms.clear()

    def goodput(self) -> list[float | None]:
        """Return tokens per second of every value; None for one that was not played."""
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


class RuleBandit(ControllerWrapper):
    """Lets one of several controllers decide a step, by what each has brought so far (TapOut, Sridhar et al. 2025).

    No rule for ending a draft is best for every pair and text. The controller that is played plans the step, ends its
    draft, and is the only one that learns from it. Two rewards:

    - ``goodput``: tokens over seconds, modelled where the run has a latency profile, else measured,
    - ``acceptance``: the mean of accepted over drafted nodes and of accepted nodes over ``longest``, which does not
      depend on a clock; the second term keeps a draft from winning by being short.

    Args:
        controllers: at least two rules, such as ``[ConfidenceThreshold(0.4), ConfidenceThreshold(0.6, rule="token")]``.
        longest: accepted nodes of a good draft, for ``acceptance``.
        policy: how it explores: by upper confidence bounds or by Thompson's draws.
        exploration: how much it explores; 0 always plays the best controller so far.
        window: steps it remembers: older ones fade out.
        learn: If False, play the best learned controller; the controllers have their own flags.
        state: ``carry`` keeps what was learned from prompt to prompt, ``cold`` starts every prompt anew; the
            controllers have their own policies.

    Raises:
        ValueError: fewer than two controllers, or an Oracle among them.

    Example:
        >>> controller = RuleBandit([Fixed(max_depth=4), Fixed(max_depth=12)])  # doctest: +SKIP
    """

    def __init__(
        self,
        controllers: list[Controller],
        reward: Literal["goodput", "acceptance"] = "goodput",
        longest: Annotated[int, Field(ge=1, le=256)] = 12,
        policy: Policy = "ucb",
        exploration: Annotated[float, Field(ge=0)] = 1.0,
        window: Annotated[int, Field(ge=2)] = 2000,
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        if len(controllers) < 2:
            raise ValueError(f"RuleBandit was given {len(controllers)} controllers; at least 2 are needed")
        if any(one.needs_foresight for one in controllers):
            raise ValueError(
                "RuleBandit was given an Oracle, which knows the best length already: leave it out"
            )
        self.inner = tuple(controllers)
        self.reward = reward
        self.longest = longest
        self.learn = learn
        self.state = state
        if reward == "goodput":
            self.uses_seconds = True
        self._arms = RatioArms(len(controllers), policy, exploration, window)

    @property
    @override
    def learns(self) -> bool:  # type: ignore[override]
        return self.learn or any(one.learns for one in self.inner)

    @property
    def controllers(self) -> list[Controller]:
        """The controllers that take turns."""
        return list(self.inner)

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._arms.profile = profile
        super().use_latency(profile)

    @override
    def plan(self, context: Context) -> Plan:
        return self.inner[self._arms.play(context, self.learn)].plan(context)

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        return self.inner[self._arms.current(context)].keep_drafting(context, state)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.state == "cold" and not context.continued:
            self._arms.clear()
        super().begin(context, prefill)

    @override
    def observe(self, outcome: Outcome) -> None:
        number = self._arms.end_play(outcome)
        if number is None:
            return
        self.inner[number].observe(outcome)
        if not self.learn:
            return
        if self.reward == "goodput":
            self._arms.add_goodput(number, outcome)
        else:
            accepted, drafted = len(outcome.accepted), outcome.tree.num_nodes
            gain = (accepted / max(drafted, 1) + min(accepted / self.longest, 1.0)) / 2
            self._arms.add(number, gain, 1.0)

    @override
    def reset(self) -> None:
        self._arms.clear()
        super().reset()

    @override
    def learned(self) -> str:
        ratios = self._arms.ratios()
        if all(ratio is None for ratio in ratios):
            return ""
        best = max(range(len(ratios)), key=lambda number: ratios[number] or 0.0)
        return f"{type(self.inner[best]).__name__}, number {best} of its controllers, is the best"

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "reward": self.reward,
            "sums": [list(one) for one in self._arms.sums],
            "controllers": [one.state_dict() for one in self.inner],
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("controllers", "reward", "sums"))
        if state["reward"] != self.reward or len(state["controllers"]) != len(self.inner):
            raise ValueError(
                f"the state is of a RuleBandit over {len(state['controllers'])} controllers by {state['reward']}, but "
                f"this one is over {len(self.inner)} by {self.reward}"
            )
        self._arms.load(state["sums"], "RuleBandit")
        for one, own in zip(self.inner, state["controllers"], strict=True):
            one.load_state_dict(own)
