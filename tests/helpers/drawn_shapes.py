"""Shapes of trees that hypothesis draws."""

from hypothesis import strategies as st

from specexp.core.tree import TreeShape


@st.composite
def shapes(draw: st.DrawFn, max_nodes: int = 24) -> TreeShape:
    """Shapes in any order of rows that puts parents before children; siblings have distinct ranks."""
    nodes = draw(st.integers(0, max_nodes))
    parents, ranks, taken = [-1], [-1], {}
    for row in range(1, nodes + 1):
        parent = draw(st.integers(0, row - 1))
        rank = taken.get(parent, 0) + draw(st.integers(0, 2))
        taken[parent] = rank + 1
        parents.append(parent)
        ranks.append(rank)
    return TreeShape(parents, ranks)
