"""A table of action values by binned state."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import isfinite
from typing import Any

CONTINUE, STOP = 0, 1
ACTIONS = ("CONTINUE", "STOP")
MOST_ROWS = 2**20


class QTable:
    """Values of CONTINUE and STOP, and how often each was learned, for every state.

    Row 0 of a block is the state before anything is drafted; the cells follow, cost first. There is one block for
    every combination of the extra signals' bins. A value on an edge belongs to the upper bin.

    Args:
        cost_bins: edges of draft passes spent.
        confidence_bins: edges of the product of confidences.
        signal_bins: edges of each extra signal, by name.
        continue_bias: initial value of CONTINUE; STOP starts with 0.

    Raises:
        ValueError: edges do not increase, or there are too many states.
    """

    def __init__(
        self,
        cost_bins: Sequence[float],
        confidence_bins: Sequence[float],
        signal_bins: Mapping[str, Sequence[float]],
        continue_bias: float,
    ) -> None:
        self.cost_bins = _edges("cost_bins", cost_bins)
        self.confidence_bins = _edges("confidence_bins", confidence_bins)
        self.signal_bins = {name: _edges(f"{name}_bins", edges) for name, edges in signal_bins.items()}
        self.continue_bias = continue_bias
        self._width = len(self.confidence_bins) + 1
        self.block_size = 1 + (len(self.cost_bins) + 1) * self._width
        blocks = 1
        for edges in self.signal_bins.values():
            blocks *= len(edges) + 1
        self.rows = blocks * self.block_size
        if self.rows > MOST_ROWS:
            raise ValueError(f"the bins have {self.rows} states together; at most {MOST_ROWS} are allowed")
        self.clear()

    def clear(self) -> None:
        """Return to the initial values."""
        self.values = [[self.continue_bias, 0.0] for _ in range(self.rows)]
        self.visits = [[0, 0] for _ in range(self.rows)]

    def block(self, signals: Sequence[float]) -> int:
        """Return the first row of the block of these signals, the state before anything is drafted."""
        index = 0
        for edges, value in zip(self.signal_bins.values(), signals, strict=True):
            index = index * (len(edges) + 1) + bisect_right(edges, value)
        return index * self.block_size

    def row(self, block: int, cost: float, confidence: float) -> int:
        """Return the row of a state with a draft."""
        cell = bisect_right(self.cost_bins, cost) * self._width + bisect_right(
            self.confidence_bins, confidence
        )
        return block + 1 + cell

    def best(self, row: int) -> int:
        """Return the better action; CONTINUE on a tie."""
        continued, stopped = self.values[row]
        return CONTINUE if continued >= stopped else STOP

    def learn(self, row: int, action: int, target: float, alpha: float) -> float:
        """Move a value towards a target, at first visits by their mean; return the size of the change."""
        values, visits = self.values[row], self.visits[row]
        visits[action] += 1
        change = max(alpha, 1 / visits[action]) * (target - values[action])
        values[action] += change
        return abs(change)

    def bins(self) -> dict[str, Any]:
        """Return actions and edges, which a table must share with another to take its values."""
        return {
            "actions": list(ACTIONS),
            "cost_bins": self.cost_bins,
            "confidence_bins": self.confidence_bins,
            "signal_bins": self.signal_bins,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return ``q`` and ``visits``, ``[rows, 2]`` tensors."""
        import torch

        return {
            "q": torch.tensor(self.values, dtype=torch.float64),
            "visits": torch.tensor(self.visits, dtype=torch.int64),
        }

    def load(self, q: Any, visits: Any) -> None:
        """Take values and visits, ``[rows, 2]``; raises ``ValueError`` for other bins or values that are not finite."""
        for name, array in (("q", q), ("visits", visits)):
            shape = tuple(getattr(array, "shape", ()))
            if shape != (self.rows, len(ACTIONS)):
                raise ValueError(
                    f"{name} of the Q-table is {list(shape)}; {[self.rows, len(ACTIONS)]} is expected "
                    "(states of these bins, actions CONTINUE and STOP)"
                )
        values = [[float(value) for value in pair] for pair in q.tolist()]
        if not all(isfinite(value) for pair in values for value in pair):
            raise ValueError("q of the Q-table holds values that are not finite")
        self.values = values
        self.visits = [[int(count) for count in pair] for pair in visits.tolist()]


def same_bins(own: Mapping[str, Any], other: Mapping[str, Any], where: str) -> None:
    """Raise ``ValueError`` with the first difference to a table of other bins or actions."""
    for name, wanted in own.items():
        found = other.get(name)
        if found != wanted:
            raise ValueError(f"{where} has {name} {found}, but {wanted} is configured")


def _edges(name: str, edges: Sequence[float]) -> list[float]:
    found = [float(edge) for edge in edges]
    for before, after in pairwise(found):
        if after <= before:
            raise ValueError(f"{name} is {found}: every edge must be greater than the one before it")
    return found
