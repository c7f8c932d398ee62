"""Decoding steps with the part of their time that is spent in passes, and in drafting."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from specexp.profile.measure import StepTiming, TimedSteps

if TYPE_CHECKING:
    from specexp.bench.arm import LearningArm
    from specexp.core.outcome import Outcome


@dataclass(frozen=True)
class SplitTiming(StepTiming):
    """The size of a step and the parts of its time."""

    # part of `seconds` spent in passes of both models; on a GPU, a draft pass counts until the host continues
    pass_seconds: float
    draft_seconds: float  # part of `seconds` spent in drafter and builder, including draft passes


class SplitSteps(TimedSteps):
    """Times an arm's steps, and the passes of its draft model by replacing them with timed versions."""

    def __init__(self, arm: LearningArm) -> None:
        super().__init__(arm)
        self._in_draft = 0.0
        drafter = arm.parts.drafter
        for model in drafter.models if drafter else ():
            for name in ("grow", "draft_tree"):
                setattr(model, name, self._timed(getattr(model, name)))

    @override
    def timing(self, outcome: Outcome, seconds: float) -> SplitTiming:
        in_draft, self._in_draft = self._in_draft, 0.0
        step, phases = super().timing(outcome, seconds), outcome.seconds
        return SplitTiming(
            **vars(step),
            pass_seconds=phases["target"] + in_draft,
            draft_seconds=phases["draft"] + phases["build"],
        )

    def _timed(self, method: Callable[..., Any]) -> Callable[..., Any]:
        """Return a method that adds its duration to the current step."""

        def timed(*arguments: Any, **named: Any) -> Any:
            started = perf_counter()
            try:
                return method(*arguments, **named)
            finally:
                self._in_draft += perf_counter() - started

        return timed
