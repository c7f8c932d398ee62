"""A confidence threshold that is fitted again after every step."""

from __future__ import annotations

from collections import deque
from math import exp, log
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from pydantic import Field
from typing_extensions import override

from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.outcome import Outcome

_LEAST_TOKENS = 6
_LEARNED = ("confidences", "matches", "threshold")


class AdaptiveConfidence(Controller):
    """Spends the next draft pass while the last token's confidence is at least a threshold, and fits the threshold to
    which confidences were accepted.

    As Hugging Face's assisted generation does (``assistant_confidence_threshold``): of every step the accepted drafts
    and the first rejected one are labelled, and the threshold becomes the point of their ROC curve with the least
    ``false positive rate + false_negative_weight * false negative rate``. Two differences: only the last ``window``
    tokens are remembered, where theirs are all of one ``generate``; and the threshold is at most the highest confidence
    seen, where theirs may become infinite if weighted otherwise.

    Args:
        initial: threshold to start with.
        false_negative_weight: what stopping before a token that would be accepted costs, against drafting on after one
            that is rejected; Hugging Face's is 3.
        max_depth: deepest node; None leaves the builder's own depth.
        window: tokens the fit remembers.
        state: ``carry`` keeps what was learned from prompt to prompt, ``cold`` starts every prompt anew.

    Example:
        >>> controller = AdaptiveConfidence(initial=0.4, max_depth=20)
    """

    needs_log_probs = True

    uses_seconds = False
    reads_answers = False

    def __init__(
        self,
        initial: Annotated[float, Field(gt=0, le=1)] = 0.4,
        false_negative_weight: Annotated[float, Field(gt=0)] = 3.0,
        max_depth: Annotated[int, Field(ge=0)] | None = None,
        window: Annotated[int, Field(ge=10)] = 1000,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        self.initial = initial
        self.false_negative_weight = false_negative_weight
        self.max_depth = max_depth
        self.window = window
        self.state = state
        self._plan = Plan(max_depth=max_depth)
        self.reset()

    @override
    def plan(self, context: Context) -> Plan:
        return self._plan

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        return state.depth == 0 or state.last_log_prob >= log(self.threshold)

    @override
    def observe(self, outcome: Outcome) -> None:
        log_probs = outcome.tree.log_probs
        if log_probs is None:
            return
        accepted = set(outcome.accepted)
        ended = len(outcome.new_token_ids) == len(accepted)  # what comes after was not decided about
        labelled = 0
        for row in outcome.tree.best_path():
            if row not in accepted and ended:
                break
            self._confidences.append(exp(float(log_probs[row])))
            self._matches.append(row in accepted)
            labelled += 1
            if row not in accepted:
                break
        if labelled and len(self._matches) >= _LEAST_TOKENS and 0 < sum(self._matches) < len(self._matches):
            self.threshold = best_threshold(self._confidences, self._matches, self.false_negative_weight)

    @override
    def reset(self) -> None:
        self.threshold = self.initial
        self._confidences: deque[float] = deque(maxlen=self.window)
        self._matches: deque[bool] = deque(maxlen=self.window)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {
            "threshold": self.threshold,
            "confidences": list(self._confidences),
            "matches": list(self._matches),
        }

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, _LEARNED)
        if len(state["confidences"]) != len(state["matches"]):
            raise ValueError(
                f"the state of an AdaptiveConfidence has {len(state['confidences'])} confidences and "
                f"{len(state['matches'])} matches; one match a confidence is needed"
            )
        self.threshold = float(state["threshold"])
        self._confidences = deque(map(float, state["confidences"]), maxlen=self.window)
        self._matches = deque(map(bool, state["matches"]), maxlen=self.window)


def best_threshold(confidences: ArrayLike, matches: ArrayLike, false_negative_weight: float) -> float:
    """The confidence at which ``false positive rate + weight * false negative rate`` is least; the highest of several.

    Args:
        confidences: ``[n]`` of drafted tokens.
        matches: ``[n]`` whether each was accepted, some of them and not all.
        false_negative_weight: weight of the rate of matching tokens below the threshold.
    """
    values, matched = np.asarray(confidences, dtype=np.float64), np.asarray(matches, dtype=np.bool_)
    order = np.argsort(-values, kind="stable")
    values, matched = values[order], matched[order]
    true = matched.cumsum()  # matches at or above each value
    false = np.arange(1, values.size + 1) - true
    costs = false / false[-1] + false_negative_weight * (1 - true / true[-1])
    costs[:-1][values[:-1] == values[1:]] = np.inf  # a threshold takes all tokens of one confidence, or none
    return max(float(values[costs.argmin()]), float(np.finfo(np.float64).tiny))
