"""Draft while the draft is sure enough, of the whole of it or of its last token."""

from __future__ import annotations

from math import log
from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan


class ConfidenceThreshold(Controller):
    """Spends the next draft pass while a confidence is at least a threshold.

    Two rules say which. The ``product`` of the confidences estimates how probably everything drafted so far is accepted
    (Post-use & Pre-cut, section 5.1), so a long draft of fairly sure tokens ends as early as a short one with a
    doubtful token. The last ``token``'s own confidence is what other engines call a confidence threshold (Hugging
    Face's ``assistant_confidence_threshold``, llama.cpp's ``p-min``): a draft goes on, however long it is, until a
    token is doubtful. The token that falls below is still drafted: it is known by then.

    Args:
        threshold: least confidence to draft on; 1 drafts one token a step.
        max_depth: deepest node; None leaves the builder's own depth.
        rule: whether the ``product`` of the confidences must reach it, or the last ``token``'s own.

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
        rule: Literal["product", "token"] = "product",
    ) -> None:
        self.threshold = threshold
        self.max_depth = max_depth
        self.rule = rule
        self._plan = Plan(max_depth=max_depth)
        self._log_threshold = log(threshold)

    @override
    def plan(self, context: Context) -> Plan:
        return self._plan

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        confidence = state.log_prob if self.rule == "product" else state.last_log_prob
        return confidence >= self._log_threshold
