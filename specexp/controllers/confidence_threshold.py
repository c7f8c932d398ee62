"""Draft while the draft is sure enough of the whole of it."""

from __future__ import annotations

from math import log
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.parts import Controller, DraftState, Plan


class ConfidenceThreshold(Controller):
    """Spends the next draft pass while the product of the confidences is at least a threshold.

    The product estimates how probably everything drafted so far is accepted (Post-use & Pre-cut, section 5.1), so a
    long draft of fairly sure tokens ends as early as a short one with a doubtful token. The token that brings the
    product below the threshold is still drafted: it is known by then.

    Args:
        threshold: least product of confidences to draft on; 1 drafts one token a step.
        max_depth: deepest node; None leaves the builder's own depth.

    Example:
        >>> controller = ConfidenceThreshold(0.3, max_depth=24)
    """

    needs_log_probs = True

    uses_seconds = False
    learns = False

    def __init__(
        self,
        threshold: Annotated[float, Field(gt=0, le=1)] = 0.4,
        max_depth: Annotated[int, Field(ge=0)] | None = None,
    ) -> None:
        self.threshold = threshold
        self.max_depth = max_depth
        self._plan = Plan(max_depth=max_depth)
        self._log_threshold = log(threshold)

    @override
    def plan(self, context: Context) -> Plan:
        return self._plan

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        return state.log_prob >= self._log_threshold
