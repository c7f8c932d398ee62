"""Attention over the non-empty blocks of a tree's mask, and its time by row order (Xiong et al. 2024, table 5 and
figure 8).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from statistics import median
from time import perf_counter
from typing import ClassVar

import numpy as np
import torch
from matplotlib.figure import Figure
from typing_extensions import override

from experiments.papers.dyspec.token_order import permuted, random_shape
from experiments.papers.shared import label, report_of, table_of
from specexp.bench.analysis import Analysis
from specexp.bench.pictures import BLUE, GREY, INK, legend_below, new_figure
from specexp.bench.publish import Report
from specexp.bench.record import PromptRecord
from specexp.core.parts import Parts

PUBLISHED = {256: 0.07548 / 0.05406, 512: 0.21317 / 0.11364, 1024: 0.63368 / 0.31801, 2048: 2.27148 / 1.02645}
"""Time of the paper's kernel unordered over that reordered, by rows."""


class BlockMask:
    """A mask cut into square blocks, of which the empty ones are left out.

    Args:
        visible: ``[rows, keys]`` bool, true where a row sees a key; every row sees at least one.
        block: Rows and keys of a block.

    Attributes:
        blocks: Non-empty blocks.
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
        """``softmax(q k^T / sqrt(d) + mask) v`` ``[heads, rows, head_dim]``, without reading empty blocks; keys and
        values are ``[heads, keys, head_dim]``.

        Example:
            >>> mask = BlockMask(torch.ones(2, 2, dtype=torch.bool).tril(), block=1)
            >>> mask.blocks
            3
        """
        given = torch.empty_like(queries)
        scale = queries.shape[-1] ** -0.5
        for rows, chosen, hidden in self._parts:
            scores = queries[:, rows] @ keys[:, chosen].transpose(1, 2) * scale + hidden.to(queries.dtype)
            given[:, rows] = scores.softmax(dim=-1) @ values[:, chosen]
        return given


class BlockAttention(Analysis):
    """Milliseconds of one layer's attention over random trees on the CPU: by blocks in both orders, and unblocked."""

    name: ClassVar[str] = "block_attention"
    needs_models: ClassVar[bool] = True
    rows: Sequence[int] = (256, 512, 1024, 2048)
    heads, head_dim, block = 8, 128, 32
    trees, repeats = 5, 5
    """Random trees of each size, and turns of which the median counts."""

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
            f"{self.trees} trees, medians of {self.repeats} turns. Published: the paper's kernel, 64 heads.",
        )
        every = []
        for rows in self.rows:
            counts, times = self._measured(rows)
            table.rows.append([str(rows), *counts, *times, times[0] / times[1], PUBLISHED.get(rows)])
            every.append(times)
        return report_of(self, table, self._draw(table.title, every))

    def _measured(self, rows: int) -> tuple[list[float], list[float]]:
        """Blocks in both orders, and milliseconds of both and of the whole mask; means over trees."""
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
            times.append(self._turns([*(mask.attention for mask in masks), dense], tensors))
        return np.mean(counts, axis=0).tolist(), np.mean(times, axis=0).tolist()

    def _turns(self, ways: Sequence[Callable[..., torch.Tensor]], tensors: torch.Tensor) -> list[float]:
        """Median milliseconds of each, taken in turns, after a first turn that does not count."""
        taken: list[list[float]] = [[] for _ in ways]
        for turn in range(self.repeats + 1):
            for way, found in zip(ways, taken, strict=True):
                started = perf_counter()
                way(*tensors)
                found += [1e3 * (perf_counter() - started)] if turn else []
        return [median(found) for found in taken]

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
