"""One step as Q-learning sees it: its decisions, and what came of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import exp

from specexp.core.outcome import Outcome


@dataclass(slots=True)
class Decision:
    """A decision: its row of the table, what was drafted by then, and the action taken."""

    row: int
    depth: int
    nodes: int
    pass_tokens: tuple[int, ...]
    action: int


@dataclass(slots=True)
class Episode:
    """The decisions of a step, the block of the table that its signals chose, and whether it explores."""

    block: int
    explores: bool
    points: list[Decision] = field(default_factory=list)


class DraftSummary:
    """What a step drafted, apart from its grafts, and what came of it.

    Attributes:
        pass_tokens: tokens fed in each draft pass.
        depth: length of the most probable path.
        nodes: drafted ones.
        confidence: product of the confidences along the most probable path.
        accepted: drafted nodes that were accepted.
        reach: how many tokens above the end of the path phrases hang; None without phrases.
        graft_gain: grafted nodes that were accepted.
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
        """Tokens of the path, at most ``depth`` deep, that equal the target's answer there."""
        if self._matches is None:
            answers, tokens = self._outcome.answers(), self._outcome.tree.tokens
            above = (0, *self._path)
            self._matches = [
                int(tokens[row] == answers[parent]) for parent, row in zip(above, self._path, strict=False)
            ]
        return sum(self._matches[:depth])


def _known(log_prob: float) -> float:
    return log_prob if log_prob == log_prob else 0.0
