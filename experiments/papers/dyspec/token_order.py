"""Orders of a tree's rows that leave fewer blocks of its attention mask to compute (Xiong et al. 2024, appendix C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, label, table_of
from specexp.bench.pictures import BLUE, GREY, INK, ORANGE, legend_below, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Table
from specexp.core.outcome import Outcome
from specexp.core.tree import TokenTree, TreeShape

TokenOrder = Literal["depth-first", "heavy-path"]
AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH = "as built", "heap order", "depth-first", "heavy path"
LOOKS: dict[str, dict[str, Any]] = {
    AS_BUILT: {"color": INK, "marker": "o"},
    HEAP: {"color": GREY, "marker": "s"},
    DEPTH_FIRST: {"color": BLUE, "marker": "o"},
    HEAVY_PATH: {"color": ORANGE, "marker": "^", "ls": "--"},
}
TABLE_5 = {256: (36.0, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
"""Published blocks of random trees, before and after reordering, by rows."""
FIGURE_9 = {768: (366.12, 218.31), 1024: (580.07, 295.59)}
"""Published blocks of real trees, before and after reordering, by nodes; the length of the prefix is not stated."""
BLOCK_OF_PAPER = 32

Orders = dict[str, TreeShape]
"""A tree in several orders, by name."""
Curves = Mapping[str, NDArray[np.float64]]
"""Mean blocks at every prefix, by order."""


def order_of(shape: TreeShape, order: TokenOrder) -> tuple[int, ...]:
    """All rows of a tree in another order, every parent before its children.

    ``depth-first`` visits children in row order. ``heavy-path`` visits the child with the most nodes below it first, as
    in the decomposition of Sleator and Tarjan (1981): long paths stay in one piece. The tree in that order is
    ``tree.permute(order_of(tree.shape, order))``.

    Example:
        >>> order_of(TreeShape.from_rank_paths([[0], [1], [1, 0]]), "heavy-path")
        (0, 2, 3, 1)
    """
    if order == "depth-first":
        return shape.depth_first
    size = subtree_sizes(shape).tolist()
    rows: list[int] = []
    stack = [0]
    while stack:
        row = stack.pop()
        rows.append(row)
        stack.extend(sorted(shape.children[row], key=lambda child: (size[child], -child)))
    return tuple(rows)


def value_order(tree: TokenTree) -> tuple[int, ...]:
    """Rows by falling value, parents before children: the order in which DySpec's heap adds them."""
    assert tree.values is not None
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


