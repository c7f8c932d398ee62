"""The Q-learning table of action values for binned states, and the step summary that it learns from."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import exp, isfinite, prod
from typing import Any

import numpy as np

from specexp.controllers.costs import Costs
from specexp.core.outcome import Outcome

CONTINUE, STOP = 0, 1
ACTIONS = ("CONTINUE", "STOP")
MOST_ROWS = 2**20


class QTable:
    """The values of CONTINUE and STOP in every state, and the number of updates of each value.

    There is one block of rows for every combination of the extra signals' bins. A block's first row is the state before
    anything is drafted. Its other rows are all pairs of a cost bin and a confidence bin, sorted by cost first. A value
    on an edge belongs to the upper bin. The arguments are as in :class:`~specexp.controllers.QLearning`, with the edges
    for each extra signal by its name.

    Raises:
        ValueError: bin edges do not increase, or there are too many states.
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
        self.rows = self.block_size * prod(len(edges) + 1 for edges in self.signal_bins.values())
        if self.rows > MOST_ROWS:
            raise ValueError(f"the bins must have at most {MOST_ROWS} states together, got {self.rows}")
        self.clear()

    def clear(self) -> None:
        """Reset to the initial values."""
        self.values = [[self.continue_bias, 0.0] for _ in range(self.rows)]
        self.visits = [[0, 0] for _ in range(self.rows)]

    def block(self, signals: Sequence[float]) -> int:
        """Return the first row of the block for these signals: the state before anything is drafted."""
        index = 0
        for edges, value in zip(self.signal_bins.values(), signals, strict=True):
            index = index * (len(edges) + 1) + bisect_right(edges, value)
        return index * self.block_size

    def row(self, block: int, cost: float, confidence: float) -> int:
        """Return the row for a state in which something has been drafted."""
        row = bisect_right(self.cost_bins, cost) * self._width
        return block + 1 + row + bisect_right(self.confidence_bins, confidence)

    def best(self, row: int) -> int:
        """Return the better action, or CONTINUE on a tie."""
        continued, stopped = self.values[row]
        return CONTINUE if continued >= stopped else STOP

    def learn(self, row: int, action: int, target: float, alpha: float, averaged: bool) -> float:
        """Move a value toward a target, and return how much it changed. If ``averaged``, the first visits are averaged,
        which discards the initial value; as published (eq. 5), they are not.
        """
        values, visits = self.values[row], self.visits[row]
        visits[action] += 1
        # Q += alpha * (target - Q); 1 / visits makes the first values a plain mean
        rate = max(alpha, 1 / visits[action]) if averaged else alpha
        change = rate * (target - values[action])
        values[action] += change
        return abs(change)

    def bins(self) -> dict[str, Any]:
        """Return the actions and bin edges. Two tables can exchange values only if these are equal."""
        return {
            "actions": list(ACTIONS),
            "cost_bins": self.cost_bins,
            "confidence_bins": self.confidence_bins,
            "signal_bins": self.signal_bins,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return ``q`` and ``visits``, two ``[rows, 2]`` tensors."""
        import torch

        return {
            "q": torch.tensor(self.values, dtype=torch.float64),
            "visits": torch.tensor(self.visits, dtype=torch.int64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore ``q`` and ``visits``. Raises ``ValueError`` if bins or shapes differ or ``q`` is not finite."""
        for name, wanted in self.bins().items():
            if state["bins"].get(name) != wanted:
                raise ValueError(
                    f"the state of a QLearning must have {name} {wanted} as configured, got {state['bins'].get(name)}"
                )
        for name in ("q", "visits"):
            shape = tuple(getattr(state[name], "shape", ()))
            if shape != (self.rows, len(ACTIONS)):
                raise ValueError(
                    f"{name} of the Q-table must be [states, actions] {[self.rows, len(ACTIONS)]}, got {list(shape)}"
                )
        values: list[list[float]] = state["q"].tolist()
        if not all(isfinite(value) for pair in values for value in pair):
            raise ValueError("q of the Q-table must be finite")
        self.values = values
        self.visits = state["visits"].tolist()


def _edges(name: str, edges: Sequence[float]) -> list[float]:
    found = [float(edge) for edge in edges]
    if any(after <= before for before, after in pairwise(found)):
        raise ValueError(f"{name} must increase, got {found}")
    return found


@dataclass(slots=True)
class Decision:
    """A decision to continue or stop: its row in the table, the draft so far, and the action taken."""

    row: int
    depth: int
    nodes: int
    pass_tokens: tuple[int, ...]
    action: int


@dataclass(slots=True)
class Episode:
    """A step's decisions, its block of the table, whether it explores, and the draft's last observed depth."""

    block: int
    explores: bool
    points: list[Decision] = field(default_factory=list)
    depth: int = 0


class DraftSummary:
    """A step's draft, without grafted phrases, and its result."""

    def __init__(self, outcome: Outcome) -> None:
        tree = outcome.tree
        self._outcome = outcome
        self._path = tree.best_path() if tree.num_nodes else ()
        self._matches: list[int] | None = None
        self.pass_tokens = outcome.pass_tokens
        self.depth = len(self._path)  # of the most probable path
        grafted = tree.grafted
        self.graft_rows = 0 if grafted is None else int(grafted.sum())  # number of grafted nodes
        self.nodes = tree.num_nodes - self.graft_rows
        # number of accepted grafted nodes
        self.graft_gain = 0 if grafted is None else sum(bool(grafted[row]) for row in outcome.accepted)
        self.accepted = len(outcome.accepted) - self.graft_gain
        # length of the most probable path below the topmost anchor of a phrase; None without phrases
        self.reach: int | None = None
        if grafted is not None and self.graft_rows:
            parents = {int(parent) for parent in tree.shape.parents[grafted]}
            anchors = [self.depth - depth for depth, row in enumerate((0, *self._path)) if row in parents]
            self.reach = max(anchors, default=None)
        self.confidence = 1.0  # product of the confidences along the most probable path
        if tree.log_probs is not None:
            log_probs = tree.log_probs[list(self._path)].astype(np.float64)
            self.confidence = exp(min(float(np.nansum(log_probs)), 0.0))  # NaN: a node without a probability

    def useful_up_to(self, depth: int) -> int:
        """Return how many of the path's first ``depth`` tokens equal the target's."""
        if self._matches is None:
            answers, tokens = self._outcome.answers(), self._outcome.tree.tokens
            self._matches = [int(tokens[row] == answers[parent]) for parent, row in pairwise((0, *self._path))]
        return sum(self._matches[:depth])


_RECENT, _LONG = 0.1, 0.01  # weight of one step in a running mean
_FIRST = {
    "acceptance": 0.5,
    "cache_hits": 0.0,
    "cost_recent": 0.0,
    "cost_long": 0.0,
    "graft_reach": 0.0,
    "graft_gain": 0.0,
    "graft_rows": 0.0,
    "tokens": 1.0,
    "cost": 1.0,
    "change": 0.0,
}


class StepMeans:
    """Running means over steps, keyed by name. Costs are relative to a plain step."""

    def __init__(self, known: Mapping[str, float] = _FIRST) -> None:
        self._means = {name: float(known.get(name, first)) for name, first in _FIRST.items()}

    def __getitem__(self, name: str) -> float:
        return self._means[name]

    def state_dict(self) -> dict[str, float]:
        """Return the means, keyed by name."""
        return dict(self._means)

    @property
    def rate(self) -> float:
        """The mean number of tokens per unit of cost."""
        return self._means["tokens"] / self._means["cost"]

    @property
    def signals(self) -> dict[str, float]:
        """The current values of the extra signals, keyed by name."""
        means = self._means
        return {
            "acceptance": means["acceptance"],
            "cache_hits": means["cache_hits"],
            "cost_slope": means["cost_recent"] / means["cost_long"] if means["cost_long"] else 1.0,
        }

    def remember_step(self, new_tokens: int, cost: float) -> None:
        """Update the means of tokens and cost after a step."""
        self._move("tokens", new_tokens, _LONG)
        self._move("cost", cost, _LONG)

    def remember_change(self, change: float) -> None:
        """Update the running mean of how much the table's values change per step."""
        self._move("change", change, _RECENT)

    def remember_grafts(self, drafted: DraftSummary) -> None:
        """Update the means for grafted phrases after a step that drafted nodes."""
        if drafted.reach is not None:
            self._means["graft_reach"] = max(self._means["graft_reach"], drafted.reach)
        self._move("graft_rows", drafted.graft_rows, _RECENT)
        if drafted.accepted >= drafted.depth - self._means["graft_reach"]:
            self._move("graft_gain", drafted.graft_gain, _RECENT)

    def remember_signals(self, drafted: DraftSummary, costs: Costs) -> None:
        """Update the means from which :attr:`signals` are computed."""
        if drafted.depth == 0:
            return
        self._move("acceptance", min(drafted.accepted, drafted.depth) / drafted.depth, _RECENT)
        passes = len(drafted.pass_tokens)
        self._move("cache_hits", float(drafted.depth > passes or drafted.graft_gain > 0), _RECENT)
        if passes and costs.known:
            cost = costs.draft(drafted.pass_tokens) / drafted.depth
            for name, share in (("cost_recent", _RECENT), ("cost_long", _LONG)):
                self._move(name, cost, share if self._means[name] else 1.0)

    def _move(self, name: str, value: float, share: float) -> None:
        self._means[name] += share * (value - self._means[name])
