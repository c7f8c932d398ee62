"""Wraps a controller: plain decoding where speculation does not pay."""

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
    """Plans as another controller does, but drafts nothing while that is not worth its time.

    Speculation pays when tokens over seconds of the steps that drafted, running sums over about ``window`` of them, are
    above those of plain steps by ``margin``. Seconds are modelled where the run has a latency profile; else they are
    measured, and plain steps are tried too. A step that drafts nothing, for any reason, counts as a plain one.

    While speculation is off, one step in ``probe_every`` drafts, in case the text has changed; while it is on and
    seconds are measured, one in ``probe_every`` is plain. No draft pass runs in a plain step; when drafting resumes,
    the draft model is fed the tokens it missed.

    Args:
        controller: plans the steps that draft.
        window: drafting steps that are remembered; half as many are tried before the first decision.
        probe_every: steps between two probes.
        margin: least relative gain over plain decoding; it covers costs outside a step's clock, such as learning.
        learn: If False, use the stored statistics and never probe; the inner controller has its own flag.
        state: ``carry`` keeps the sums from prompt to prompt, ``cold`` starts every prompt anew; the inner controller
            has its own policy.

    Raises:
        ValueError: ``controller`` is an Oracle.

    Example:
        >>> controller = SwitchOff(Fixed(max_depth=8), margin=0.05)  # doctest: +SKIP
    """

    uses_seconds = True

    def __init__(
        self,
        controller: Controller,
        window: Annotated[int, Field(ge=2)] = 32,
        probe_every: Annotated[int, Field(ge=2)] = 64,
        margin: Annotated[float, Field(ge=0)] = 0.02,
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        if controller.needs_foresight:
            raise ValueError(
                f"SwitchOff was given an {type(controller).__name__}, which switches off by itself: leave the "
                "wrapper out"
            )
        self.inner = (controller,)
        self.window = window
        self.probe_every = probe_every
        self.margin = margin
        self.learn = learn
        self.state = state
        self._profile: LatencyProfile | None = None
        self._since_drafted = self._since_plain = 0
        self._prefix: int | None = None  # committed tokens, for the seconds of a plain step
        self._forget()

    @property
    @override
    def learns(self) -> bool:  # type: ignore[override]
        return self.learn or self.controller.learns

    @property
    def controller(self) -> Controller:
        """The controller that plans the steps that draft."""
        return self.inner[0]

    @property
    def pays(self) -> bool:
        """Whether speculation is faster than plain decoding, as far as is known."""
        drafted, plain = self._drafted, self._plain
        if not drafted[0] or not self._plain_known:
            return True
        profile = self._profile
        seconds = plain[2] / plain[1] if profile is None else profile.step_seconds(1, prefix=self._prefix)
        return drafted[1] / drafted[2] * seconds > 1 + self.margin

    @override
    def plan(self, context: Context) -> Plan:
        return self.controller.plan(context) if self._drafts() else _OFF

    @override
    def use_latency(self, profile: LatencyProfile | None) -> None:
        self._profile = profile
        super().use_latency(profile)

    @override
    def begin(self, context: Context, prefill: Outcome | None) -> None:
        if self.state == "cold" and not context.continued:
            self._forget()
        super().begin(context, prefill)

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
    def reset(self) -> None:
        self._forget()
        super().reset()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "drafted": list(self._drafted),
            "plain": list(self._plain),
            "since": [self._since_drafted, self._since_plain],
            "controller": self.controller.state_dict(),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("controller", "drafted", "plain", "since"))
        self._drafted = [float(value) for value in state["drafted"]]
        self._plain = [float(value) for value in state["plain"]]
        self._since_drafted, self._since_plain = (int(value) for value in state["since"])
        self.controller.load_state_dict(state["controller"])

    def _forget(self) -> None:
        self._drafted = [0.0, 0.0, 0.0]  # discounted steps, tokens, seconds
        self._plain = [0.0, 0.0, 0.0]
        self._since_drafted = self._since_plain = 0
        self._prefix = None

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
        return self.window * (1 - (1 - 1 / self.window) ** steps) - 1e-9
