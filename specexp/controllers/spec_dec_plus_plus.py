"""Draft while a learned head takes all of it to be accepted (SpecDec++, Huang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log
from typing import Annotated, Any, Literal

import numpy as np
from pydantic import Field
from typing_extensions import override

from specexp.controllers.acceptance_head import AcceptanceHead, Floats
from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.outcome import Outcome
from specexp.core.references import Reference

_RECENT = 0.1  # how much of the running mean a step replaces
_ENTRIES = ("recent", "squares", "weights")


class SpecDecPlusPlus(Controller):
    """Spends the next draft pass while the head's probability that all drafts so far are accepted is high enough.

    Of the Markov decision process of drafting on or not the best policy is such a threshold (theorem 3.1). The
    published head reads the draft model's hidden states; this one reads what a controller is told: the probabilities of
    the path and of its last token, its length, and how much was accepted lately. It learns from every step, on prompts
    of its own by ``specexp.fit``, or while decoding.

    Args:
        threshold: least probability to draft on; one less the published bound on a rejection.
        max_depth: deepest node; None leaves the builder's own depth.
        width: of the head's hidden layer.
        rejection_weight: how much more a rejected draft counts in learning than an accepted one; the paper tries 1 to
            12.
        learn: false: decides by what was learned.
        state: ``carry`` keeps what was learned from prompt to prompt, ``cold`` starts every prompt anew.
        head: arrays of an :class:`~specexp.controllers.acceptance_head.AcceptanceHead` to start from; in a
            configuration the path of an ``acceptance-head`` artifact.

    Raises:
        ValueError: ``head`` is of another width.

    Example:
        >>> controller = SpecDecPlusPlus(0.4, max_depth=20)
    """

    needs_log_probs = True
    uses_seconds = False

    def __init__(
        self,
        threshold: Annotated[float, Field(gt=0, lt=1)] = 0.3,
        max_depth: Annotated[int, Field(ge=0)] | None = None,
        width: Annotated[int, Field(ge=1, le=1024)] = 16,
        rejection_weight: Annotated[float, Field(gt=0)] = 1.0,
        learn: bool = True,
        state: Literal["carry", "cold"] = "carry",
        head: Annotated[Mapping[str, Any], Reference("acceptance-head")] | None = None,
    ) -> None:
        self.threshold = threshold
        self.learn = self.learns = learn
        self.state = state
        self._plan = Plan(max_depth=max_depth)
        self._head = AcceptanceHead(width, rejection_weight)
        self._initial = head
        self.reset()

    @override
    def plan(self, context: Context) -> Plan:
        return self._plan

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        """Whether all of it is accepted probably enough; before anything is drafted it is."""
        if state.depth == 0:
            return True
        features = self._features([state.log_prob], [state.last_log_prob], [state.depth])
        return float(self._head.probability(features)[0]) >= self.threshold

    @override
    def observe(self, outcome: Outcome) -> None:
        """Learn from every beginning of the most probable path; of what stands behind an output's end, nothing."""
        log_probs = outcome.tree.log_probs
        path = outcome.tree.best_path() if outcome.tree.num_nodes else ()
        if len(outcome.new_token_ids) == len(outcome.accepted):
            path = path[: len(outcome.accepted)]
        if not self.learn or log_probs is None or not path:
            return
        accepted = np.cumprod([row in outcome.accepted for row in path]).astype(np.bool_)
        last = np.minimum(log_probs[list(path)].astype(np.float64), 0.0)
        self._head.learn(self._features(last.cumsum(), last, np.arange(1, last.size + 1)), accepted)
        self._recent += _RECENT * (accepted.mean() - self._recent)

    @override
    def reset(self) -> None:
        self._recent = 0.5
        self._head.clear()
        if self._initial is not None:
            self.load_state_dict(dict(self._initial))

    @override
    def state_dict(self) -> dict[str, Any]:
        """The head's arrays, and the running mean of what was accepted of a draft."""
        return {**self._head.arrays(), "recent": np.array([self._recent])}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, _ENTRIES)
        self._head.load(state)
        self._recent = float(np.asarray(state["recent"]).reshape(()))

    def _features(self, log_prob: Any, last: Any, depth: Any) -> Floats:
        """``[n, 4]`` of paths; log-probabilities below one in a thousand are as good as that."""
        least = log(1e-3)
        columns = (np.maximum(log_prob, 3 * least), np.maximum(last, least), np.log(depth))
        recent = np.full(len(columns[0]), self._recent)
        features: Floats = np.stack((*columns, recent), axis=1).astype(np.float64)
        return features
