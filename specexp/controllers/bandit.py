"""Bandits that choose a draft limit, builder or controller for each step, based on past rewards."""

from __future__ import annotations

from math import log, sqrt
from statistics import NormalDist
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.latency import LatencyProfile, outcome_seconds
from specexp.core.outcome import Outcome
from specexp.core.wrappers import PartWrapper, call_all, folded

Policy = Literal["ucb", "thompson"]
_SUMS = 6  # discounted plays, gain, cost, gain^2, cost^2, gain * cost
_WINDOW = 2000  # effective number of remembered steps; older steps lose weight
_LONGEST = 12  # accepted nodes in a fully successful draft


class RatioArms:
    """Arms of a bandit that maximizes the ratio of total gain to total cost.

    A play of an arm is worth ``gain - rate * cost``, where ``rate`` is the best ratio of all arms. The mean worth is 0
    for the best arm and negative for all others. Once every arm has been played, the arm with the highest index is
    played. The index is the arm's mean worth plus an exploration term:

    - ``ucb``: ``exploration * sd * sqrt(log(total_plays) / arm_plays)``.
    - ``thompson``: a normal random number with standard deviation ``exploration * sd / sqrt(arm_plays)``, keyed by
      position. The index is then a draw from the posterior of the mean.

    ``sd`` is the standard deviation of the arm's worth, pooled with that of all arms while the arm has few plays. The
    arguments are those of :class:`Bandit`.
    """

    def __init__(self, count: int, policy: Policy, exploration: float) -> None:
        self.policy = policy
        self.exploration = exploration
        self.profile: LatencyProfile | None = None
        self.sums: NDArray[np.float64] = np.zeros((count, _SUMS))
        self._played: PerSequence[tuple[int, int]] = PerSequence()  # committed tokens and arm of the step

    def clear(self) -> None:
        """Forget all plays."""
        self.sums = np.zeros_like(self.sums)
        self._played.clear()

    def play(self, context: Context, explores: bool) -> int:
        """Choose the arm for the next step. If ``explores`` is False, choose the best arm so far."""
        number = self._best(context, explores)
        self._played[context] = len(context), number
        return number

    def current(self, context: Context) -> int:
        """Return the arm of the current step."""
        return self._played.get(context, (-1, 0))[1]

    def end_play(self, outcome: Outcome) -> int | None:
        """Return the arm of a finished step, or None if none was planned for it, as for the last step of an output."""
        context = outcome.context
        position, number = self._played.pop(context, (-1, 0))
        return number if position == len(context) - len(outcome.new_token_ids) else None

    def add(self, number: int, gain: float, cost: float) -> None:
        """Add a play to the sums. Its cost must be positive."""
        self.sums *= 1 - 1 / _WINDOW
        self.sums[number] += (1.0, gain, cost, gain * gain, cost * cost, gain * cost)

    def add_goodput(self, number: int, outcome: Outcome) -> None:
        """Add a step to the sums as a play, with its new tokens as the gain and its seconds as the cost."""
        seconds = outcome_seconds(outcome, self.profile)
        if seconds > 0:
            self.add(number, float(len(outcome.new_token_ids)), seconds)

    def ratios(self) -> list[float | None]:
        """Return each arm's ratio of gain to cost, or None if it has not been played."""
        return [gain / cost if cost > 0 else None for _, gain, cost, *_ in self.sums.tolist()]

    def load(self, sums: list[Any], name: str) -> None:
        """Load saved :attr:`sums`. Raises ``ValueError`` if the number of arms differs."""
        if [len(one) for one in sums] != [_SUMS] * len(self.sums):
            raise ValueError(
                f"the state of a {name} must have {_SUMS} sums for each of {len(self.sums)} values, got "
                f"{[len(one) for one in sums]}"
            )
        self.sums = np.array(sums, dtype=np.float64)

    def _best(self, context: Context, explores: bool) -> int:
        plays, gain, cost, gain2, cost2, both = self.sums.T
        if explores and not plays.all():
            return int(plays.argmin())  # the first arm without a play
        if not plays.any():
            return 0
        played = plays > 0
        # Dinkelbach: gain - rate * cost has mean 0 for the best ratio and is negative for the others
        rate = (gain[played] / cost[played]).max()
        index = np.full(plays.size, -np.inf)
        index[played] = (gain - rate * cost)[played] / plays[played]
        if explores and self.exploration > 0:
            # n * variance of gain - rate * cost, from the sums of squares and products
            squares = gain2 - 2 * rate * both + rate * rate * cost2 - plays * index * index
            squares = np.maximum(squares, 0.0)
            pooled = squares.sum() / plays.sum()
            spread = np.sqrt((squares + pooled) / (plays + 1))
            if self.policy == "ucb":
                width: Any = sqrt(log(max(plays.sum(), 1.0)))
            else:
                uniforms = context.uniforms("bandit", len(context) - 1, size=plays.size)
                width = np.array([NormalDist().inv_cdf(uniform) for uniform in uniforms.tolist()])
            index += self.exploration * width * spread / np.sqrt(plays)
        return int(index.argmax())


