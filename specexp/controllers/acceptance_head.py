"""A small network that says how probably a draft is accepted, learned step by step; numpy alone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

FEATURES = 4
"""Log-probability of the path and of its last token, logarithm of its length, and how much was accepted lately."""
_SURE = 1e-4  # a draft's own probability is taken to be no nearer to 0 or 1
_RATE = 0.05


class AcceptanceHead:
    """The log-odds of a path are those of the draft's own probability, plus what the network has learned to add.

    So a new one says what the draft says. It learns by Adagrad, a step an update.

    Args:
        width: of its one hidden layer.
        rejection_weight: how much more a rejected path counts than an accepted one.

    Attributes:
        weights: ``[6 * width + 1]`` of all layers.
        squares: ``[6 * width + 1]`` sums of their squared gradients.
    """

    def __init__(self, width: int, rejection_weight: float) -> None:
        self.width = width
        self.rejection_weight = rejection_weight
        self.clear()

    def clear(self) -> None:
        """Forget what was learned."""
        size = (FEATURES + 2) * self.width + 1
        self.weights = np.zeros(size)
        first = np.random.default_rng(0).normal(0, FEATURES**-0.5, FEATURES * self.width)
        self.weights[: first.size] = first
        self.squares = np.zeros(size)

    def probability(self, features: Floats) -> Floats:
        """``[n]`` of ``[n, 4]`` features."""
        hidden = self._hidden(features)
        return 1 / (1 + np.exp(-self._log_odds(features, hidden)))

    def learn(self, features: Floats, accepted: NDArray[np.bool_]) -> None:
        """One update towards what became of paths.

        Args:
            features: ``[n, 4]`` of at least one.
            accepted: ``[n]`` whether all of each was accepted.
        """
        hidden = self._hidden(features)
        said = 1 / (1 + np.exp(-self._log_odds(features, hidden)))
        error = (said - accepted) * np.where(accepted, 1.0, self.rejection_weight) / accepted.size  # [n]
        _, _, outer = self._layers()
        inner = (error[:, np.newaxis] * outer) * (1 - hidden**2)  # [n, width]
        gradient = np.concatenate(
            ((inner.T @ features).ravel(), inner.sum(axis=0), hidden.T @ error, [error.sum()])
        )
        self.squares += gradient**2
        self.weights -= _RATE * gradient / (np.sqrt(self.squares) + 1e-8)

    def arrays(self) -> dict[str, Floats]:
        """What was learned, by name."""
        return {"weights": self.weights.copy(), "squares": self.squares.copy()}

    def load(self, arrays: Mapping[str, Any]) -> None:
        """Take :meth:`arrays`.

        Raises:
            ValueError: they are of a head of another width.
        """
        found = [np.asarray(arrays[name], dtype=np.float64) for name in ("weights", "squares")]
        for array in found:
            if array.shape != self.weights.shape:
                raise ValueError(
                    f"the saved head has arrays {list(array.shape)}, and one of width {self.width} "
                    f"{list(self.weights.shape)}: set width to its own"
                )
        self.weights, self.squares = found[0].copy(), found[1].copy()

    def _layers(self) -> tuple[Floats, Floats, Floats]:
        first = FEATURES * self.width
        inner = self.weights[:first].reshape(self.width, FEATURES)
        return inner, self.weights[first : first + self.width], self.weights[first + self.width : -1]

    def _hidden(self, features: Floats) -> Floats:
        inner, bias, _ = self._layers()
        activated: Floats = np.tanh(features @ inner.T + bias)
        return activated

    def _log_odds(self, features: Floats, hidden: Floats) -> Floats:
        own = np.clip(np.exp(np.minimum(features[:, 0], 0.0)), _SURE, 1 - _SURE)
        found: Floats = np.log(own) - np.log1p(-own) + hidden @ self._layers()[2] + self.weights[-1]
        return found
