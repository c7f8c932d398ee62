"""Running means over steps: what the states and rewards of a Q-table know of the steps before."""

from __future__ import annotations

from collections.abc import Mapping

from specexp.controllers.costs import Costs
from specexp.controllers.episode import DraftSummary

_RECENT, _LONG = 0.1, 0.01  # how much of a running mean one step replaces
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
    """Running means by name, costs in plain steps.

    Args:
        known: their values; those that it does not have are as before the first step.
    """

    def __init__(self, known: Mapping[str, float] = _FIRST) -> None:
        self._means = {name: float(known.get(name, first)) for name, first in _FIRST.items()}

    def __getitem__(self, name: str) -> float:
        return self._means[name]

    def state_dict(self) -> dict[str, float]:
        """A copy of all, by name."""
        return dict(self._means)

    @property
    def rate(self) -> float:
        """Tokens per cost."""
        return self._means["tokens"] / self._means["cost"]

    @property
    def signals(self) -> dict[str, float]:
        """What a state may know, by signal."""
        means = self._means
        return {
            "acceptance": means["acceptance"],
            "cache_hits": means["cache_hits"],
            "cost_slope": means["cost_recent"] / means["cost_long"] if means["cost_long"] else 1.0,
        }

    def remember_step(self, new_tokens: int, cost: float) -> None:
        """What a step gave and took."""
        self._move("tokens", new_tokens, _LONG)
        self._move("cost", cost, _LONG)

    def remember_grafts(self, drafted: DraftSummary) -> None:
        """What phrases below a draft added."""
        if drafted.reach is not None:
            self._means["graft_reach"] = max(self._means["graft_reach"], drafted.reach)
        self._move("graft_rows", drafted.graft_rows, _RECENT)
        if drafted.accepted >= drafted.depth - self._means["graft_reach"]:
            self._move("graft_gain", drafted.graft_gain, _RECENT)

    def remember_change(self, change: float) -> None:
        """How far a step moved the table's values."""
        self._move("change", change, _RECENT)

    def remember_signals(self, drafted: DraftSummary, costs: Costs) -> None:
        """What the signals of the next step are made of."""
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
