"""Orders of a tree's rows with fewer non-empty blocks in its attention mask (Xiong et al. 2024, appendix C, figure
9).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, table_of
from specexp.bench.record import PromptRecord
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape
from specexp.report.publish import Report
from specexp.report.table import Cell, Table

AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH = "as built", "heap order", "depth-first", "heavy path"
BLOCK_OF_PAPER = 32

Orders = dict[str, TreeShape]  # a tree in several orders, by name


def value_order(tree: TokenTree) -> tuple[int, ...]:
    """Return the rows by decreasing value, parents before children: the order in which DySpec's heap adds them."""
    assert tree.values is not None
    values = tree.values.copy()
    for row, parent in enumerate(tree.shape.parents.tolist()[1:], start=1):
        values[row] = min(values[row], values[parent])  # rounding must not put a child before its parent
    return tuple(np.argsort(-values, kind="stable").tolist())


def permuted(shape: TreeShape, rows: Sequence[int]) -> TreeShape:
    """Return the shape with its rows in the order ``rows``: each row once, root first, parents before children."""
    parents = shape.parents[list(rows)]
    return TreeShape([-1, *np.argsort(rows)[parents[1:]].tolist()], shape.ranks[list(rows)])


def block_count(shape: TreeShape, block: int = BLOCK_OF_PAPER, prefix: int = 0) -> int:
    """Return the number of non-empty blocks of the mask, which a block-sparse attention kernel computes. Every row
    sees the columns of ``prefix`` committed tokens.

    Example:
        >>> block_count(TreeShape.from_rank_paths([[0], [1], [0, 0]]), block=2)
        3
    """
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


class TreeReorder(DraftingAnalysis[list[Orders]]):
    """Non-empty blocks of the masks of the run's trees, after prefixes of several lengths (figure 9), in four orders of
    the rows: breadth-first (as built), heap, depth-first and heavy-path.
    """

    name: ClassVar[str] = "tree_reorder"
    block = BLOCK_OF_PAPER
    prefixes: Sequence[int] = range(0, 1025, 256)  # committed tokens before the tree
    most_trees = 64
    """Number of trees of each arm: its first ones larger than a block."""

    @override
    def watch(self, arm: str, state: list[Orders], outcome: Outcome) -> None:
        tree = outcome.tree
        if len(state) >= self.most_trees or tree.num_nodes < self.block:
            return
        shape = TreeShape(tree.shape.parents, tree.shape.ranks)  # without the cached mask
        orders = {AS_BUILT: shape, DEPTH_FIRST: permuted(shape, shape.depth_first)}
        orders[HEAVY_PATH] = permuted(shape, shape.heavy_path)
        if tree.values is not None:
            orders[HEAP] = permuted(shape, value_order(tree))
        state.append(orders)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        seen = {arm: trees for arm, trees in self.states.items() if trees}
        return Report({f"{self.name}_real": self._real_table(seen)})

    def _mean_blocks(self, shapes: Sequence[TreeShape], prefix: int = 0) -> float:
        return float(np.mean([block_count(shape, self.block, prefix) for shape in shapes]))

    def _real_table(self, seen: Mapping[str, Sequence[Orders]]) -> Table:
        title = f"Blocks of {self.block} of the run's trees, by number of tokens before them (figure 9)"
        heads = " | ".join((AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH))
        table = table_of(title, f"arm | trees | mean nodes:.1 | prefix | {heads}")
        for arm, trees in seen.items():
            nodes = float(np.mean([tree[AS_BUILT].num_nodes for tree in trees]))
            for prefix in self.prefixes:
                row: dict[str, Cell] = {"arm": arm, "trees": len(trees), "mean nodes": nodes, "prefix": prefix}
                blocks = {o: self._mean_blocks([tree[o] for tree in trees], prefix) for o in trees[0]}
                table.add({**row, **blocks})
        return table
