"""Static trees defined by a few numbers, including the published tree of Token Recycling."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Annotated

from pydantic import Field

from specexp.builders.static_tree import MOST_NODES, StaticTree
from specexp.core.dialogue import Selection


class Chain(StaticTree):
    """A chain of single candidates, as in ordinary speculative decoding.

    Args:
        length: number of drafted tokens.
        candidates: the drafter's ``top-k``, or tokens ``drawn`` without replacement.
    """

    size_arguments = ("length",)

    def __init__(self, length: Annotated[int, Field(ge=1, le=256)] = 4, candidates: Selection = "top-k") -> None:
        super().__init__([[0] * depth for depth in range(1, length + 1)], candidates=candidates)


class KConfig(StaticTree):
    """A tree in which all nodes at a given depth have the same number of children.

    Args:
        widths: number of children per node, depth by depth: ``[2, 2, 1]`` gives 2, then 4, then 4 nodes.
        candidates: the drafter's ``top-k``, or tokens ``drawn`` without replacement.

    Raises:
        ValueError: ``widths`` is empty, has a number below 1, or defines more than 4,096 nodes.

    Example:
        >>> KConfig([2, 2, 1]).max_nodes
        10
    """

    def __init__(self, widths: list[int], candidates: Selection = "top-k") -> None:
        size_of(type(self).__name__, widths)
        levels = (product(*map(range, widths[:depth])) for depth in range(1, len(widths) + 1))
        super().__init__([list(path) for level in levels for path in level], candidates=candidates)


# Number of children of each node in the figure, breadth first: root, depth 1, 2, ... (Luo et al. 2024, Figure 5).
_FIGURE_5: Sequence[Sequence[int]] = (
    (8,),
    (8, 4, 3, 2, 1, 1, 1, 1),
    (8, 3, 2, 1, 1, 1, 1, 1, 2, 1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0),
    (5, 2, 1, 1, 1, 0, 0, 0, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 0, 0),
    (3, 1, 1, 0, 0, 1, 0, 0, 0, 0, 1, 0, 1, 0, 0),
    (2, 0, 0, 1, 0, 0, 0, 0),
)


class TokenRecyclingTree(StaticTree):
    """The 80-node tree of Token Recycling (Luo et al. 2024, Figure 5): feeds 81 tokens, outputs at most 7 per step."""

    def __init__(self) -> None:
        paths: list[list[int]] = []
        level: list[list[int]] = [[]]
        for counts in _FIGURE_5:
            level = [[*parent, rank] for parent, count in zip(level, counts, strict=True) for rank in range(count)]
            paths += level
        super().__init__(paths)


def size_of(name: str, widths: Sequence[int]) -> tuple[int, int]:
    """Return the number of nodes and of leaves of the builder ``name``'s full tree with these widths.

    Raises ValueError if there is no width, one is below 1, or the tree is too large.
    """
    if not widths or min(widths) < 1:
        raise ValueError(f"{name}: widths must be at least one number >= 1, got {list(widths)}")
    nodes, row = 0, 1
    for width in widths:
        row *= width
        nodes += row
        if nodes > MOST_NODES:  # checked here, before a product of thousands of widths is computed
            raise ValueError(f"{name}: widths must make at most {MOST_NODES} nodes, got at least {nodes}")
    return nodes, row
