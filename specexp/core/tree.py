"""Draft trees as plain data, without models or tensors.

Row 0 is the *root*, the last committed token, which is not yet in the target's KV cache; rows ``1..n`` are the
drafted *nodes*, parents before children. The target pass feeds all ``n + 1`` rows at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

RankPath = tuple[int, ...]
"""Candidate ranks from depth 1 down to a node, e.g. ``(0, 2, 1)``; the root is ``()``."""

NO_CANDIDATE = -1
"""The token id for a missing candidate."""


class NodeKind(IntEnum):
    """The way a node's token was chosen. Rejection sampling has a separate rule for each kind."""

    POINT_MASS = 0
    """A deterministic choice, such as a top-k candidate or a retrieved token."""
    DRAWN = 1
    """Drawn from the draft distribution, excluding the tokens of earlier siblings."""
    DRAWN_WITH_REPLACEMENT = 2
    """Drawn from the full draft distribution."""


class TreeShape:
    """The shape of a draft tree, without its tokens; raises ``ValueError`` if a parent does not precede its child.

    Args:
        parents: ``[n + 1]`` parent row of each row, ``-1`` for the root (row 0); ``parents[i] < i``.
        ranks: ``[n + 1]`` rank of each node among its parent's candidates, ``-1`` for the root.

    Example:
        >>> TreeShape.from_rank_paths([[0], [1], [0, 0]]).depths.tolist()
        [0, 1, 1, 2]
    """

    recurs: bool = False  # many steps use this object, as with a static tree, so data derived from it should be cached

    def __init__(self, parents: Sequence[int] | NDArray[np.int64], ranks: Sequence[int] | NDArray[np.int64]) -> None:
        self.parents = np.asarray(parents, dtype=np.int64)  # [n + 1]
        self.ranks = np.asarray(ranks, dtype=np.int64)  # [n + 1]
        rows = np.arange(self.parents.size)
        if self.parents.size == 0 or self.parents[0] != -1:
            raise ValueError("a tree starts with its root: parents[0] must be -1")
        if self.ranks.shape != self.parents.shape:
            raise ValueError(f"ranks must have {self.parents.size} entries, one per row, got {self.ranks.size}")
        if (self.parents[1:] >= rows[1:]).any() or (self.parents[1:] < 0).any():
            raise ValueError("every node's parent must be before it (parents[i] in 0..i-1)")

    @classmethod
    def from_rank_paths(cls, paths: Iterable[Sequence[int]]) -> Self:
        """Build a shape from rank paths, given in any order and without the root. Rows are sorted by length, then
        rank. Raises ``ValueError`` if a path is empty, repeated or negative, or if its parent is missing.
        """
        given = [tuple(int(rank) for rank in path) for path in paths]
        ordered = sorted(set(given), key=lambda path: (len(path), path))
        if len(ordered) != len(given):
            twice = next(path for path in ordered if given.count(path) > 1)
            raise ValueError(f"rank path {list(twice)} is listed twice")
        row_of: dict[RankPath, int] = {(): 0}
        parents, ranks = [-1], [-1]
        for path in ordered:
            if not path or min(path) < 0:
                raise ValueError(f"rank path {list(path)} must have ranks >= 0, and at least one (no root)")
            if path[:-1] not in row_of:
                raise ValueError(f"rank path {list(path)} has no parent: {list(path[:-1])} is missing")
            row_of[path] = len(parents)
            parents.append(row_of[path[:-1]])
            ranks.append(path[-1])
        return cls(parents, ranks)

    @property
    def num_nodes(self) -> int:
        """Number of drafted nodes, without the root."""
        return self.parents.size - 1

    @cached_property
    def depths(self) -> NDArray[np.int64]:
        """``[n + 1]`` distance of each row from the root. Position ids are ``past + depths``."""
        depths = np.zeros(self.parents.size, dtype=np.int64)
        parents = self.parents.tolist()
        for row in range(1, len(parents)):
            depths[row] = depths[parents[row]] + 1
        return depths

    @cached_property
    def max_depth(self) -> int:
        """The depth of the deepest node; 0 for a root alone."""
        return int(self.depths.max())

    @cached_property
    def table(self) -> NDArray[np.int64]:
        """``[3, n + 1]`` parents, ranks and depths in one array, for the C++ code."""
        return np.stack((self.parents, self.ranks, self.depths))

    @cached_property
    def fed_nodes(self) -> NDArray[np.int64]:
        """The rows of the nodes that have children, except the root. These nodes are fed to a draft model."""
        return np.unique(self.parents[self.parents > 0])

    @cached_property
    def fed_sizes(self) -> tuple[int, ...]:
        """The number of :attr:`fed_nodes` at each depth that has any, from depth 1 on."""
        return tuple(np.unique(self.depths[self.fed_nodes], return_counts=True)[1].tolist())

    @cached_property
    def ancestor_mask(self) -> NDArray[np.bool_]:
        """``[n + 1, n + 1]``, true where the column is the row itself or one of its ancestors."""
        mask = np.eye(self.parents.size, dtype=np.bool_)
        for row, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                mask[row] |= mask[parent]  # already complete, because parents precede children
        return mask

    @cached_property
    def rank_paths(self) -> tuple[RankPath, ...]:
        """The rank path of every row; ``()`` for the root."""
        paths: list[RankPath] = [()]
        for parent, rank in zip(self.parents.tolist()[1:], self.ranks.tolist()[1:], strict=True):
            paths.append((*paths[parent], rank))
        return tuple(paths)

    @cached_property
    def children(self) -> tuple[tuple[int, ...], ...]:
        """The children of every row, in row order."""
        below: list[list[int]] = [[] for _ in range(self.parents.size)]
        for row, parent in enumerate(self.parents.tolist()):
            if parent >= 0:
                below[parent].append(row)
        return tuple(tuple(rows) for rows in below)

    @cached_property
    def depth_first(self) -> tuple[int, ...]:
        """All rows in depth-first order, with children in row order. In this order the mask is block-sparse."""
        return self._walk(lambda row: -row)

    @cached_property
    def heavy_path(self) -> tuple[int, ...]:
        """All rows in depth-first order, with the largest subtree first (heavy paths, Sleator & Tarjan 1981)."""
        return self._walk(self.ancestor_mask.sum(axis=0).tolist().__getitem__)

    def _walk(self, priority: Callable[[int], int]) -> tuple[int, ...]:
        """Return all rows in depth-first order. Among children, the one with the highest priority comes first."""
        order: list[int] = []
        stack = [0]
        while stack:
            row = stack.pop()
            order.append(row)
            stack.extend(sorted(self.children[row], key=priority))  # the last is popped first
        return tuple(order)

    def path(self, row: int) -> tuple[int, ...]:
        """Return the rows on the path from depth 1 down to ``row``; empty for the root."""
        rows: list[int] = []
        while row > 0:
            rows.append(row)
            row = int(self.parents[row])
        return tuple(reversed(rows))

    def select(self, keep: NDArray[np.bool_]) -> TreeShape:
        """Return the shape of the rows where ``keep`` ``[n + 1]`` is true. The parent of a kept row must be kept."""
        new_row = np.cumsum(keep) - 1  # [n + 1] each row's number in the selection
        parents = self.parents[keep]
        if not keep[parents[1:]].all():
            raise ValueError("a selection must keep the parent of every node it keeps")
        parents[1:] = new_row[parents[1:]]
        part = TreeShape(parents, self.ranks[keep])
        part.__dict__["depths"] = self.depths[keep]  # cheaper than walking the new parents
        part.__dict__["ancestor_mask"] = self.ancestor_mask[keep][:, keep]
        return part


