"""A controller wrapper that decodes plainly while speculation does not pay."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import Plan
from specexp.core.latency import LatencyProfile, outcome_seconds
from specexp.core.outcome import Outcome
from specexp.core.wrappers import ControllerWrapper

_OFF = Plan(max_depth=0)
_PLAIN_TRIES = 4  # plain steps that are measured before the first decision


class SwitchOff(ControllerWrapper):
    """Plans as another controller does, but drafts nothing while speculation does not pay.

    Speculation pays if drafting steps give more tokens per second than plain steps, by at least ``margin``. Tokens and
    seconds are running sums over about ``window`` steps. Seconds come from the run's latency profile. Without a profile
    they are measured, and some plain steps are tried too. Every step without a draft counts as a plain step.

    While speculation is off, one step in ``probe_every`` drafts, in case the text has changed. While it is on and
    seconds are measured, one step in ``probe_every`` is plain. No draft pass runs in a plain step. When drafting
    resumes, the draft model is fed the tokens it missed.

    Args:
        controller: the controller that plans drafting steps.
        window: effective number of remembered drafting steps; half as many are made before the first decision.
        probe_every: number of steps between two probes.
        margin: least relative gain over plain decoding; it allows for costs outside a step's seconds, such as learning.
        learn: If False, use the stored statistics and never probe; the inner controller has its own flag.
        state: ``carry`` keeps the sums from prompt to prompt, ``cold`` starts every prompt anew; the inner controller
            has its own policy.
    """

    uses_seconds = True
    inner_key = "controller"
    own_entries = ("drafted", "plain", "since")
    _since_drafted: int
    _since_plain: int
    _prefix: int | None  # committed tokens, to model the seconds of a plain step

    def __init__(
        self,
        controller: Controller,
        window: Annotated[int, Field(ge=2)] = 32,
        probe_every: Annotated[int, Field(ge=2)] = 64,
        margin: Annotated[float, Field(ge=0)] = 0.02,
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        self.inner = (controller,)
        self.window = window
        self.probe_every = probe_every
        self.margin = margin
        self.learn = learn
        if learn:
            self.learns = True  # otherwise the inner controller's own value holds
        self.state = state
        self._profile: LatencyProfile | None = None
        self.forget()

    @property
    def pays(self) -> bool:
        """True if speculation is faster than plain decoding, or if too little is known."""
        drafted, plain = self._drafted, self._plain
        if not drafted[0] or not self._plain_known:
            return True
        profile = self._profile
        seconds = plain[2] / plain[1] if profile is None else profile.step_seconds(1, prefix=self._prefix)
        return drafted[1] / drafted[2] * seconds > 1 + self.margin

    @override
    def plan(self, context: Context) -> Plan:
        return self.inner[0].plan(context) if self._drafts() else _OFF

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile
        super().use_latency(profile)

    @override
    def observe(self, outcome: Outcome) -> None:
        super().observe(outcome)
        if not self.learn:
            return
        drafted = outcome.tree.num_nodes > 0 or outcome.draft_passes > 0
        self._since_drafted = 0 if drafted else self._since_drafted + 1
        self._since_plain = self._since_plain + 1 if drafted else 0
        seconds = outcome_seconds(outcome, self._profile)
        self._prefix = len(outcome.context)
        if seconds > 0:
            sums, keep = (self._drafted if drafted else self._plain), 1 - 1 / self.window
            for place, value in enumerate((1.0, float(len(outcome.new_token_ids)), seconds)):
                sums[place] = keep * sums[place] + value

    @override
    def forget(self) -> None:
        self._drafted = [0.0, 0.0, 0.0]  # discounted steps, tokens, seconds
        self._plain = [0.0, 0.0, 0.0]
        self._since_drafted = self._since_plain = 0
        self._prefix = None

    @override
    def state_dict(self) -> dict[str, Any]:
        since = [self._since_drafted, self._since_plain]
        return {
            "drafted": list(self._drafted),
            "plain": list(self._plain),
            "since": since,
            **super().state_dict(),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self._drafted = [float(value) for value in state["drafted"]]
        self._plain = [float(value) for value in state["plain"]]
        self._since_drafted, self._since_plain = (int(value) for value in state["since"])

    @property
    def _plain_known(self) -> bool:
        return self._profile is not None or self._plain[0] >= self._sum_of(_PLAIN_TRIES)

    def _drafts(self) -> bool:
        if not self.learn:
            return self.pays
        if self._drafted[0] < self._sum_of(self.window // 2):
            return True
        if not self._plain_known:
            return False
        if self.pays:
            return self._profile is not None or self._since_plain < self.probe_every
        return self._since_drafted >= self.probe_every

    def _sum_of(self, steps: int) -> float:
        """Return the discounted count after this many steps of one kind."""
        # 1 + k + k^2 + ... with k = 1 - 1 / window; minus a tolerance for rounding
        return self.window * (1 - (1 - 1 / self.window) ** steps) - 1e-9