class Bandit(Controller):
    """Chooses one of several values for each step, based on the goodput (tokens per second) of each value so far.

    Goodput is total tokens over total seconds, not the mean of per-step ratios (see
    :class:`~specexp.controllers.bandit.RatioArms`). Seconds come from the run's latency profile if there is one, and
    otherwise from the clock.

    Args:
        over: what the values are: draft lengths (``depths``), node budgets (``nodes``), or indices of the builders of a
            :class:`~specexp.builders.Choice` (``choices``).
        values: the values to choose from; null turns speculation off, as 0 does for lengths and budgets.
        policy: exploration by upper confidence bounds (``ucb``) or Thompson sampling (``thompson``).
        exploration: strength of exploration; 0 always plays the best value so far.
        learn: If False, always play the best value so far, without exploring or learning.
        state: ``carry`` keeps what was learned across prompts, ``cold`` discards it before every prompt.

    Raises:
        ValueError: ``values`` is empty, or contains a duplicate or a negative number.

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
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        meant = [0 if value is None and over != "choices" else value for value in values]
        if not values or len(set(meant)) < len(values):
            raise ValueError(f"Bandit: values must be a non-empty list without duplicates, got {values}")
        self.over = over
        self.values = values
        limit = {"depths": "max_depth", "nodes": "max_nodes", "choices": "choice"}[over]
        self._plans = [
            # a budget of 0 nodes means no draft pass either
            Plan(max_depth=0) if value is None or (limit, value) == ("max_nodes", 0) else Plan(**{limit: value})
            for value in values
        ]
        self.learn = self.learns = learn
        self.state = state
        if over == "choices":
            self.num_choices = 1 + max((value for value in values if value is not None), default=0)
        self._arms = RatioArms(len(values), policy, exploration)

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._arms.profile = profile

    @override
    def plan(self, context: Context) -> Plan:
        return self._plans[self._arms.play(context, self.learn)]

    @override
    def observe(self, outcome: Outcome) -> None:
        number = self._arms.end_play(outcome)
        if self.learn and number is not None:
            self._arms.add_goodput(number, outcome)

    @override
    def reset(self) -> None:
        self._arms.clear()

    def goodput(self) -> list[float | None]:
        """Return the tokens per second achieved with each value, or None for a value that was never played."""
        return self._arms.ratios()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"over": self.over, "values": list(self.values), "sums": self._arms.sums.tolist()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("over", "sums", "values"))
        if (state["over"], list(state["values"])) != (self.over, self.values):
            raise ValueError(
                f"the state must be of a Bandit over {self.over} {self.values}, got {state['over']} {state['values']}"
            )
        self._arms.load(state["sums"], "Bandit")


class RuleBandit(PartWrapper, Controller):
    """Chooses one of several controllers for each step, based on their rewards so far (TapOut, Sridhar et al. 2025).

    No single rule for ending a draft is best for every pair and text. The chosen controller plans the step, decides
    when its draft ends, and is the only one that learns from it. There are two rewards:

    - ``goodput``: tokens per second, from the run's latency profile if there is one, and otherwise from the clock.
    - ``acceptance``: the mean of two ratios: accepted over drafted nodes, and accepted nodes over 12, capped at 1. It
      does not depend on a clock. The second ratio keeps short drafts from always winning.

    Args:
        controllers: at least two rules, such as ``[ConfidenceThreshold(0.4), ConfidenceThreshold(0.6, rule="token")]``.
        policy: exploration by upper confidence bounds (``ucb``) or Thompson sampling (``thompson``).
        exploration: strength of exploration; 0 always plays the best controller so far.
        learn: If False, always play the best controller so far; the controllers have their own ``learn`` flags.
        state: ``carry`` keeps what was learned across prompts, ``cold`` discards it before every prompt; each
            controller has its own policy.

    Raises:
        ValueError: fewer than two controllers.

    Example:
        >>> controller = RuleBandit([Fixed(max_depth=4), Fixed(max_depth=12)])  # doctest: +SKIP
    """

    own_entries = ("reward", "sums")
    inner: tuple[Controller, ...]
    plans_threshold = folded(any)
    needs_log_probs = folded(any)
    reads_states = folded(any)
    num_choices = folded(max)
    uses_seconds = folded(any)
    learns = folded(any)
    reads_answers = folded(any)
    sees_load = folded(any)
    check_parts = folded(call_all)

    def __init__(
        self,
        controllers: list[Controller],
        reward: Literal["goodput", "acceptance"] = "goodput",
        policy: Policy = "ucb",
        exploration: Annotated[float, Field(ge=0)] = 1.0,
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        if len(controllers) < 2:
            raise ValueError(f"RuleBandit: controllers must be at least 2, got {len(controllers)}")
        self.inner = tuple(controllers)
        self.reward = reward
        self.learn = learn
        if learn:
            self.learns = True  # otherwise the controllers' own values apply
        self.state = state
        if reward == "goodput":
            self.uses_seconds = True
        self._arms = RatioArms(len(controllers), policy, exploration)

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._arms.profile = profile
        call_all(one.use_latency for one in self.inner)(profile)

    @override
    def plan(self, context: Context) -> Plan:
        return self.inner[self._arms.play(context, self.learn)].plan(context)

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        return self.inner[self._arms.current(context)].keep_drafting(context, state)

    @override
    def forget(self) -> None:
        self._arms.clear()

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
            # half the acceptance rate, half the accepted length over the longest
            gain = (accepted / max(drafted, 1) + min(accepted / _LONGEST, 1.0)) / 2
            self._arms.add(number, gain, 1.0)

    @override
    def learned(self) -> str:
        ratios = self._arms.ratios()
        if all(ratio is None for ratio in ratios):
            return ""
        best = max(range(len(ratios)), key=lambda number: ratios[number] or 0.0)
        return f"the best of its controllers is {type(self.inner[best]).__name__} (index {best})"

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"reward": self.reward, "sums": self._arms.sums.tolist(), **super().state_dict()}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        if state["reward"] != self.reward:
            raise ValueError(f"the state must be of a RuleBandit by {self.reward}, got {state['reward']}")
        self._arms.load(state["sums"], "RuleBandit")