ROOT_ONLY = TreeShape([-1], [-1])
"""The shape of plain decoding: the root alone."""
ROOT_ONLY.recurs = True


@dataclass(frozen=True, slots=True)
class TokenTree:
    """A drafted tree: a shape, the token of every row, and the drafting data that verifiers need."""

    shape: TreeShape
    tokens: NDArray[np.int64]  # [n + 1] the root's token first
    # [n + 1] draft log-probability given the parent, 0 for the root
    log_probs: NDArray[np.float32] | None = None
    # [n + 1] NodeKind of each node; None if all are point masses. Among siblings, drawn nodes come first.
    kinds: NDArray[np.int8] | None = None
    # [V] draft distribution of every row with drawn children
    q: Mapping[int, NDArray[np.float32]] | None = None
    # for rows with children drawn with replacement: the child selected by each draw, in order; a token drawn more
    # than once repeats its child
    draws: Mapping[int, tuple[int, ...]] | None = None
    # [n + 1] value that a dynamic builder estimated for each node, 1 for the root
    values: NDArray[np.float64] | None = None
    # [n + 1] true for nodes of phrases grafted onto a drafted tree, with log-probability NaN; None if there are none
    grafted: NDArray[np.bool_] | None = None

    @property
    def num_nodes(self) -> int:
        """Number of drafted nodes, without the root."""
        return self.tokens.size - 1

    def child_with_token(self, row: int, token: int) -> int | None:
        """Return the child of ``row`` with this token, or None."""
        for child in self.shape.children[row]:
            if self.tokens[child] == token:
                return child
        return None

    def best_path(self) -> tuple[int, ...]:
        """Return the path that takes the most probable child at each depth, from depth 1 down, ignoring grafted nodes.

        Without probabilities, take the child with the lowest rank.
        """
        path: list[int] = []
        row = 0
        while below := self.shape.children[row]:
            if self.grafted is not None:
                below = tuple(child for child in below if not self.grafted[child])
                if not below:
                    break
            if self.log_probs is None:
                row = min(below, key=self.shape.ranks.__getitem__)
            else:
                row = max(below, key=self.log_probs.__getitem__)
            path.append(row)
        return tuple(path)

    def kind(self, row: int) -> NodeKind:
        """Return how the token of ``row`` was chosen."""
        return NodeKind.POINT_MASS if self.kinds is None else NodeKind(int(self.kinds[row]))

    def draw_order(self, row: int) -> tuple[int, ...]:
        """Return the children of ``row`` in the order in which a verifier tries them, with one entry per draw."""
        drawn = None if self.draws is None else self.draws.get(row)
        if drawn is None:
            return self.shape.children[row]
        tried = set(drawn)  # point masses follow the draws
        return (*drawn, *(child for child in self.shape.children[row] if child not in tried))

    def select(self, keep: NDArray[np.bool_]) -> TokenTree:
        """Return the rows where ``keep`` ``[n + 1]`` is true. The parent of a kept row must be kept."""
        new_row = [] if self.q is None and self.draws is None else (np.cumsum(keep) - 1).tolist()
        draws = {
            new_row[row]: tuple(new_row[child] for child in drawn if keep[child])
            for row, drawn in (self.draws or {}).items()
            if keep[row]
        }
        named = {name: getattr(self, name) for name in ("log_probs", "kinds", "values", "grafted")}
        arrays = {name: values[keep] for name, values in named.items() if values is not None}
        if "grafted" in arrays and not arrays["grafted"].any():
            del arrays["grafted"]
        return TokenTree(
            self.shape.select(keep),
            self.tokens[keep],
            q=None if self.q is None else {new_row[row]: q for row, q in self.q.items() if keep[row]},
            draws=None if self.draws is None else draws,
            **arrays,
        )


def root_tree(token: int) -> TokenTree:
    """Return the tree of plain decoding: the root alone."""
    return TokenTree(ROOT_ONLY, np.array([token], dtype=np.int64))
