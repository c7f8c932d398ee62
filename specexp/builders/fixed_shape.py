"""The shape of a tree that is the same at every step, and the parts of it that a plan leaves."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from specexp.core.tree import TreeShape


@dataclass(frozen=True, slots=True)
class Level:
    """The nodes of one depth, seen from their parents.

    Attributes:
        parents: ``[f]`` rows of the nodes at the depth above that have children.
        rows: ``[m]`` rows of the nodes of this depth.
        parent_index: ``[m]`` index of each node's parent in ``parents``.
        ranks: ``[m]`` rank of each node among its parent's candidates.
        candidates: how many candidates a parent must be asked for.
    """

    parents: NDArray[np.int64]
    rows: NDArray[np.int64]
    parent_index: NDArray[np.int64]
    ranks: NDArray[np.int64]
    candidates: int


class FixedShape(TreeShape):
    """A shape that comes again, and so do its parts: they are made once."""

    recurs = True

    @cached_property
    def levels(self) -> tuple[Level, ...]:
        """What has to be asked of a drafter, depth by depth, to fill this shape with tokens."""
        levels = []
        for depth in range(1, self.max_depth + 1):
            rows = np.flatnonzero(self.depths == depth)
            parents, index = np.unique(self.parents[rows], return_inverse=True)
            ranks = self.ranks[rows]
            levels.append(Level(parents, rows, index, ranks, int(ranks.max()) + 1))
        return tuple(levels)

    @override
    def select(self, keep: NDArray[np.bool_]) -> TreeShape:
        nodes = int(np.count_nonzero(keep)) - 1
        return self.first_nodes(nodes) if keep[: nodes + 1].all() else super().select(keep)

    @lru_cache(maxsize=512)  # noqa: B019 - shapes are few and live as long as their builder
    def first_nodes(self, nodes: int) -> FixedShape:
        """The shape of the root and the first ``nodes`` nodes in row order: drafts that a controller ends."""
        return self._part(np.arange(self.parents.size) <= nodes)

    @lru_cache(maxsize=512)  # noqa: B019 - as of first_nodes
    def up_to_depth(self, max_depth: int) -> FixedShape:
        """The part of the shape at most ``max_depth`` deep: the last steps of every sequence ask for it."""
        return self if max_depth >= self.max_depth else self._part(self.depths <= max_depth)

    def _part(self, keep: NDArray[np.bool_]) -> FixedShape:
        part = super().select(keep)
        fixed = FixedShape(part.parents, part.ranks)
        fixed.__dict__.update(part.__dict__)  # with what is known of its depths and mask
        return fixed
