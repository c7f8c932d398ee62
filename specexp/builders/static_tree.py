"""Static trees: the same rank paths at every step."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Sequence
from typing import Annotated

import numpy as np
from pydantic import Field

from specexp.builders._base import Build, TreeBuilder
from specexp.controllers._base import Plan
from specexp.drafters._base import Request
from specexp.tree import NO_CANDIDATE, TokenTree, TreeShape, root_tree


class StaticTree(TreeBuilder):
    """Fills a fixed shape with candidates, breadth first; nodes without a candidate are left out with what is below.

    Args:
        rank_paths: rank path of every node, e.g. ``[[0], [1], [0, 0]]``; the root is not listed and every prefix is.
        artifact: folder of a ``static-tree`` artifact to take them from instead.

    Raises:
        ValueError: neither or both are given, a path repeats, is empty, or has no parent in the list.

    Example:
        >>> StaticTree([[0], [1], [0, 0]]).max_nodes
        3
    """

    def __init__(self, rank_paths: list[list[int]] | None = None, artifact: str | None = None) -> None:
        if (rank_paths is None) == (artifact is None):
            raise ValueError("StaticTree needs either rank_paths or artifact, and not both")
        if artifact is not None:
            from specexp.artifacts import load_rank_paths

            rank_paths = load_rank_paths(artifact)
        assert rank_paths is not None
        if not rank_paths:
            raise ValueError("StaticTree was given no rank path; at least [[0]] is needed")
        self.shape = TreeShape.from_rank_paths(rank_paths)

    @property
    def rank_paths(self) -> list[list[int]]:
        """The tree in the rank-path form other projects read: no root, sorted by length, then rank."""
        return [list(path) for path in self.shape.rank_paths[1:]]

    @property
    def max_nodes(self) -> int:
        """Nodes of the whole shape."""
        return self.shape.num_nodes

    @property
    def max_candidates(self) -> int:
        """Highest rank plus one."""
        return int(self.shape.ranks.max()) + 1

    def build(self, root: int, plan: Plan) -> Build:
        """One request a depth."""
        shape = self.shape if plan.max_depth is None else self.shape.up_to_depth(plan.max_depth)
        if plan.max_nodes is not None and plan.max_nodes < shape.num_nodes:
            shape = shape.first_nodes(plan.max_nodes)
        if shape.num_nodes == 0:
            return root_tree(root)
        tokens = np.full(shape.num_nodes + 1, NO_CANDIDATE, dtype=np.int64)
        tokens[0] = root
        for level in shape.levels:
            alive = tokens[level.parents] >= 0  # [f]
            if not alive.any():
                break
            answer = yield Request(tokens, shape.parents, level.parents[alive], level.candidates)
            if answer is None:
                break
            offered = answer.tokens
            if not alive.all():
                offered = np.full((alive.size, answer.tokens.shape[1]), NO_CANDIDATE, dtype=np.int64)
                offered[alive] = answer.tokens
            tokens[level.rows] = offered[level.parent_index, level.ranks]
        drafted = tokens >= 0
        if drafted.all():
            return TokenTree(shape, tokens)
        return TokenTree(shape.select(drafted), tokens[drafted])


class Chain(StaticTree):
    """One candidate after the other: the tree of ordinary speculative decoding.

    Args:
        length: drafted tokens.
    """

    def __init__(self, length: Annotated[int, Field(ge=1, le=256)] = 4) -> None:
        super().__init__([[0] * depth for depth in range(1, length + 1)])


# Children of every node of the figure, breadth first: the root's, then depth 1, 2, ... (Luo et al. 2024, Figure 5).
_FIGURE_5: Sequence[Sequence[int]] = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)


class TokenRecyclingTree(StaticTree):
    """The 80-node tree of Token Recycling (Luo et al. 2024, Figure 5): 81 tokens a pass, at most 7 a step."""

    def __init__(self) -> None:
        super().__init__(_paths_of_child_counts(_FIGURE_5))


def _paths_of_child_counts(levels: Sequence[Sequence[int]]) -> list[list[int]]:
    paths: list[list[int]] = []
    above: list[list[int]] = [[]]
    for counts in levels:
        below = [
            [*parent, rank] for parent, count in zip(above, counts, strict=True) for rank in range(count)
        ]
        paths += below
        above = below
    return paths
