"""SpecDec++: keeps drafting while a learned head expects the whole draft to be accepted (Huang et al. 2024)."""

from __future__ import annotations

from collections.abc import Mapping
from math import log, prod
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from specexp.base.checked import Reference
from specexp.core.context import Context
from specexp.core.contracts import Controller
from specexp.core.dialogue import DraftState, Plan
from specexp.core.outcome import Outcome

Floats = NDArray[Any]  # float64, of states float32

FEATURES = 4
"""Number of features: log-probabilities of path and last token, log of path length, and recent acceptance rate."""
_SURE = 1e-4  # clips probabilities before taking their log-odds


class AcceptanceHead:
    """Predicts whether a whole path is accepted, by adding a small network's output to the draft's own log-odds.

    In the loss, a rejected path has ``rejection_weight`` times the weight of an accepted one.
    """

    rate = 0.05  # Adagrad's learning rate

    def __init__(self, width: int, rejection_weight: float) -> None:
        self.width = width
        self.rejection_weight = rejection_weight
        self.clear()

    def clear(self) -> None:
        """Reset to the initial weights."""
        size = (FEATURES + 2) * self.width + 1
        self.weights = np.zeros(size)  # [6 * width + 1] parameters of all layers
        first = np.random.default_rng(0).normal(0, FEATURES**-0.5, FEATURES * self.width)
        self.weights[: first.size] = first
        self.squares = np.zeros(size)  # sums of their squared gradients, for Adagrad

    def probability(self, features: Floats) -> Floats:
        """Return acceptance probabilities ``[n]`` for paths with features ``[n, 4]``."""
        return self._forward(features)[1]

    def learn(self, features: Floats, accepted: NDArray[np.bool_]) -> None:
        """Take one training step on features ``[n, 4]`` (``n >= 1``) and flags ``[n]`` that mark accepted paths."""
        hidden, p = self._forward(features)
        # gradient of the weighted cross-entropy with respect to the log-odds
        error = (p - accepted) * np.where(accepted, 1.0, self.rejection_weight)  # [n]
        gradient = self._gradient(features, hidden, error.astype(p.dtype))
        self.squares += gradient**2  # Adagrad: each weight's rate falls with its squared gradients so far
        self.weights -= self.rate * gradient / (np.sqrt(self.squares) + 1e-8)

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Copy ``weights`` and ``squares`` from ``arrays``. Raises ``ValueError`` if the width differs."""
        weights, squares = (np.array(arrays[name]) for name in ("weights", "squares"))
        if not weights.shape == squares.shape == self.weights.shape and self.width:
            given = f"{list(weights.shape)} and {list(squares.shape)}: set width to that of the head"
            raise ValueError(f"the saved head must have arrays {list(self.weights.shape)}, got {given}")
        self.weights = weights
        self.squares = squares

    def _forward(self, features: Floats) -> tuple[Floats, Floats]:
        """Return hidden activations ``[n, width]`` and probabilities ``[n]``."""
        first = FEATURES * self.width
        inner, bias, outer = np.split(self.weights[:-1], (first, first + self.width))
        hidden = np.tanh(features @ inner.reshape(self.width, FEATURES).T + bias)
        own = np.clip(np.exp(np.minimum(features[:, 0], 0.0)), _SURE, 1 - _SURE)
        # the draft's own log-odds plus the network's: initially it trusts the draft
        log_odds = np.log(own) - np.log1p(-own) + hidden @ outer + self.weights[-1]
        return hidden, 1 / (1 + np.exp(-log_odds))

    def _gradient(self, features: Floats, hidden: Any, error: Floats) -> Floats:
        """Return the loss gradient with respect to all weights, given the one with respect to the log-odds ``[n]``."""
        outer = self.weights[(FEATURES + 1) * self.width : -1]
        error = error / error.size
        inner = (error[:, np.newaxis] * outer) * (1 - hidden**2)  # [n, width]; tanh' = 1 - tanh^2
        return np.concatenate(((inner.T @ features).ravel(), inner.sum(axis=0), hidden.T @ error, [error.sum()]))


class StateHead(AcceptanceHead):
    """Predicts from the hidden state at each token whether that token is accepted, given that all earlier ones are.

    This is the published residual network for states ``[n, d]``: layers ``x + SiLU(W x + b)``, then log-odds
    ``w x + b``. All weights start at zero.
    """

    def __init__(self, layers: int, rejection_weight: float) -> None:
        self.layers = layers
        super().__init__(0, rejection_weight)

    @override
    def clear(self) -> None:
        self.weights = self.squares = np.zeros(0)

    @override
    def _forward(self, features: Floats) -> tuple[Any, Floats]:
        import torch
        from torch.nn.functional import linear, silu

        d = features.shape[1]
        shape = self.layers, d, d + 1
        size, given = prod(shape) + d + 1, self.weights.size
        if not given:
            self.weights, self.squares = np.zeros((2, size), dtype=np.float32)
        elif given != size:
            raise ValueError(f"the saved head must have {size} weights, got {given}: set layers to its own")
        with torch.inference_mode(False), torch.enable_grad():
            weights = torch.from_numpy(self.weights).requires_grad_()
            x = torch.from_numpy(features)
            for layer in weights[: prod(shape)].view(shape):
                x = x + silu(linear(x, layer[:, :-1], layer[:, -1]))
            log_odds = x @ weights[-d - 1 : -1] + weights[-1]
        return (weights, log_odds), log_odds.detach().sigmoid().numpy()

    @override
    def _gradient(self, features: Floats, hidden: Any, error: Floats) -> Floats:
        weights, log_odds = hidden
        log_odds.backward(log_odds.new_tensor(error))
        gradient: Floats = weights.grad.numpy()
        return gradient


_RECENT = 0.1  # weight of one step in the running mean


class SpecDecPlusPlus(Controller):
    """Continues a draft while a learned head predicts full acceptance with a probability at or above a threshold.

    Such a threshold is the optimal policy if drafting is viewed as a Markov decision process (theorem 3.1). The
    published head uses the draft model's hidden states at all drafted tokens except the newest, and its probabilities
    are multiplied. The other head uses the probabilities of the path and of its last token, the path's length, and the
    recent acceptance rate. Both learn from every step, either while decoding or in ``specexp.fit``.

    Args:
        threshold: lowest probability at which drafting continues; one minus the paper's rejection bound.
        max_depth: maximum draft depth; None keeps the builder's limit.
        features: ``hidden`` selects the published head, a residual network on the draft's hidden states.
        layers: number of residual layers in the published head; the authors use 3.
        width: size of the other head's hidden layer.
        rejection_weight: weight of a rejected draft in the loss; the paper tries 1 to 12 and finds 6 best.
        learn: If False, do not update the head.
        state: ``carry`` keeps what was learned across prompts, ``cold`` discards it before every prompt.
        head: arrays of a saved head to start from; in a configuration, the path to an ``acceptance-head`` artifact.

    Raises:
        ValueError: ``head`` has a different width.
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
        features: Literal["probabilities", "hidden"] = "probabilities",
        layers: Annotated[int, Field(ge=0, le=16)] = 3,
    ) -> None:
        self.threshold = threshold
        self.learn = self.learns = learn
        self.state = state
        self._plan = Plan(max_depth=max_depth)
        self.reads_states = features == "hidden"
        kind, size = (StateHead, layers) if self.reads_states else (AcceptanceHead, width)
        self._head = kind(size, rejection_weight)
        self._initial = head
        self.reset()

    @override
    def plan(self, context: Context) -> Plan:
        return self._plan

    @override
    def keep_drafting(self, context: Context, state: DraftState) -> bool:
        states = state.states
        if self.reads_states and states is not None and states.size:  # of all tokens but the newest
            return float(self._head.probability(states).prod()) >= self.threshold
        if state.depth == 0 or self.reads_states:
            return True
        features = self._features([state.log_prob], [state.last_log_prob], [state.depth])
        return float(self._head.probability(features)[0]) >= self.threshold

    @override
    def observe(self, outcome: Outcome) -> None:
        log_probs = outcome.tree.log_probs
        path = outcome.tree.best_path() if outcome.tree.num_nodes else ()
        # the output ended: later nodes have no verdict
        if len(outcome.new_token_ids) == len(outcome.accepted):
            path = path[: len(outcome.accepted)]
        if not self.learn or log_probs is None or not path:
            return
        # a path is accepted only if all of its nodes are
        accepted = np.cumprod([row in outcome.accepted for row in path]).astype(np.bool_)
        if self.reads_states:
            states = outcome.draft_states
            # a token after a rejected one has no label
            known = 0 if states is None else min(len(states), len(path), int(accepted.sum()) + 1)
            if states is not None and known:
                self._head.learn(states[:known], accepted[:known])
            return
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
        weights, squares = self._head.weights.copy(), self._head.squares.copy()
        return {"weights": weights, "squares": squares, "recent": np.array([self._recent])}

    @override
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.check_entries(state, ("recent", "squares", "weights"))
        self._head.load(state)
        self._recent = float(np.asarray(state["recent"]).reshape(()))

    def _features(self, log_prob: Any, last: Any, depth: Any) -> Floats:
        """Return features ``[n, 4]`` of paths; probabilities are clipped below at 1e-3 (last token) and 1e-9 (path)."""
        least = log(1e-3)
        columns = (np.maximum(log_prob, 3 * least), np.maximum(last, least), np.log(depth))
        return np.stack((*columns, np.full(len(columns[0]), self._recent)), axis=1).astype(np.float64)
