"""A bandit over draft lengths, node budgets or builders: it tries them, and settles on the fastest."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.controllers.ratio_arms import Policy, RatioArms
from specexp.core.context import Context, PerSequence
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile
from specexp.core.outcome import Outcome


class Bandit(Controller):
    """Chooses one of some values at every step, by the goodput each has given so far.

    Goodput, tokens per second, is a ratio: what decodes a text fastest is the value with the best ratio of sums, tokens
    over seconds, not the best mean of ratios (:class:`~specexp.controllers.ratio_arms.RatioArms` says what is played
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
        """The values, and of each its discounted steps, tokens, seconds, their squares and their product."""
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
