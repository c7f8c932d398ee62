"""Orders of a tree's rows that leave fewer blocks of its attention mask to compute (Xiong et al. 2024, appendix C)."""

from __future__ import annotations

from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from specexp.core.tree import TokenTree, TreeShape

TokenOrder = Literal["depth-first", "heavy-path"]


def order_of(shape: TreeShape, order: TokenOrder) -> tuple[int, ...]:
    """All rows of a tree in another order, every parent before its children.

    ``depth-first`` visits children in row order. ``heavy-path`` is depth first too, but visits the child with the
    most nodes below it first, as in the decomposition of Sleator and Tarjan (1981): long paths stay in one piece.

    Args:
        shape: Shape of the tree.
        order: Which order.

    Raises:
        ValueError: There is no such order.

    Example:
        >>> order_of(TreeShape.from_rank_paths([[0], [1], [1, 0]]), "heavy-path")
        (0, 2, 3, 1)

    The tree in that order is ``tree.permute(order_of(tree.shape, order))``.
    """
    if order == "depth-first":
        return shape.depth_first
    if order != "heavy-path":
        raise ValueError(f"token order was {order!r}; allowed are {', '.join(get_args(TokenOrder))}")
    size = subtree_sizes(shape).tolist()
    rows: list[int] = []
    stack = [0]
    while stack:
        row = stack.pop()
        rows.append(row)
        stack.extend(sorted(shape.children[row], key=lambda child: (size[child], -child)))
    return tuple(rows)


def value_order(tree: TokenTree) -> tuple[int, ...]:
    """Rows by falling value, parents before children: the order in which DySpec's heap adds them.

    Raises:
        ValueError: No dynamic builder made the tree, so its nodes have no value.
    """
    if tree.values is None:
        raise ValueError("the tree has no values: only those of dynamic builders, such as DySpecGreedy, have")
    values = tree.values.copy()
    for row, parent in enumerate(tree.shape.parents.tolist()[1:], start=1):
        values[row] = min(values[row], values[parent])  # rounding must not put a child before its parent
    return tuple(np.argsort(-values, kind="stable").tolist())


def subtree_sizes(shape: TreeShape) -> NDArray[np.int64]:
    """``[n + 1]`` rows at and below each row."""
    sizes = [1] * shape.parents.size
    parents = shape.parents.tolist()
    for row in range(len(parents) - 1, 0, -1):  # children stand after their parent
        sizes[parents[row]] += sizes[row]
    return np.array(sizes)


def block_count(shape: TreeShape, block: int = 32, prefix: int = 0) -> int:
    """Blocks of the mask that hold anything: what a block-sparse attention kernel computes.

    Args:
        shape: Shape of the tree; its rows are the mask's rows, and its last columns.
        block: Rows and columns of a block.
        prefix: Committed tokens, whose columns come first and are seen by every row.

    Raises:
        ValueError: The block or the prefix is too small.

    Example:
        >>> block_count(TreeShape.from_rank_paths([[0], [1], [0, 0]]), block=2)
        3
    """
    if block < 1 or prefix < 0:
        raise ValueError(f"block was {block} and prefix {prefix}; at least 1 and 0 are needed")
    size = shape.parents.size
    row = np.arange(size)
    seen = np.zeros((-(-size // block), -(-(prefix + size) // block)), dtype=np.bool_)
    seen[:, : -(-prefix // block)] = True
    ancestor = row
    while row.size:  # one level up at a time, all rows together
        seen[row // block, (prefix + ancestor) // block] = True
        ancestor = shape.parents[ancestor]
        row, ancestor = row[ancestor >= 0], ancestor[ancestor >= 0]
    return int(seen.sum())


def random_shape(rows: int, generator: np.random.Generator) -> TreeShape:
    """A random tree whose every node hangs below any of the earlier rows with equal probability.

    Args:
        rows: Rows of the tree, the root among them.
        generator: Source of the draws.
    """
    parents = [-1, *generator.integers(0, np.arange(1, rows)).tolist()]
    children = [0] * rows
    ranks = [-1]
    for parent in parents[1:]:
        ranks.append(children[parent])
        children[parent] += 1
    return TreeShape(parents, ranks)
