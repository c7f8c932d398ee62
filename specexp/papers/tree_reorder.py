"""What an order of the rows saves a block-sparse attention kernel (Xiong et al. 2024, appendix C)."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, ClassVar

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from specexp.bench.analysis import Analysis, drafting
from specexp.bench.publish import Report
from specexp.core.tree import TreeShape
from specexp.papers.token_order import block_count, random_shape, reorder, value_order

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table
    from specexp.core.outcome import Outcome
    from specexp.core.parts import Parts

AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH = "as built", "heap order", "depth-first", "heavy path"
TABLE_5 = {256: (36.0, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
"""Published blocks of random trees, before and after reordering, by rows."""
FIGURE_9 = {768: (366.12, 218.31), 1024: (580.07, 295.59)}
"""Published blocks of real trees, before and after reordering, by nodes; the length of the prefix is not stated."""
_BLOCK_OF_PAPER = 32


class TreeReorder(Analysis):
    """Blocks of the tree mask that hold anything, in the order built, in the heap's, depth first and heavy path first.

    Counted for random trees (each node below any earlier one with equal probability, table 5) and for the trees of
    the run, over a growing prefix (figure 9); one tree's masks are drawn (figures 6 and 7). The order built is
    breadth first, the heap's is that of falling value, in which the paper's builder adds nodes.

    Args:
        block: rows and columns of a block.
        longest_prefix: committed tokens before the tree, at most.
        prefix_step: from one prefix to the next.
        most_trees: trees of each arm, the first ones larger than a block.
        mask_nodes: the mask drawn is of a tree of this size or as near below it as there is, else of the smallest;
            among those, of the one with the median number of blocks.
        random_trees: random trees of each size.
        seed: of the random trees.
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
        self.longest_prefix = longest_prefix
        self.prefix_step = prefix_step
        self.most_trees = most_trees
        self.mask_nodes = mask_nodes
        self.random_trees = random_trees
        self.seed = seed
        self._budgets: dict[str, int] = {}
        self._trees: dict[str, list[dict[str, TreeShape]]] = {}

    def begin(self, arms: "Mapping[str, Parts]") -> None:
        """Forget the trees."""
        self._budgets = {
            arm: strategy.builder.max_nodes for arm, strategy in drafting(arms).items() if strategy.builder
        }
        self._trees = {arm: [] for arm in self._budgets}

    def observe(self, arm: str, outcome: "Outcome") -> None:
        """Keep the shape of the tree, in its own order and in the heap's."""
        tree = outcome.tree
        if arm not in self._trees or len(self._trees[arm]) >= self.most_trees or tree.num_nodes < self.block:
            return
        shape = TreeShape(tree.shape.parents, tree.shape.ranks)  # without the mask the tree's own shape keeps
        orders = {AS_BUILT: shape}
        if tree.values is not None:
            orders[HEAP] = shape.permute(value_order(tree))
        self._trees[arm].append(orders)

    def report(self, records: "Sequence[PromptRecord]") -> Report:
        """Two tables, and pictures if the run had trees larger than a block."""
        seen = {arm: [_orders(tree) for tree in trees] for arm, trees in self._trees.items() if trees}
        tables = {f"{self.name}_random": self._random_table()}
        if not seen:
            return Report(tables)
        prefixes = range(0, self.longest_prefix + 1, self.prefix_step)
        curves = {arm: self._curves(trees, prefixes) for arm, trees in seen.items()}
        tables[f"{self.name}_real"] = self._real_table(seen, curves, prefixes)
        figures = {
            f"{self.name}_masks": self._draw_masks(self._typical(seen)),
            f"{self.name}_prefix": self._draw_curves(curves, prefixes),
        }
        return Report(tables, figures)

    def _curves(
        self, trees: Sequence[Mapping[str, TreeShape]], prefixes: Sequence[int]
    ) -> dict[str, NDArray[np.float64]]:
        """Of each order the mean blocks at every prefix."""
        return {
            order: np.mean(
                [[block_count(tree[order], self.block, prefix) for prefix in prefixes] for tree in trees],
                axis=0,
            )
            for order in trees[0]
        }

    def _typical(self, seen: Mapping[str, Sequence[Mapping[str, TreeShape]]]) -> Mapping[str, TreeShape]:
        """The tree whose mask is drawn."""
        trees = [tree for of_arm in seen.values() for tree in of_arm]
        sizes = [tree[AS_BUILT].num_nodes for tree in trees]
        wanted = max((size for size in sizes if size <= self.mask_nodes), default=min(sizes))
        alike = [tree for tree, size in zip(trees, sizes, strict=True) if size == wanted]
        return sorted(alike, key=lambda tree: block_count(tree[AS_BUILT], self.block))[len(alike) // 2]

    def _random_table(self) -> "Table":
        from specexp.bench.table import Cell, Column, Table

        titles = (
            "unordered, paper",
            "unordered",
            "reordered, paper",
            DEPTH_FIRST,
            HEAVY_PATH,
            "depth-first to paper",
        )
        table = Table(
            f"Blocks of {self.block} of random trees (table 5)",
            [Column("rows"), *(Column(title, 1) for title in titles[:-1]), Column(titles[-1], 1, "%")],
            notes=[
                f"Means of {self.random_trees} trees, seed {self.seed}; heavy path is not in the paper's table."
            ],
        )
        for rows, (unordered, reordered) in TABLE_5.items():
            generator = np.random.default_rng([self.seed, rows])
            trees = [_orders({AS_BUILT: random_shape(rows, generator)}) for _ in range(self.random_trees)]
            built, depth_first, heavy = (
                float(np.mean([block_count(tree[order], self.block) for tree in trees]))
                for order in (AS_BUILT, DEPTH_FIRST, HEAVY_PATH)
            )
            published: list[Cell] = [unordered, reordered] if self.block == _BLOCK_OF_PAPER else [None, None]
            ratio = depth_first / reordered - 1 if self.block == _BLOCK_OF_PAPER else None
            table.rows.append([str(rows), published[0], built, published[1], depth_first, heavy, ratio])
        return table

    def _real_table(
        self,
        seen: Mapping[str, Sequence[Mapping[str, TreeShape]]],
        curves: Mapping[str, Mapping[str, NDArray[np.float64]]],
        prefixes: Sequence[int],
    ) -> "Table":
        from specexp.bench.table import Column, Table

        orders = (AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH)
        table = Table(
            f"Blocks of {self.block} of the run's trees, over the tokens before them (figure 9)",
            [
                Column("arm"),
                Column("trees"),
                Column("mean nodes", 1),
                Column("prefix"),
                *(Column(o, 2) for o in orders),
            ],
        )
        for arm, trees in seen.items():
            nodes = float(np.mean([tree[AS_BUILT].num_nodes for tree in trees]))
            for number, prefix in enumerate(prefixes):
                counts = [curves[arm][order][number] if order in curves[arm] else None for order in orders]
                cells = [None if count is None else float(count) for count in counts]
                table.rows.append([arm, len(trees), nodes, prefix, *cells])
        if self.block == _BLOCK_OF_PAPER:
            for size, (before, after) in FIGURE_9.items():
                table.rows.append(
                    ["paper (not run here)", None, float(size), None, None, before, after, None]
                )
            table.notes.append("The paper does not state the prefix of its figures, nor its order in detail.")
        return table

    def _draw_masks(self, tree: Mapping[str, TreeShape]) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.colors import ListedColormap
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, INK

        figure = Figure(figsize=(3.3 * len(tree), 3.8), dpi=150, layout="constrained")
        FigureCanvasAgg(figure)
        size = tree[AS_BUILT].parents.size
        title = (
            f"The mask of one tree of {size - 1} nodes; shaded: blocks of {self.block} that must be computed"
        )
        figure.suptitle(title, fontsize=11, color=INK)
        for axes, (order, shape) in zip(
            figure.subplots(1, len(tree), squeeze=False)[0], tree.items(), strict=True
        ):
            mask = shape.ancestor_mask
            blocks = -(-size // self.block)
            padded = np.zeros((blocks * self.block,) * 2, dtype=np.bool_)
            padded[:size, :size] = mask
            full = padded.reshape(blocks, self.block, blocks, self.block).any(axis=(1, 3))
            shaded = np.kron(full, np.ones((self.block, self.block)))[:size, :size]
            axes.imshow(
                np.where(mask, 2, shaded),
                cmap=ListedColormap(["white", "#dbe6ee", BLUE]),
                vmin=0,
                vmax=2,
                interpolation="nearest",
            )
            axes.set_title(f"{order}: {int(full.sum())} blocks", fontsize=10, color=INK)
            axes.set_xlabel("key (row of the tree)", fontsize=8)
            axes.tick_params(labelsize=7, colors=INK)
        figure.axes[0].set_ylabel("query (row of the tree)", fontsize=8)
        return figure

    def _draw_curves(
        self, curves: Mapping[str, Mapping[str, NDArray[np.float64]]], prefixes: Sequence[int]
    ) -> "Figure":
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

        from specexp.bench.pictures import BLUE, GREY, INK, ORANGE

        styles = {
            AS_BUILT: (INK, "o", "-"),
            HEAP: (GREY, "s", "-"),
            DEPTH_FIRST: (BLUE, "o", "-"),
            HEAVY_PATH: (ORANGE, "^", "--"),
        }
        figure = Figure(figsize=(max(3.6 * len(curves), 5.2), 4.2), dpi=130, layout="constrained")
        FigureCanvasAgg(figure)
        title = f"Blocks of {self.block} that must be computed, over the tokens before the tree"
        if any(self._budgets[arm] in FIGURE_9 for arm in curves):
            title += " (dotted: the paper's, prefix not stated)"
        figure.suptitle(title, fontsize=11, color=INK)
        panels = figure.subplots(1, len(curves), squeeze=False)[0]
        for axes, (arm, orders) in zip(panels, curves.items(), strict=True):
            for order, counts in orders.items():
                colour, marker, line = styles[order]
                axes.plot(prefixes, counts, color=colour, marker=marker, ls=line, ms=4, label=order)
            published = FIGURE_9.get(self._budgets[arm]) if self.block == _BLOCK_OF_PAPER else None
            for count, colour in zip(published or (), (GREY, BLUE), strict=False):
                axes.axhline(count, color=colour, lw=0.9, ls=":")
                where = {
                    "ha": "right",
                    "va": "center",
                    "zorder": 5,
                    "bbox": {"fc": "white", "ec": "none", "pad": 1},
                }
                axes.text(self.longest_prefix, count, f"paper {count}", fontsize=8, color=INK, **where)
            axes.set_title(arm, fontsize=9, color=INK)
            axes.set_xlabel("prefix (tokens)", fontsize=9)
            axes.set_ylim(bottom=0)
            axes.tick_params(labelsize=8, colors=INK)
            axes.spines[["top", "right"]].set_visible(False)
            axes.grid(axis="y", color="#e3e8ec", lw=0.7)
        panels[0].set_ylabel("non-zero blocks", fontsize=9)
        handles, labels = max(
            (axes.get_legend_handles_labels() for axes in panels), key=lambda found: len(found[1])
        )
        figure.legend(
            handles, labels, loc="outside lower center", ncols=len(labels), fontsize=8, frameon=False
        )
        return figure


def _orders(tree: Mapping[str, TreeShape]) -> dict[str, TreeShape]:
    """The orders given, and those made from the first."""
    shape = tree[AS_BUILT]
    return {**tree, DEPTH_FIRST: reorder(shape, "depth-first"), HEAVY_PATH: reorder(shape, "heavy-path")}
