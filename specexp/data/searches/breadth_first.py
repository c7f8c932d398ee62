"""Breadth-first search, as in Tree of Thoughts (Yao et al. 2023) and SEED (Algorithm 1)."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.searches.search import Growth, Search, State, ThoughtTree


class BreadthFirst(Search):
    """Level by level: every kept state is expanded, all new states are valued, the best ``breadth`` are kept.

    All states of a level are asked for in one request, so ``breadth * thoughts`` sequences may run side by side.

    Args:
        breadth: how many states of a level are kept, all of them where there are fewer (b of Algorithm 1).
        thoughts: how many continuations every kept state gets (n of Algorithm 1; 3 in the paper).

    Example:
        >>> BreadthFirst(breadth=2, thoughts=3).max_expansions(depth=4)  # 1 root, 2 of its 3 children, 2 of their 6
        5
    """

    def __init__(
        self, breadth: Annotated[int, Field(ge=1)] = 1, thoughts: Annotated[int, Field(ge=1)] = 3
    ) -> None:
        self.breadth = breadth
        self.thoughts = thoughts

    @override
    def max_expansions(self, depth: int) -> int:
        kept, total = 1, 0
        for _ in range(depth - 1):
            total += kept
            kept = min(self.breadth, kept * self.thoughts)
        return total

    @override
    def grow(self, tree: ThoughtTree, levels: int) -> Growth:
        # Algorithm 1, lines 3 to 8.
        kept: list[State] = [tree.root]
        for _ in range(levels):
            new = yield from self.expand(tree, kept)
            kept = sorted(new, key=tree.sort_key, reverse=True)[: self.breadth]
