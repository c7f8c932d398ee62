"""A bandit over stopping rules: other controllers take turns, and the best of them gets most steps."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.controllers.bandit import Policy, RatioArms
from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome
from specexp.core.wrappers import ControllerWrapper

Reward = Literal["goodput", "acceptance"]
_ENTRIES = ("controllers", "reward", "sums")


class RuleBandit(ControllerWrapper):
    """Lets one of several controllers decide a step, by what each has brought so far (TapOut, Sridhar et al. 2025).

    No rule for ending a draft is best for every pair and text, and none need be tuned where the best is found on the
    way. The controller that is played plans the step, ends its draft, and alone learns from it. Two rewards:

    - ``goodput``: tokens over seconds, modelled where the run has a latency profile, else measured,
    - ``acceptance``: the mean of accepted over drafted nodes and of accepted nodes over ``longest``, which no clock
      decides: a short draft is not to win by being short.

    Args:
        controllers: at least two rules, such as ``[ConfidenceThreshold(0.4), ConfidenceThreshold(0.6, rule="token")]``.
        reward: what makes a rule good.
        longest: nodes that a good draft has accepted, for ``acceptance``.
        policy: how it explores: by upper confidence bounds or by Thompson's draws.
        exploration: how much it explores; 0 always plays what was best so far.
        window: steps it remembers: older ones fade out.
        learn: false: plays the best of what was learned; the controllers have switches of their own.
        state: ``carry`` keeps what was learned from prompt to prompt, ``cold`` starts every prompt anew; the
            controllers have policies of their own.

    Raises:
        ValueError: fewer than two controllers, or an Oracle among them.

    Example:
        >>> controller = RuleBandit([Fixed(max_depth=4), Fixed(max_depth=12)])  # doctest: +SKIP
    """

    def __init__(
        self,
        controllers: list[Controller],
        reward: Reward = "goodput",
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
        self._profile: LatencyProfile | None = None
        self._arms = RatioArms(len(controllers), policy, exploration, window)
        self._played: PerSequence[tuple[int, int]] = PerSequence()  # position of the root, who plans its step

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
        self._profile = profile
        super().use_latency(profile)

    @override
    def plan(self, context: Context) -> Plan:
        number = self._arms.best(context, self.learn)
        self._played[context] = len(context), number  # for the rest of the step; no plan looks at it
        return self.inner[number].plan(context)

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        _, number = self._played.get(context, (-1, 0))
        return self.inner[number].keep_drafting(context, state)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.state == "cold" and not context.continued:
            self._forget()
        super().begin(context, prefill)

    @override
    def observe(self, outcome: Outcome) -> None:
        context = outcome.context
        position, number = self._played.pop(context, (-1, 0))
        if position != len(context) - len(outcome.new_token_ids):
            return
        self.inner[number].observe(outcome)
        if not self.learn:
            return
        if self.reward == "acceptance":
            accepted, drafted = len(outcome.accepted), outcome.tree.num_nodes
            gain = (accepted / max(drafted, 1) + min(accepted / self.longest, 1.0)) / 2
            self._arms.add(number, gain, 1.0)
            return
        profile = self._profile
        seconds = sum(outcome.seconds.values()) if profile is None else profile.outcome_seconds(outcome)
        if seconds > 0:
            self._arms.add(number, float(len(outcome.new_token_ids)), seconds)

    @override
    def reset(self) -> None:
        self._forget()
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
        self.check_entries(state, _ENTRIES)
        if state["reward"] != self.reward or len(state["controllers"]) != len(self.inner):
            raise ValueError(
                f"the state is of a RuleBandit over {len(state['controllers'])} controllers by {state['reward']}, but "
                f"this one is over {len(self.inner)} by {self.reward}"
            )
        self._arms.load(state["sums"], "RuleBandit")
        for one, own in zip(self.inner, state["controllers"], strict=True):
            one.load_state_dict(own)

    def _forget(self) -> None:
        self._arms.clear()
        self._played.clear()
