"""Orders of a tree's rows with fewer non-empty blocks in its attention mask, and attention over these blocks only
(Xiong et al. 2024, appendix C, table 5 and figures 8 and 9).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import Any, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.shared import DraftingAnalysis, label, report_of, table_of
from specexp.bench.analysis import Analysis
from specexp.bench.pictures import BLUE, GREY, INK, legend_below, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import MEASURED, PromptRecord
from specexp.bench.statistics import Speedup
from specexp.bench.table import Cell, Table
from specexp.core.outcome import Outcome
from specexp.core.parts import Parts
from specexp.core.tree import TokenTree, TreeShape

AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH = "as built", "heap order", "depth-first", "heavy path"
TABLE_5 = {256: (36.0, 22.5), 512: (135.5, 52.8), 1024: (490.2, 119.3), 2048: (1654.5, 278.7)}
"""Published numbers of blocks of random trees, before and after reordering, by number of rows."""
FIGURE_9 = {768: (366.12, 218.31), 1024: (580.07, 295.59)}
"""Published numbers of blocks of real trees, before and after reordering, by nodes; for an unstated prefix length."""
BLOCK_OF_PAPER = 32

Orders = dict[str, TreeShape]  # a tree in several orders, by name


def value_order(tree: TokenTree) -> tuple[int, ...]:
    """Return the rows by decreasing value, parents before children: the order in which DySpec's heap adds them."""
    assert tree.values is not None
    values = tree.values.copy()
    for row, parent in enumerate(tree.shape.parents.tolist()[1:], start=1):
        values[row] = min(values[row], values[parent])  # rounding must not put a child before its parent
    return tuple(np.argsort(-values, kind="stable").tolist())


def heavy_path(shape: TreeShape) -> tuple[int, ...]:
    """Return the rows depth first, at each row the largest subtree first (heavy path decomposition, Sleator & Tarjan
    1981).
    """
    sizes = np.ones(shape.parents.size, dtype=np.int64)
    for row in range(sizes.size - 1, 0, -1):  # children follow their parents
        sizes[shape.parents[row]] += sizes[row]
    order, waiting = [], [0]
    while waiting:
        order.append(row := waiting.pop())
        waiting += sorted(shape.children[row], key=lambda child: int(sizes[child]))  # the last is taken next
    return tuple(order)


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


def random_shape(rows: int, generator: np.random.Generator) -> TreeShape:
    """Return a random tree of ``rows`` rows: each node's parent is any earlier row with equal probability."""
    parents = [-1, *generator.integers(0, np.arange(1, rows)).tolist()]
    children = [0] * rows
    ranks = [-1]
    for parent in parents[1:]:
        ranks.append(children[parent])
        children[parent] += 1
    return TreeShape(parents, ranks)