def block_count(shape: TreeShape, block: int = BLOCK_OF_PAPER, prefix: int = 0) -> int:
    """Non-empty blocks of the mask, which a block-sparse attention kernel computes; every row sees the columns of
    ``prefix`` committed tokens.

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


def random_shape(rows: int, generator: np.random.Generator) -> TreeShape:
    """A random tree of so many rows: each node is below any of the earlier rows with equal probability."""
    parents = [-1, *generator.integers(0, np.arange(1, rows)).tolist()]
    children = [0] * rows
    ranks = [-1]
    for parent in parents[1:]:
        ranks.append(children[parent])
        children[parent] += 1
    return TreeShape(parents, ranks)


class TreeReorder(DraftingAnalysis[list[Orders]]):
    """Non-empty blocks of the tree mask in the order built (breadth first), in the heap's, depth first and heavy path
    first: of random trees (table 5), and of the trees of the run over a growing prefix (figure 9). The mask of one tree
    is drawn (figures 6 and 7).
    """

    name: ClassVar[str] = "tree_reorder"
    block = BLOCK_OF_PAPER
    prefixes: Sequence[int] = range(0, 1025, 256)
    """Committed tokens before the tree."""
    most_trees, random_trees = 64, 20
    """Trees of each arm, the first ones larger than a block; random trees of each size."""
    mask_nodes = 256
    """Nodes of the tree whose mask is drawn, or as near below as there is, else of the smallest; of these the one with
    the median number of blocks."""

    def __init__(self) -> None:
        super().__init__(lambda parts: [])

    @override
    def watch(self, arm: str, state: list[Orders], outcome: Outcome) -> None:
        tree = outcome.tree
        if len(state) >= self.most_trees or tree.num_nodes < self.block:
            return
        shape = TreeShape(tree.shape.parents, tree.shape.ranks)  # without the cached mask
        heap = {} if tree.values is None else {HEAP: shape.permute(value_order(tree))}
        state.append({AS_BUILT: shape, **heap})

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        seen = {arm: [_orders(tree) for tree in trees] for arm, trees in self.states.items() if trees}
        tables = {f"{self.name}_random": self._random_table()}
        if not seen:
            return Report(tables)
        curves = {arm: self._curves(trees) for arm, trees in seen.items()}
        tables[f"{self.name}_real"] = self._real_table(seen, curves)
        every = [tree for trees in seen.values() for tree in trees]
        masks, prefixes = self._draw_masks(self._typical(every)), self._draw_curves(curves)
        return Report(tables, {f"{self.name}_masks": masks, f"{self.name}_prefix": prefixes})

    def _curves(self, trees: Sequence[Orders]) -> Curves:
        def blocks(shape: TreeShape) -> list[int]:
            return [block_count(shape, self.block, prefix) for prefix in self.prefixes]

        return {order: np.mean([blocks(tree[order]) for tree in trees], axis=0) for order in trees[0]}

    def _typical(self, trees: Sequence[Orders]) -> Orders:
        """The tree whose mask is drawn."""
        sizes = [tree[AS_BUILT].num_nodes for tree in trees]
        wanted = max((size for size in sizes if size <= self.mask_nodes), default=min(sizes))
        alike = [tree for tree, size in zip(trees, sizes, strict=True) if size == wanted]
        return sorted(alike, key=lambda tree: block_count(tree[AS_BUILT], self.block))[len(alike) // 2]

    def _random_table(self) -> Table:
        table = table_of(
            f"Blocks of {self.block} of random trees (table 5)",
            "rows | unordered, paper:.1 | unordered:.1 | reordered, paper:.1"
            f" | {DEPTH_FIRST}:.1 | {HEAVY_PATH}:.1 | depth-first to paper:.1%",
            f"Means of {self.random_trees} trees, seed 0; heavy path is not in the paper's table.",
        )
        for rows, published in TABLE_5.items():
            generator = np.random.default_rng([0, rows])
            trees = [_orders({AS_BUILT: random_shape(rows, generator)}) for _ in range(self.random_trees)]
            counts = ([block_count(shape, self.block) for shape in tree.values()] for tree in trees)
            built, depth_first, heavy = np.mean(list(counts), axis=0).tolist()
            theirs: list[Cell] = [None, None, None]
            if self.block == BLOCK_OF_PAPER:
                theirs = [*published, depth_first / published[1] - 1]
            table.rows.append([str(rows), theirs[0], built, theirs[1], depth_first, heavy, theirs[2]])
        return table

    def _real_table(self, seen: Mapping[str, Sequence[Orders]], curves: Mapping[str, Curves]) -> Table:
        title = f"Blocks of {self.block} of the run's trees, over the tokens before them (figure 9)"
        table = table_of(title, f"arm | trees | mean nodes:.1 | prefix | {' | '.join(LOOKS)}")
        for arm, trees in seen.items():
            nodes = float(np.mean([tree[AS_BUILT].num_nodes for tree in trees]))
            for number, prefix in enumerate(self.prefixes):
                counts = {order: float(blocks[number]) for order, blocks in curves[arm].items()}
                table.add({"arm": arm, "trees": len(trees), "mean nodes": nodes, "prefix": prefix, **counts})
        if self.block == BLOCK_OF_PAPER:
            for size, (before, after) in FIGURE_9.items():
                row: dict[str, Cell] = {"arm": "paper (not run here)", "mean nodes": float(size)}
                table.add({**row, HEAP: before, DEPTH_FIRST: after})
            table.notes.append("The paper does not state the prefix of its figures, nor its order in detail.")
        return table

    def _draw_masks(self, tree: Orders) -> Figure:
        size = tree[AS_BUILT].parents.size
        computed = f"shaded: blocks of {self.block} that must be computed"
        title = f"The mask of one tree of {size - 1} nodes; {computed}"
        figure, [panels] = new_figure(3.3 * len(tree), 3.8, title, 1, len(tree), dpi=150)
        colours = ListedColormap(["white", "#dbe6ee", BLUE])
        for axes, (order, shape) in zip(panels, tree.items(), strict=True):
            blocks = -(-size // self.block)
            padded = np.zeros((blocks * self.block,) * 2, dtype=np.bool_)
            padded[:size, :size] = shape.ancestor_mask
            full = padded.reshape(blocks, self.block, blocks, self.block).any(axis=(1, 3))
            shaded = np.kron(full, np.ones((self.block, self.block)))[:size, :size]
            shown = np.where(shape.ancestor_mask, 2, shaded)
            axes.imshow(shown, cmap=colours, vmin=0, vmax=2, interpolation="nearest")
            axes.spines[["top", "right"]].set_visible(True)  # the edge of the mask
            name = f"{order}: {int(full.sum())} blocks"
            label(axes, "key (row of the tree)", title=name, loc="center")
        label(panels[0], y="query (row of the tree)")
        return figure

    def _draw_curves(self, curves: Mapping[str, Curves]) -> Figure:
        published = {arm: FIGURE_9.get(self._budget(arm), ()) for arm in curves}
        title = f"Blocks of {self.block} that must be computed, over the tokens before the tree"
        if any(published.values()):
            title += " (dotted: the paper's, prefix not stated)"
        figure, [panels] = new_figure(max(3.6 * len(curves), 5.2), 4.2, title, 1, len(curves))
        white = {"fc": "white", "ec": "none", "pad": 1}
        beside: dict[str, Any] = {"ha": "right", "va": "center", "zorder": 5, "bbox": white}
        for axes, (arm, orders) in zip(panels, curves.items(), strict=True):
            for order, counts in orders.items():
                axes.plot(self.prefixes, counts, ms=4, label=order, **LOOKS[order])
            shown = published[arm] if self.block == BLOCK_OF_PAPER else ()
            for count, colour in zip(shown, (GREY, BLUE), strict=False):
                axes.axhline(count, color=colour, lw=0.9, ls=":")
                axes.text(self.prefixes[-1], count, f"paper {count}", fontsize=8, color=INK, **beside)
            label(axes, "prefix (tokens)", title=arm, loc="center", low=0, grid="y")
        label(panels[0], y="non-zero blocks")
        found = [axes.get_legend_handles_labels() for axes in panels]
        handles, labels = max(found, key=lambda one: len(one[1]))
        legend_below(figure, len(labels), handles, labels)
        return figure

    def _budget(self, arm: str) -> int:
        builder = self.parts[arm].builder
        return 0 if builder is None else builder.max_nodes


def _orders(tree: Orders) -> Orders:
    """The orders given, and those made from the first."""
    shape = tree[AS_BUILT]
    made: dict[str, TokenOrder] = {DEPTH_FIRST: "depth-first", HEAVY_PATH: "heavy-path"}
    return {**tree, **{name: shape.permute(order_of(shape, order)) for name, order in made.items()}}
