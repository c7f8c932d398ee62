"""What the order of a tree's rows saves attention over blocks in time (Xiong et al. 2024, table 5 and figure 8)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import median
from time import perf_counter
from typing import Annotated, ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from pydantic import Field
from typing_extensions import override

from experiments.papers.dyspec.token_order import order_of, random_shape
from specexp.bench.analysis import Analysis
from specexp.bench.pictures import BLUE, GREY, INK, legend_below, new_figure, rule
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.bench.table import Table, columns
from specexp.core.parts import Parts
from specexp.core.tree import TreeShape
from specexp.models.block_attention import BlockMask

PUBLISHED = {256: 0.07548 / 0.05406, 512: 0.21317 / 0.11364, 1024: 0.63368 / 0.31801, 2048: 2.27148 / 1.02645}
"""Of the paper's kernel the time unordered over that reordered, by rows."""


class BlockAttention(Analysis):
    """Milliseconds of attention over random trees, by blocks in the order made and depth first, and with a whole mask.

    It is a reference on the CPU, of one layer: no model's pass uses it, for the dense product over a tree of some tens
    of nodes is cheaper than cutting its mask; a kernel for larger trees on a GPU is held to it. The three take turns.

    Args:
        rows: Sizes of trees.
        heads: Of attention; the paper's 64 take eight times as long.
        head_dim: Numbers of a head.
        block: Rows and columns of a block.
        trees: Random trees of each size.
        repeats: Times that each is timed; the median counts.
        seed: Seed of the trees and of queries, keys and values.
    """

    name: ClassVar[str] = "block_attention"
    needs_models: ClassVar[bool] = True

    def __init__(
        self,
        rows: Sequence[Annotated[int, Field(ge=2)]] = (256, 512, 1024, 2048),
        heads: Annotated[int, Field(ge=1)] = 8,
        head_dim: Annotated[int, Field(ge=1)] = 128,
        block: Annotated[int, Field(ge=1)] = 32,
        trees: Annotated[int, Field(ge=1)] = 5,
        repeats: Annotated[int, Field(ge=1)] = 5,
        seed: Annotated[int, Field(ge=0)] = 0,
    ) -> None:
        self.rows = list(rows)
        self.heads, self.head_dim, self.block = heads, head_dim, block
        self.trees, self.repeats, self.seed = trees, repeats, seed

    @override
    def begin(self, arms: Mapping[str, Parts]) -> None:
        return None

    @override
    def report(self, records: Sequence[PromptRecord]) -> Report:
        table = Table(
            f"Attention over blocks of {self.block} of random trees (table 5, figure 8)",
            columns(
                "rows | blocks, unordered:.1 | blocks, depth-first:.1 | unordered:.3 ms | depth-first:.3 ms"
                " | whole mask:.3 ms | unordered over depth-first:.2x | published:.2x"
            ),
            notes=[
                f"{self.heads} heads of {self.head_dim} numbers, float32, threads: {torch.get_num_threads()}; means of "
                f"{self.trees} trees, medians of {self.repeats} turns. Published: the paper's kernel, 64 heads."
            ],
        )
        for rows in self.rows:
            counts, times = self._measured(rows)
            table.rows.append([str(rows), *counts, *times, times[0] / times[1], PUBLISHED.get(rows)])
        return Report({self.name: table}, {self.name: self._draw(table)})

    def _measured(self, rows: int) -> tuple[list[float], list[float]]:
        """Blocks in both orders, and milliseconds of both and of the whole mask; means over trees."""
        draws = np.random.default_rng([self.seed, rows])
        generator = torch.Generator().manual_seed(self.seed)
        size = (3, self.heads, rows, self.head_dim)
        queries, keys, values = torch.randn(size, generator=generator)
        counts, times = [], []
        for _ in range(self.trees):
            made = random_shape(rows, draws)
            masks = [
                BlockMask(_visible(shape), self.block)
                for shape in (made, made.permute(order_of(made, "depth-first")))
            ]
            whole = torch.zeros(rows, rows).masked_fill_(~_visible(made), -torch.inf)

            def by_blocks(mask: BlockMask) -> Callable[[], torch.Tensor]:
                return lambda: mask.attention(queries, keys, values)

            def densely(hidden: torch.Tensor = whole) -> torch.Tensor:
                return torch.nn.functional.scaled_dot_product_attention(
                    queries, keys, values, attn_mask=hidden
                )

            counts.append([mask.blocks for mask in masks])
            times.append(self._turns([*map(by_blocks, masks), densely]))
        return np.mean(counts, axis=0).tolist(), np.mean(times, axis=0).tolist()

    def _turns(self, ways: Sequence[Callable[[], torch.Tensor]]) -> list[float]:
        """Median milliseconds of each, taken in turns, after a first turn that does not count."""
        taken: list[list[float]] = [[] for _ in ways]
        for turn in range(self.repeats + 1):
            for way, found in zip(ways, taken, strict=True):
                started = perf_counter()
                way()
                found += [1e3 * (perf_counter() - started)] if turn else []
        return [median(found) for found in taken]

    def _draw(self, table: Table) -> Figure:
        figure, [[axes]] = new_figure(6, 4, table.title)
        styles = {"unordered": (GREY, "s"), "depth-first": (BLUE, "o"), "whole mask": (INK, "^")}
        titles = [column.title for column in table.columns]
        for name, (colour, marker) in styles.items():
            at = titles.index(name)
            times = np.array([row[at] for row in table.rows], dtype=np.float64)
            axes.plot(self.rows, times, color=colour, marker=marker, label=name)
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xticks(self.rows, labels=map(str, self.rows))
        axes.set_xlabel("rows of the tree")
        axes.set_ylabel("ms of one layer's attention")
        rule(axes)
        legend_below(figure, len(styles), *axes.get_legend_handles_labels())
        return figure


def _visible(shape: TreeShape) -> torch.Tensor:
    return torch.from_numpy(shape.ancestor_mask)