class TreeReorder(DraftingAnalysis[list[Orders]]):
    """Non-empty blocks of the tree mask in four orders of the rows: breadth-first (as built), heap, depth-first
    and heavy-path.

    The trees are random (table 5), or the run's trees after prefixes of several lengths (figure 9).
    """

    name: ClassVar[str] = "tree_reorder"
    block = BLOCK_OF_PAPER
    prefixes: Sequence[int] = range(0, 1025, 256)  # committed tokens before the tree
    most_trees, random_trees = 64, 20
    """Number of trees of each arm (its first ones larger than a block), and of random trees of each size."""

    @override
    def watch(self, arm: str, state: list[Orders], outcome: Outcome) -> None:
        tree = outcome.tree
        if len(state) >= self.most_trees or tree.num_nodes < self.block:
            return
        shape = TreeShape(tree.shape.parents, tree.shape.ranks)  # without the cached mask
        orders = {AS_BUILT: shape, DEPTH_FIRST: permuted(shape, shape.depth_first)}
        orders[HEAVY_PATH] = permuted(shape, heavy_path(shape))
        if tree.values is not None:
            orders[HEAP] = permuted(shape, value_order(tree))
        state.append(orders)

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        seen = {arm: trees for arm, trees in self.states.items() if trees}
        tables = {f"{self.name}_random": self._random_table()}
        if seen:
            tables[f"{self.name}_real"] = self._real_table(seen)
        return Report(tables)

    def _random_table(self) -> Table:
        table = table_of(
            f"Blocks of {self.block} of random trees (table 5)",
            "rows | unordered, paper:.1 | unordered:.1 | reordered, paper:.1 | depth-first:.1"
            " | depth-first to paper:.1%",
            f"Means of {self.random_trees} trees, seed 0.",
        )
        for rows, published in TABLE_5.items():
            generator = np.random.default_rng([0, rows])
            trees = [random_shape(rows, generator) for _ in range(self.random_trees)]
            orders = (trees, [permuted(tree, tree.depth_first) for tree in trees])
            built, depth_first = (self._mean_blocks(shapes) for shapes in orders)
            before, after = published if self.block == BLOCK_OF_PAPER else (None, None)
            gap = None if after is None else depth_first / after - 1
            table.rows.append([str(rows), before, built, after, depth_first, gap])
        return table

    def _mean_blocks(self, shapes: Sequence[TreeShape], prefix: int = 0) -> float:
        return float(np.mean([block_count(shape, self.block, prefix) for shape in shapes]))

    def _real_table(self, seen: Mapping[str, Sequence[Orders]]) -> Table:
        title = f"Blocks of {self.block} of the run's trees, by number of tokens before them (figure 9)"
        heads = " | ".join((AS_BUILT, HEAP, DEPTH_FIRST, HEAVY_PATH))
        table = table_of(title, f"arm | trees | mean nodes:.1 | prefix | {heads}")
        for arm, trees in seen.items():
            nodes = float(np.mean([tree[AS_BUILT].num_nodes for tree in trees]))
            for prefix in self.prefixes:
                row: dict[str, Cell] = {
                    "arm": arm,
                    "trees": len(trees),
                    "mean nodes": nodes,
                    "prefix": prefix,
                }
                blocks = {o: self._mean_blocks([tree[o] for tree in trees], prefix) for o in trees[0]}
                table.add({**row, **blocks})
        if self.block == BLOCK_OF_PAPER:
            for size, (before, after) in FIGURE_9.items():
                paper: dict[str, Cell] = {"arm": "paper (not run here)", "mean nodes": float(size)}
                table.add({**paper, HEAP: before, DEPTH_FIRST: after})
            table.notes.append(
                "The paper states neither the prefix length of its figures nor the details of its order."
            )
        return table


PUBLISHED = {256: 0.07548 / 0.05406, 512: 0.21317 / 0.11364, 1024: 0.63368 / 0.31801, 2048: 2.27148 / 1.02645}
"""Time of the paper's kernel with unordered rows over its time with reordered rows, by number of rows."""


