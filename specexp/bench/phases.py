"""Where the time of a decoding step goes; the phases add up to the step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specexp.bench.clock import clock_of
from specexp.bench.record import MEASURED, PromptRecord


@dataclass(frozen=True)
class Breakdown:
    """Mean time of a step of one arm, by phase.

    Attributes:
        arm: name.
        steps: Steps it is the mean of.
        step_seconds: Mean seconds of a step.
        shares: Share of each phase, in order; they add up to 1.
        draft_passes: Forward passes of a draft model a step.
        clock: Clock of the seconds; modelled ones divide into passes, with all the rest of a step under ``update``.
    """

    arm: str
    steps: float
    step_seconds: float
    shares: dict[str, float]
    draft_passes: float
    clock: str = MEASURED

    @property
    def outside_forward(self) -> float:
        """Share of the time outside the models' forward passes: of the target, and of a draft model if there
        is one.

        Where a drafter has a model, all of its answering time counts as forward passes.
        """
        forward = self.shares.get("target", 0.0) + (
            self.shares.get("draft", 0.0) if self.draft_passes else 0.0
        )
        return 1.0 - forward


def breakdown(records: Iterable[PromptRecord], arm: str) -> Breakdown | None:
    """The breakdown of an arm's steps, or None where its time is not split (Hugging Face's loops).

    Args:
        records: Records of a run.
        arm: which.
    """
    own = [record for record in records if record.arm == arm and not record.error and record.seconds]
    steps = sum(record.steps for record in own)
    total = sum(sum(record.seconds.values()) for record in own)
    if not steps or not total:
        return None
    phases = list(dict.fromkeys(phase for record in own for phase in record.seconds))
    shares = {phase: sum(record.seconds.get(phase, 0.0) for record in own) / total for phase in phases}
    passes = sum(record.draft_passes for record in own) / steps
    return Breakdown(arm, steps, total / steps, shares, passes, clock_of(own))
