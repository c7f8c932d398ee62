"""What parts say to each other: questions of a builder, answers of a drafter, plans of a controller, and verdicts."""

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
    """A builder's question: ``k`` candidates after each of these rows of the tree so far.

    During one build a row keeps its number, its parent and, once filled, its token.

    Attributes:
        tokens: ``[m]`` token ids of the tree so far, the root in row 0; rows not yet filled are negative.
        parents: ``[m]`` row of each row's parent, ``-1`` for the root.
        ranks: ``[m]`` rank of each row among its parent's candidates, ``-1`` for the root.
        rows: ``[f]`` the frontier: rows whose continuations are asked for, all of them filled.
        k: candidates wanted for each.
        kind: how they are to be chosen: the best ones, or drawn. A longer answer begins with the shorter one.
        enough: ``[f]`` probability mass after which a row needs no more candidates: a drafter that draws may then
            stop, and leave the rest of the row, or of all rows, out. None asks for all ``k``.
        length: tokens of a candidate; above 1 the question is for phrases, which only some drafters have.
        log_probs: ``[m]`` draft log-probability of each row given its parent, 0 for the root; None where the drafter
            gives none.
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
        """Depth of each of the ``f`` frontier rows; 0 for the root."""
        parents = self.parents.tolist()  # a walk in Python: for trees of this size numpy's calls cost more
        depths = []
        for row in self.rows.tolist():
            depth = 0
            while row > 0:
                row, depth = parents[row], depth + 1
            depths.append(depth)
        return depths

    def best_path_log_probs(self) -> tuple[float, float]:
        """Of the frontier row whose path is most probable: the path's log-probability, and that of its last token.

        Zeros where the drafter gives no log-probabilities, or before anything is drafted.
        """
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
        tokens: ``[f, k]`` (or fewer, see :attr:`Request.enough`) token ids of each frontier row, then
            ``NO_CANDIDATE``: best first or in the order drawn, distinct unless drawn with replacement. Of phrases
            ``[f, k, length]``, shorter ones filled up with ``NO_CANDIDATE``.
        log_probs: ``[f, k]`` draft log-probabilities given the frontier row (of drawn tokens: before anything was
            taken out), or None where the drafter has none.
        q: ``[f, V]`` draft distribution of each frontier row, where tokens were drawn.
        pass_tokens: tokens fed in each forward pass of a draft model that the answer took.
    """

    tokens: NDArray[np.int64]
    log_probs: NDArray[np.float32] | None = None
    q: NDArray[np.float32] | None = None
    pass_tokens: tuple[int, ...] = ()

    def rows(self, start: int, end: int) -> Candidates:
        """Those of some frontier rows, where none were drawn."""
        log_probs = None if self.log_probs is None else self.log_probs[start:end]
        return Candidates(self.tokens[start:end], log_probs)


@dataclass(frozen=True, slots=True)
class Plan:
    """Limits of one step; None leaves the builder's own.

    Attributes:
        max_nodes: most nodes to draft.
        max_depth: deepest node to draft; 0 switches speculation off for the step.
        threshold: a node is drafted only where its estimated worth reaches this, by builders that take one.
        choice: which of the builders of a :class:`~specexp.builders.choice.Choice` builds the tree.
    """

    max_nodes: int | None = None
    max_depth: int | None = None
    threshold: float | None = None
    choice: int | None = None

    def within(self, max_nodes: int, max_depth: int | None) -> tuple[int, int]:
        """Most nodes and deepest node of the step, by these limits and a builder's own."""
        nodes = max_nodes if self.max_nodes is None else min(max_nodes, self.max_nodes)
        depths = [depth for depth in (max_depth, self.max_depth) if depth is not None]
        return nodes, min(depths, default=max_nodes)


@dataclass(frozen=True, slots=True)
class DraftState:
    """How far a tree has come, before an answer that would cost a draft pass.

    Attributes:
        nodes: nodes drafted so far.
        depth: depth of the deepest.
        pass_tokens: tokens fed in each draft pass of this step so far.
        log_prob: draft log-probability of the most probable path to a node that the pass would draft from (the
            product of the confidences); 0 while nothing is drafted, or where the drafter gives no probabilities.
        last_log_prob: draft log-probability of that path's last token alone.
    """

    nodes: int
    depth: int
    pass_tokens: tuple[int, ...] = ()
    log_prob: float = 0.0
    last_log_prob: float = 0.0

    @property
    def draft_passes(self) -> int:
        """Passes spent in this step."""
        return len(self.pass_tokens)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        accepted: rows of the accepted nodes, from depth 1 down, each the parent of the next.
        bonus: the target's token after the last accepted node (after the root, if none was).
    """

    accepted: tuple[int, ...]
    bonus: int


PLAIN = "plain"
"""Name of plain decoding among compositions of parts."""

Selection = Literal["top-k", "drawn"]
"""Which candidates become nodes: the drafter's best, or draws from its distribution without replacement."""

Build = Generator[Request, Candidates | None, TokenTree]
"""Yields requests, is sent their answers (None: stop drafting here), returns the tree."""


def kind_of(candidates: Selection) -> NodeKind:
    """The kind of node a selection makes."""
    return NodeKind.DRAWN if candidates == "drawn" else NodeKind.POINT_MASS