class BlockMask:
    """An attention mask cut into square blocks, without the empty blocks.

    Args:
        visible: ``[rows, keys]`` bool, true where a row sees a key; every row sees at least one.
        block: Side of a block, in rows and in keys.

    Attributes:
        blocks: Number of non-empty blocks.
    """

    def __init__(self, visible: torch.Tensor, block: int = 32) -> None:
        self.blocks = 0
        self._parts: list[tuple[slice, torch.Tensor, torch.Tensor]] = []
        keys = torch.arange(visible.shape[1])
        for start in range(0, visible.shape[0], block):
            rows = slice(start, min(start + block, visible.shape[0]))
            full = torch.zeros(-(-keys.numel() // block), dtype=torch.bool)
            full[keys[visible[rows].any(dim=0)] // block] = True
            self.blocks += int(full.sum())
            chosen = keys[full[keys // block]]
            hidden = torch.zeros(visible[rows].shape[0], chosen.numel())
            self._parts.append((rows, chosen, hidden.masked_fill_(~visible[rows][:, chosen], -torch.inf)))

    def attention(self, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """Return ``softmax(q k^T / sqrt(d) + mask) v`` ``[heads, rows, head_dim]``, without reading empty blocks.
        ``keys`` and ``values`` are ``[heads, keys, head_dim]``.

        Example:
            >>> mask = BlockMask(torch.ones(2, 2, dtype=torch.bool).tril(), block=1)
            >>> mask.blocks
            3
        """
        given = torch.empty_like(queries)
        scale = queries.shape[-1] ** -0.5
        for rows, chosen, hidden in self._parts:
            # [heads, block, chosen keys]
            scores = queries[:, rows] @ keys[:, chosen].transpose(1, 2) * scale + hidden.to(queries.dtype)
            given[:, rows] = scores.softmax(dim=-1) @ values[:, chosen]
        return given


def median_times(ways: Sequence[Callable[..., torch.Tensor]], tensors: Any, repeats: int) -> list[float]:
    """Return the median milliseconds of each way; the ways alternate, and the first round is a warm-up."""
    taken: list[list[float]] = [[] for _ in ways]
    for turn in range(repeats + 1):
        for way, found in zip(ways, taken, strict=True):
            started = perf_counter()
            way(*tensors)
            found += [1e3 * (perf_counter() - started)] if turn else []  # the first turn warms up
    return [median(found) for found in taken]


class TreeAttention(TreeReorder):
    """Time of one layer's attention over the run's trees, in heap order over depth-first order (figures 6 to 9).

    The interval is a bootstrap over the trees.
    """

    name: ClassVar[str] = "tree_attention"
    needs_models: ClassVar[bool] = True
    heads, head_dim, repeats = 8, 128, 5
    most_trees = 16

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        heads = f"arm | prefix | trees | {HEAP} over {DEPTH_FIRST}:interval"
        table = table_of(f"Time of attention over blocks of {self.block} of the run's trees", heads)
        for arm, trees in self.states.items():
            for prefix in self.prefixes if trees and HEAP in trees[0] else ():
                logs = np.array([self._log_ratio(tree, prefix) for tree in trees])
                table.rows.append([arm, prefix, len(trees), Speedup.of(DEPTH_FIRST, HEAP, logs, MEASURED)])
        return report_of(self, table)

    def _log_ratio(self, tree: Orders, prefix: int) -> float:
        size = tree[HEAP].parents.size
        committed = torch.ones(size, prefix, dtype=torch.bool)
        shapes = (torch.from_numpy(tree[order].ancestor_mask) for order in (HEAP, DEPTH_FIRST))
        masks = [BlockMask(torch.cat([committed, mask], dim=1), self.block) for mask in shapes]
        keys = torch.randn(
            2, self.heads, prefix + size, self.head_dim, generator=torch.Generator().manual_seed(0)
        )
        heap, depth_first = median_times(
            [mask.attention for mask in masks], (keys[0, :, :size], *keys), self.repeats
        )
        return float(np.log(heap / depth_first))


class BlockAttention(Analysis):
    """Milliseconds of one layer's attention over random trees on the CPU: by blocks in two orders, and unblocked."""

    name: ClassVar[str] = "block_attention"
    needs_models: ClassVar[bool] = True
    rows: Sequence[int] = (256, 512, 1024, 2048)
    heads, head_dim, block = 8, 128, 32
    trees, repeats = 5, 5  # random trees of each size; timed runs of each tree, reduced to their median

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        return None

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = table_of(
            f"Attention over blocks of {self.block} of random trees (table 5, figure 8)",
            "rows | blocks, unordered:.1 | blocks, depth-first:.1 | unordered:.3 ms | depth-first:.3 ms"
            " | whole mask:.3 ms | unordered over depth-first:.2x | published:.2x",
            f"{self.heads} heads of {self.head_dim} numbers, float32, threads: {torch.get_num_threads()}; means of "
            f"{self.trees} trees, medians of {self.repeats} repeats. Published: the paper's kernel, 64 heads.",
        )
        every = []
        for rows in self.rows:
            counts, times = self._measured(rows)
            table.rows.append([str(rows), *counts, *times, times[0] / times[1], PUBLISHED.get(rows)])
            every.append(times)
        return report_of(self, table, self._draw(table.title, every))

    def _measured(self, rows: int) -> tuple[list[float], list[float]]:
        """Return the mean blocks in both orders, and the mean milliseconds of both orders and of the whole mask."""
        draws = np.random.default_rng([0, rows])
        size = (3, self.heads, rows, self.head_dim)
        tensors = torch.randn(size, generator=torch.Generator().manual_seed(0))
        counts, times = [], []
        for _ in range(self.trees):
            made = random_shape(rows, draws)
            shapes = made, permuted(made, made.depth_first)
            visible = [torch.from_numpy(shape.ancestor_mask) for shape in shapes]
            masks = [BlockMask(one, self.block) for one in visible]
            whole = torch.zeros(rows, rows).masked_fill_(~visible[0], -torch.inf)
            dense = partial(torch.nn.functional.scaled_dot_product_attention, attn_mask=whole)
            counts.append([mask.blocks for mask in masks])
            times.append(median_times([*(mask.attention for mask in masks), dense], tensors, self.repeats))
        return np.mean(counts, axis=0).tolist(), np.mean(times, axis=0).tolist()

    def _draw(self, title: str, times: Sequence[Sequence[float]]) -> Figure:
        figure, [[axes]] = new_figure(6, 4, title)
        looks = (("unordered", GREY, "s"), ("depth-first", BLUE, "o"), ("whole mask", INK, "^"))
        for (name, colour, marker), own in zip(looks, zip(*times, strict=True), strict=True):
            axes.plot(self.rows, own, color=colour, marker=marker, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(self.rows, labels=map(str, self.rows))
        label(axes, "rows of the tree", "ms of one layer's attention", grid="y")
        legend_below(figure, len(looks), *axes.get_legend_handles_labels())
        return figure
