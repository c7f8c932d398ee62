"""Messages between parts: requests of a builder, candidates of a drafter, plans of a controller, and verdicts."""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import dataclass
from math import inf
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import NodeKind, RankPath, TokenTree


@dataclass(frozen=True, slots=True)
class Request:
    """A builder's request for ``k`` candidates after each of these rows of the tree so far.

    During one build a row keeps its number, its parent and, once filled, its token.

    Attributes:
        tokens: ``[m]`` token ids of the tree so far, the root in row 0; negative where not yet filled.
        parents: ``[m]`` row of each row's parent, ``-1`` for the root.
        ranks: ``[m]`` rank of each row among its parent's candidates, ``-1`` for the root.
        rows: ``[f]`` the frontier: filled rows whose continuations are requested.
        k: candidates per frontier row.
        kind: whether candidates are the best ones or drawn. A longer answer begins with the shorter one.
        enough: ``[f]`` probability mass after which a row needs no more candidates; None requests all ``k``. A drafter
            that draws may leave the rest of a row, or of all rows, out.
        length: tokens of a candidate; above 1 the request is for phrases, which only some drafters have.
        log_probs: ``[m]`` draft log-probability of each row given its parent, 0 for the root; None without any.
    """

    tokens: NDArray[np.int64]
    parents: NDArray[np.int64]
    ranks: NDArray[np.int64]
    rows: NDArray[np.int64]
    k: int
    kind: NodeKind = NodeKind.POINT_MASS
    enough: NDArray[np.float64] | None = None
    length: int = 1
    log_probs: NDArray[np.float32] | None = None

    def depths(self) -> list[int]:
        """Return the depth of each of the ``f`` frontier rows; 0 for the root."""
        parents = self.parents.tolist()  # a walk in Python: for trees of this size numpy's calls cost more
        depths = []
        for row in self.rows.tolist():
            depth = 0
            while row > 0:
                row, depth = parents[row], depth + 1
            depths.append(depth)
        return depths

    def best_path_log_probs(self) -> tuple[float, float]:
        """Return the log-probability of the most probable frontier path and of its last token, or zeros."""
        if self.log_probs is None:
            return 0.0, 0.0
        best, last = -inf, 0.0
        log_probs, parents = self.log_probs.tolist(), self.parents.tolist()
        for row in self.rows.tolist():
            total, node = 0.0, row
            while node > 0:
                total += log_probs[node]
                node = parents[node]
            if total > best:
                best, last = total, log_probs[row]
        return best, last

    def rank_path(self, row: int) -> RankPath:
        """Ranks from depth 1 down to ``row``; empty for the root."""
        return self._along(self.ranks, row)

    def path_tokens(self, row: int) -> tuple[int, ...]:
        """Tokens from depth 1 down to ``row``; empty for the root."""
        return self._along(self.tokens, row)

    def _along(self, values: NDArray[np.int64], row: int) -> tuple[int, ...]:
        path: list[int] = []
        while row > 0:
            path.append(int(values[row]))
            row = int(self.parents[row])
        return tuple(reversed(path))


@dataclass(frozen=True, slots=True)
class Candidates:
    """A drafter's answer to a :class:`Request`.

    Attributes:
        tokens: ``[f, k]`` (or fewer, see :attr:`Request.enough`) token ids, best first or in the order drawn, then
            ``NO_CANDIDATE``; distinct unless drawn with replacement. Phrases: ``[f, k, length]``, padded likewise.
        log_probs: ``[f, k]`` draft log-probabilities given the frontier row, of drawn tokens before any was taken out;
            None without any.
        q: ``[f, V]`` draft distribution of each frontier row, where tokens were drawn.
        pass_tokens: tokens fed in each forward pass of a draft model for this answer.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32] | None = None
    q: NDArray[np.float32] | None = None
    pass_tokens: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits of one step; None leaves the builder's own.

    Attributes:
        max_nodes: most nodes to draft.
        max_depth: greatest depth; 0 switches speculation off for the step.
        threshold: least estimated worth of a node, for builders that take one.
        choice: index of the builder of a :class:`~specexp.builders.choice.Choice`.
    """

    max_nodes: int | None = None
    max_depth: int | None = None
    threshold: float | None = None
    choice: int | None = None

    def within(self, max_nodes: int, max_depth: int | None) -> tuple[int, int]:
        """Return the most nodes and the greatest depth of the step, by these limits and the builder's own."""
        nodes = max_nodes if self.max_nodes is None else min(max_nodes, self.max_nodes)
        depths = [depth for depth in (max_depth, self.max_depth) if depth is not None]
        return nodes, min(depths, default=max_nodes)


@dataclass(frozen=True, slots=True)
class DraftState:
    """The state of a tree before a request that costs a draft pass.

    Attributes:
        nodes: nodes drafted so far.
        depth: greatest depth of a node.
        pass_tokens: tokens fed in each draft pass of this step so far.
        log_prob: draft log-probability of the most probable path to a frontier node (the log of the product of the
            confidences); 0 while nothing is drafted, or without probabilities.
        last_log_prob: draft log-probability of that path's last token.
    """

    nodes: int
    depth: int
    pass_tokens: tuple[int, ...] = ()
    log_prob: float = 0.0
    last_log_prob: float = 0.0

    @property
    def draft_passes(self) -> int:
        """Draft passes of this step so far."""
        return len(self.pass_tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """A verifier's decision.

    Attributes:
        accepted: rows of the accepted nodes, from depth 1 down, each the parent of the next.
        bonus: the target's token after the last accepted node, or after the root.
    """

    accepted: tuple[int, ...]
    bonus: int


PLAIN = "plain"
"""Name of plain decoding among compositions of parts."""

Selection = Literal["top-k", "drawn"]
"""Candidates that become nodes: the drafter's best, or draws from its distribution without replacement."""

Build = Generator[Request, Candidates | None, TokenTree]
"""Yields requests, receives their candidates (None: stop drafting here), returns the tree."""


def kind_of(candidates: Selection) -> NodeKind:
    """Return the kind of node that a selection makes."""
    return NodeKind.DRAWN if candidates == "drawn" else NodeKind.POINT_MASS
