"""Thresholds on the draft's confidence, either fixed or refitted after every step."""

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


class ConfidenceThreshold(Controller):
    """Continues a draft while its confidence is at or above a threshold.

    With the rule ``product``, the product of all confidences estimates the probability that the whole draft is accepted
    (Post-use & Pre-cut, section 5.1). A long draft of fairly confident tokens then ends as early as a short one with an
    uncertain token. With the rule ``token``, only the last token's confidence counts, as in Hugging Face
    (``assistant_confidence_threshold``) and llama.cpp (``p-min``). A draft of any length then continues until a token
    is uncertain. The token that falls below the threshold is still drafted, since its confidence is known only after
    its pass.

    Args:
        threshold: lowest confidence at which drafting continues; 1 drafts one token per step.
        max_depth: maximum draft depth; None keeps the builder's limit.
        rule: confidence to compare with the threshold: the ``product`` along the path, or that of the last ``token``.
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
        return (state.log_prob if self.rule == "product" else state.last_log_prob) >= self._log_threshold


_LEAST_TOKENS = 6
_FALSE_NEGATIVE_WEIGHT = 3  # as in Hugging Face
_WINDOW = 1000  # recent tokens that the threshold is fitted to


class AdaptiveConfidence(ConfidenceThreshold):
    """Continues a draft while the last token's confidence is at or above a threshold that is refitted every step.

    This is the rule of Hugging Face's assisted generation (``assistant_confidence_threshold``). Each step adds its
    accepted tokens and the first rejected one to the data. The threshold becomes the point on the ROC curve with the
    lowest ``false positive rate + 3 * false negative rate``. There are two differences: only the last 1000 tokens are
    kept, and the threshold never exceeds the highest confidence, whereas Hugging Face's can become infinite.

    Args:
        max_depth: maximum draft depth; None keeps the builder's limit.
        state: ``carry`` keeps what was learned across prompts, ``cold`` discards it before every prompt.
    """

    learns = True
    reads_answers = False

    def __init__(
        self,
        initial: Annotated[float, Field(gt=0, le=1)] = 0.4,
        max_depth: Annotated[int, Field(ge=0)] | None = None,
        state: Literal["carry", "cold"] = "carry",
    ) -> None:
        super().__init__(initial, max_depth, "token")
        self.initial = initial
        self.state = state
        self.reset()

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        return state.depth == 0 or state.last_log_prob >= log(self.threshold)

    @override
    def observe(self, outcome: Outcome) -> None:
        log_probs = outcome.tree.log_probs
        if log_probs is None:
            return
        accepted = set(outcome.accepted)
        ended = len(outcome.new_token_ids) == len(accepted)  # the output ended: later nodes have no verdict
        path = outcome.tree.best_path()
        reached = sum(row in accepted for row in path)
        labeled = path[: reached if ended else reached + 1]  # the accepted ones and the first rejected one
        self._confidences.extend(exp(float(log_probs[row])) for row in labeled)
        self._matches.extend(row in accepted for row in labeled)
        if labeled and len(self._matches) >= _LEAST_TOKENS and 0 < sum(self._matches) < len(self._matches):
            self.threshold = best_threshold(self._confidences, self._matches)

    @override
    def reset(self) -> None:
        self.threshold = self.initial
        self._confidences: deque[float] = deque(maxlen=_WINDOW)
        self._matches: deque[bool] = deque(maxlen=_WINDOW)

    @override
    def state_dict(self) -> dict[str, Any]:
        return {"threshold": self.threshold, "confidences": [*self._confidences], "matches": [*self._matches]}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("confidences", "matches", "threshold"))
        if len(state["confidences"]) != len(state["matches"]):
            raise ValueError(
                f"the state of an AdaptiveConfidence must have one match per confidence, got "
                f"{len(state['confidences'])} confidences and {len(state['matches'])} matches"
            )
        self.threshold = float(state["threshold"])
        self._confidences = deque(map(float, state["confidences"]), maxlen=_WINDOW)
        self._matches = deque(map(bool, state["matches"]), maxlen=_WINDOW)


def best_threshold(confidences: ArrayLike, matches: ArrayLike) -> float:
    """Return the highest confidence that minimizes ``false positive rate + 3 * false negative rate``.

    Args:
        confidences: probabilities ``[n]`` that the draft assigned to the drafted tokens.
        matches: flags ``[n]`` that mark accepted tokens; at least one token must be accepted and one rejected.
    """
    values = np.asarray(confidences, dtype=np.float64)
    matched = np.asarray(matches, dtype=np.bool_)
    order = np.argsort(-values, kind="stable")
    values, matched = values[order], matched[order]
    true = matched.cumsum()  # matches at or above each value
    false = np.arange(1, values.size + 1) - true
    # false positive rate + 3 * false negative rate, with the threshold at each value
    costs = false / false[-1] + _FALSE_NEGATIVE_WEIGHT * (1 - true / true[-1])
    costs[:-1][values[:-1] == values[1:]] = np.inf  # a threshold cannot separate equal confidences
    return max(float(values[costs.argmin()]), float(np.finfo(np.float64).tiny))
