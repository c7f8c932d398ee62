"""What an order of the rows saves a block-sparse attention kernel (Xiong et al. 2024, appendix C)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar

import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from numpy.typing import NDArray
from pydantic import Field
from typing_extensions import override

from experiments.papers.dyspec.token_order import TokenOrder, block_count, order_of, random_shape, value_order
from specexp.bench.analysis import Analysis, drafting
from specexp.bench.pictures import BLUE, GREY, INK, ORANGE, legend_below, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Cell, Table, columns
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape

AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH = "as built", "heap order", "depth-first", "heavy path"
LOOKS: dict[str, dict[str, Any]] = {
    AS_BUILT: {"color": INK, "marker": "o"},
    HEAP: {"color": GREY, "marker": "s"},
    DEPTH_FIRST: {"color": BLUE, "marker": "o"},
    HEAVY_PATH: {"color": ORANGE, "marker": "^", "ls": "--"},
}
"""How the curve of an order is drawn."""
TABLE_5 = {256: (36.0, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
"""Published blocks of random trees, before and after reordering, by rows."""
FIGURE_9 = {768: (366.12, 218.31), 1024: (580.07, 295.59)}
"""Published blocks of real trees, before and after reordering, by nodes; the length of the prefix is not stated."""
_BLOCK_OF_PAPER = 32

Orders = Mapping[str, TreeShape]
"""A tree in several orders, by name."""
Curves = Mapping[str, NDArray[np.float64]]
"""Of each order the mean blocks at every prefix."""


class TreeReorder(Analysis):
    """Blocks of the tree mask that hold anything, in the order built, in the heap's, depth first and heavy path first.

    Counted for random trees (each node below any earlier one with equal probability, table 5) and for the trees of
    the run, over a growing prefix (figure 9); one tree's masks are drawn (figures 6 and 7). The order built is
    breadth first, the heap's is that of falling value, in which the paper's builder adds nodes.

    Args:
        block: Rows and columns of a block.
        longest_prefix: Committed tokens before the tree, at most.
        prefix_step: Tokens from one prefix to the next.
        most_trees: Trees of each arm, the first ones larger than a block.
        mask_nodes: The mask drawn is of a tree of this size or as near below it as there is, else of the smallest;
            among those, of the one with the median number of blocks.
        random_trees: Random trees of each size.
        seed: Seed of the random trees.
    """

    name: ClassVar[str] = "tree_reorder"

    def __init__(
        self,
        block: Annotated[int, Field(ge=1)] = _BLOCK_OF_PAPER,
        longest_prefix: Annotated[int, Field(ge=0)] = 1024,
        prefix_step: Annotated[int, Field(ge=1)] = 256,
        most_trees: Annotated[int, Field(ge=1)] = 64,
        mask_nodes: Annotated[int, Field(ge=1)] = 256,
        random_trees: Annotated[int, Field(ge=1)] = 20,
        seed: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        self.block = block
        self.prefixes = range(0, longest_prefix + 1, prefix_step)
        self.most_trees = most_trees
        self.mask_nodes = mask_nodes
        self.random_trees = random_trees
        self.seed = seed
        self.published = block == _BLOCK_OF_PAPER  # other blocks have other counts
        self._budgets: dict[str, int] = {}
        self._trees: dict[str, list[Orders]] = {}

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        drafts = drafting(arms)
        self._budgets = {arm: parts.builder.max_nodes for arm, parts in drafts.items() if parts.builder}
        self._trees = {arm: [] for arm in self._budgets}

    @override
    def observe(self, arm: str, outcome: Outcome) -> None:
        tree = outcome.tree
        if arm not in self._trees or len(self._trees[arm]) >= self.most_trees or tree.num_nodes < self.block:
            return
        shape = TreeShape(tree.shape.parents, tree.shape.ranks)  # without the mask the tree's own shape keeps
        orders = {AS_BUILT: shape}
        if tree.values is not None:
            orders[HEAP] = shape.permute(value_order(tree))
        self._trees[arm].append(orders)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        seen = {arm: [_orders(tree) for tree in trees] for arm, trees in self._trees.items() if trees}
        tables = {f"{self.name}_random": self._random_table()}
        if not seen:
            return Report(tables)
        curves = {arm: self._curves(trees) for arm, trees in seen.items()}
        tables[f"{self.name}_real"] = self._real_table(seen, curves)
        figures = {
            f"{self.name}_masks": self._draw_masks(self._typical(seen)),
            f"{self.name}_prefix": self._draw_curves(curves),
        }
        return Report(tables, figures)

    def _curves(self, trees: Sequence[Orders]) -> Curves:
        return {
            order: np.mean(
                [
                    [block_count(tree[order], self.block, prefix) for prefix in self.prefixes]
                    for tree in trees
                ],
                axis=0,
            )
            for order in trees[0]
        }

    def _typical(self, seen: Mapping[str, Sequence[Orders]]) -> Orders:
        """The tree whose mask is drawn."""
        trees = [tree for of_arm in seen.values() for tree in of_arm]
        sizes = [tree[AS_BUILT].num_nodes for tree in trees]
        wanted = max((size for size in sizes if size <= self.mask_nodes), default=min(sizes))
        alike = [tree for tree, size in zip(trees, sizes, strict=True) if size == wanted]
        return sorted(alike, key=lambda tree: block_count(tree[AS_BUILT], self.block))[len(alike) // 2]

    def _random_table(self) -> Table:
        table = Table(
            f"Blocks of {self.block} of random trees (table 5)",
            columns(
                "rows | unordered, paper:.1 | unordered:.1 | reordered, paper:.1"
                f" | {DEPTH_FIRST}:.1 | {HEAVY_PATH}:.1 | depth-first to paper:.1%"
            ),
            notes=[
                f"Means of {self.random_trees} trees, seed {self.seed}; heavy path is not in the paper's table."
            ],
        )
        for rows, (unordered, reordered) in TABLE_5.items():
            generator = np.random.default_rng([self.seed, rows])
            trees = [_orders({AS_BUILT: random_shape(rows, generator)}) for _ in range(self.random_trees)]
            means = {
                order: float(np.mean([block_count(tree[order], self.block) for tree in trees]))
                for order in trees[0]
            }
            ours = {DEPTH_FIRST: means[DEPTH_FIRST], HEAVY_PATH: means[HEAVY_PATH]}
            theirs: dict[str, Cell] = {}
            if self.published:
                ratio = means[DEPTH_FIRST] / reordered - 1
                theirs = {"unordered, paper": unordered, "reordered, paper": reordered}
                theirs["depth-first to paper"] = ratio
            table.add({"rows": str(rows), "unordered": means[AS_BUILT], **ours, **theirs})
        return table

    def _real_table(self, seen: Mapping[str, Sequence[Orders]], curves: Mapping[str, Curves]) -> Table:
        table = Table(
            f"Blocks of {self.block} of the run's trees, over the tokens before them (figure 9)",
            columns(f"arm | trees | mean nodes:.1 | prefix | {' | '.join(LOOKS)}"),
        )
        for arm, trees in seen.items():
            nodes = float(np.mean([tree[AS_BUILT].num_nodes for tree in trees]))
            for number, prefix in enumerate(self.prefixes):
                counts = {order: float(blocks[number]) for order, blocks in curves[arm].items()}
                table.add({"arm": arm, "trees": len(trees), "mean nodes": nodes, "prefix": prefix, **counts})
        if self.published:
            for size, (before, after) in FIGURE_9.items():
                row: dict[str, Cell] = {"arm": "paper (not run here)", "mean nodes": float(size)}
                table.add({**row, HEAP: before, DEPTH_FIRST: after})
            table.notes.append("The paper does not state the prefix of its figures, nor its order in detail.")
        return table

    def _draw_masks(self, tree: Orders) -> Figure:
        size = tree[AS_BUILT].parents.size
        title = (
            f"The mask of one tree of {size - 1} nodes; shaded: blocks of {self.block} that must be computed"
        )
        figure, [panels] = new_figure(3.3 * len(tree), 3.8, title, 1, len(tree), dpi=150)
        colours = ListedColormap(["white", "#dbe6ee", BLUE])
        for axes, (order, shape) in zip(panels, tree.items(), strict=True):
            mask = shape.ancestor_mask
            blocks = -(-size // self.block)
            padded = np.zeros((blocks * self.block,) * 2, dtype=np.bool_)
            padded[:size, :size] = mask
            full = padded.reshape(blocks, self.block, blocks, self.block).any(axis=(1, 3))
            shaded = np.kron(full, np.ones((self.block, self.block)))[:size, :size]
            shown = np.where(mask, 2, shaded)
            axes.imshow(shown, cmap=colours, vmin=0, vmax=2, interpolation="nearest")
            axes.spines[["top", "right"]].set_visible(True)  # the edge of the mask
            axes.set_title(f"{order}: {int(full.sum())} blocks", fontsize=10, color=INK)
            axes.set_xlabel("key (row of the tree)", fontsize=8)
        panels[0].set_ylabel("query (row of the tree)", fontsize=8)
        return figure

    def _draw_curves(self, curves: Mapping[str, Curves]) -> Figure:
        title = f"Blocks of {self.block} that must be computed, over the tokens before the tree"
        if any(self._budgets[arm] in FIGURE_9 for arm in curves):
            title += " (dotted: the paper's, prefix not stated)"
        figure, [panels] = new_figure(max(3.6 * len(curves), 5.2), 4.2, title, 1, len(curves))
        white = {"fc": "white", "ec": "none", "pad": 1}
        beside: dict[str, Any] = {"ha": "right", "va": "center", "zorder": 5, "bbox": white}
        for axes, (arm, orders) in zip(panels, curves.items(), strict=True):
            for order, counts in orders.items():
                axes.plot(self.prefixes, counts, ms=4, label=order, **LOOKS[order])
            published = FIGURE_9.get(self._budgets[arm]) if self.published else None
            for count, colour in zip(published or (), (GREY, BLUE), strict=False):
                axes.axhline(count, color=colour, lw=0.9, ls=":")
                axes.text(self.prefixes[-1], count, f"paper {count}", fontsize=8, color=INK, **beside)
            axes.set_title(arm, fontsize=9, color=INK)
            axes.set_xlabel("prefix (tokens)", fontsize=9)
            axes.set_ylim(bottom=0)
            rule(axes)
        panels[0].set_ylabel("non-zero blocks", fontsize=9)
        found = [axes.get_legend_handles_labels() for axes in panels]
        handles, labels = max(found, key=lambda one: len(one[1]))
        legend_below(figure, len(labels), handles, labels)
        return figure


def _orders(tree: Orders) -> Orders:
    """The orders given, and those made from the first."""
    shape = tree[AS_BUILT]
    made: dict[str, TokenOrder] = {DEPTH_FIRST: "depth-first", HEAVY_PATH: "heavy-path"}
    return {**tree, **{name: shape.permute(order_of(shape, order)) for name, order in made.items()}}
