"""A step as Q-learning has it: its decisions and their results."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import exp

from specexp.controllers.costs import Costs
from specexp.core.outcome import Outcome


@dataclass(slots=True)
class Decision:
    """A decision: its row of the table, the draft so far, and the action taken."""

    row: int
    depth: int
    nodes: int
    pass_tokens: tuple[int, ...]
    action: int


@dataclass(slots=True)
class Episode:
    """The decisions of a step, its block of the table, and whether it explores."""

    block: int
    explores: bool
    points: list[Decision] = field(default_factory=list)


class DraftSummary:
    """The draft of a step without its grafts, and its result.

    Attributes:
        pass_tokens: tokens fed in each draft pass.
        depth: length of the most probable path.
        nodes: drafted nodes.
        confidence: product of the confidences along the most probable path.
        accepted: accepted drafted nodes.
        reach: tokens from the highest anchor of a phrase to the end of the path; None without phrases.
        graft_gain: accepted grafted nodes.
        graft_rows: grafted nodes.
    """

    def __init__(self, outcome: Outcome) -> None:
        tree = outcome.tree
        self._outcome = outcome
        self._path = tree.best_path() if tree.num_nodes else ()
        self._matches: list[int] | None = None
        self.pass_tokens = outcome.pass_tokens
        self.depth = len(self._path)
        grafted = tree.grafted
        self.graft_rows = 0 if grafted is None else int(grafted.sum())
        self.nodes = tree.num_nodes - self.graft_rows
        self.graft_gain = 0 if grafted is None else sum(bool(grafted[row]) for row in outcome.accepted)
        self.accepted = len(outcome.accepted) - self.graft_gain
        self.reach: int | None = None
        if grafted is not None and self.graft_rows:
            parents = {int(parent) for parent in tree.shape.parents[grafted]}
            anchors = [self.depth - depth for depth, row in enumerate((0, *self._path)) if row in parents]
            self.reach = max(anchors, default=None)
        self.confidence = 1.0
        if tree.log_probs is not None:
            self.confidence = exp(min(sum(_known(float(tree.log_probs[row])) for row in self._path), 0.0))

    def useful_up_to(self, depth: int) -> int:
        """Return the number of tokens among the path's first ``depth`` that equal the target's."""
        if self._matches is None:
            answers, tokens = self._outcome.answers(), self._outcome.tree.tokens
            above = (0, *self._path)
            self._matches = [
                int(tokens[row] == answers[parent]) for parent, row in zip(above, self._path, strict=False)
            ]
        return sum(self._matches[:depth])


def _known(log_prob: float) -> float:
    return log_prob if log_prob == log_prob else 0.0


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
    """Running means by name, costs in plain steps."""

    def __init__(self, known: Mapping[str, float] = _FIRST) -> None:
        self._means = {name: float(known.get(name, first)) for name, first in _FIRST.items()}

    def __getitem__(self, name: str) -> float:
        return self._means[name]

    def state_dict(self) -> dict[str, float]:
        """Return the means by name."""
        return dict(self._means)

    @property
    def rate(self) -> float:
        """Tokens per cost."""
        return self._means["tokens"] / self._means["cost"]

    @property
    def signals(self) -> dict[str, float]:
        """Extra signals of a state."""
        means = self._means
        return {
            "acceptance": means["acceptance"],
            "cache_hits": means["cache_hits"],
            "cost_slope": means["cost_recent"] / means["cost_long"] if means["cost_long"] else 1.0,
        }

    def remember_step(self, new_tokens: int, cost: float) -> None:
        """Add the tokens and the cost of a step."""
        self._move("tokens", new_tokens, _LONG)
        self._move("cost", cost, _LONG)

    def remember_grafts(self, drafted: DraftSummary) -> None:
        """Add the tokens that phrases added below a draft."""
        if drafted.reach is not None:
            self._means["graft_reach"] = max(self._means["graft_reach"], drafted.reach)
        self._move("graft_rows", drafted.graft_rows, _RECENT)
        if drafted.accepted >= drafted.depth - self._means["graft_reach"]:
            self._move("graft_gain", drafted.graft_gain, _RECENT)

    def remember_change(self, change: float) -> None:
        """Add the change of the table's values in a step."""
        self._move("change", change, _RECENT)

    def remember_signals(self, drafted: DraftSummary, costs: Costs) -> None:
        """Update the means behind :attr:`signals`."""
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
