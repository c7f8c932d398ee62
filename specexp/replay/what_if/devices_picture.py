"""Best trees of several devices beside each other, and what every budget is worth on each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import cycle
from textwrap import fill
from typing import TYPE_CHECKING

import numpy as np
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.ticker import MaxNLocator

from specexp.bench.pictures import BLUE, GREEN, INK, ORANGE, SAND, VIOLET, bare_figure, plain
from specexp.bench.tree_picture import draw_edges, draw_nodes, lay_out
from specexp.core.messages import counted
from specexp.core.tree import RankPath, TreeShape

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from specexp.replay.what_if.devices import Comparison

COLOURS = (BLUE, SAND, GREEN, VIOLET, ORANGE, INK)
WIDEST = 20.0
"""Inches of a row of trees."""


@dataclass(frozen=True)
class Panel:
    """One tree of the picture.

    Attributes:
        shape: The tree.
        title: Heading above it.
        facts: Lines below the title.
    """

    shape: TreeShape
    title: str
    facts: str


def draw_trees(panels: list[Panel], hit_rates: Mapping[RankPath, float], title: str) -> Figure:
    """Draw trees at one scale, side by side as far as a row holds them.

    Args:
        panels: Trees from left to right.
        hit_rates: Share of positions, 0 to 1, by rank path: the nodes' colours.
        title: Heading of the picture.
    """
    places = [lay_out(panel.shape) for panel in panels]
    widths = [max(float(x.max()) + 1.8, 3.0) for x in places]  # in node widths
    scales = np.linspace(0.46, 0.17, 30).tolist()  # inches of one
    unit = next((one for one in scales if sum(_inches(width, one) for width in widths) <= WIDEST), scales[-1])
    row_height = max(0.8, 1.7 * unit)
    rows: list[list[int]] = [[]]
    for number, width in enumerate(widths):
        used = sum(_inches(widths[other], unit) for other in rows[-1])
        if rows[-1] and used + _inches(width, unit) > WIDEST:
            rows.append([])
        rows[-1].append(number)
    top, heading = 0.98, 0.4
    room = 0.5 + 0.6 * unit  # above the roots, and below the deepest nodes with their percentages
    heights = [
        top + room + row_height * max(panels[number].shape.max_depth for number in row) for row in rows
    ]
    across = max(sum(_inches(widths[number], unit) for number in row) for row in rows)
    figure = bare_figure(across, heading + sum(heights) + 0.15, dpi=150)
    down = figure.get_figheight()
    figure.text(0.14 / across, 1 - 0.12 / down, title, fontsize=13, weight="bold", va="top", color=INK)
    legend = (
        "number: rank of the candidate; percentage: share of the output's positions where the path is right"
    )
    figure.text(0.14 / across, 0.06 / down, legend, fontsize=8, va="bottom", color=INK)
    below = down - heading
    for row, height in zip(rows, heights, strict=True):
        left = 0.0
        for number in row:
            panel, x, inches = panels[number], places[number], _inches(widths[number], unit)
            bottom, tall = below - height, height - top
            axes = figure.add_axes((left / across, bottom / down, inches / across, tall / down))
            middle = float(x.max()) / 2
            axes.set_xlim(middle - inches / unit / 2, middle + inches / unit / 2)
            axes.set_ylim((0.25 - tall) / unit, 0.25 / unit)
            axes.axis("off")
            y = (-row_height / unit * panel.shape.depths).astype(np.float64)
            draw_edges(axes, panel.shape, x, y, hit_rates)
            draw_nodes(axes, panel.shape, x, y, hit_rates, unit)
            text = fill(panel.title, max(18, int(inches * 10.5)))
            for what, size, lift, weight in (
                (text, 9.5, top - 0.03, "bold"),
                (panel.facts, 8, 0.5, "normal"),
            ):
                figure.text(
                    (left + inches / 2) / across,
                    (below - top + lift) / down,
                    what,
                    fontsize=size,
                    weight=weight,
                    ha="center",
                    va="top",
                    color=INK,
                    linespacing=1.3,
                )
            left += inches
        below -= height
    return figure


def draw_budgets(found: Comparison) -> Figure:
    """Draw for every device what the best tree of every size is worth, as a share of the device's best tree."""
    figure = bare_figure(8.4, 4.6, dpi=150, layout=ConstrainedLayoutEngine(w_pad=0.12, h_pad=0.08))
    axes = figure.subplots()
    budgets = found.budgets()
    for place, (device, colour) in enumerate(zip(found.devices, cycle(COLOURS), strict=False)):
        best, nodes = device.counts.tokens_per_second, device.best.shape.num_nodes
        axes.plot(
            list(budgets),
            [100 * float(worth[place]) / best for worth in budgets.values()],
            color=colour,
            lw=1.8,
            marker="o" if len(budgets) < 8 else None,
            ms=3.2,
            label=f"{device.profile.name} ({device.profile.source}): best tree {counted(nodes, 'node')}",
        )
        axes.plot(nodes, 100, marker="*", ms=13, lw=0, color=colour, mec="white", mew=0.8, zorder=4)
        axes.axhline(100 * device.plain_goodput / best, color=colour, lw=0.9, ls=":", zorder=1)
    axes.set_ylim(top=106)
    axes.set_xlim(0, 1.03 * max(axes.dataLim.x1, 4))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.set_xlabel("nodes of the tree (budget)", fontsize=9, color=INK)
    axes.set_ylabel("% of the device's best tree, replayed", fontsize=9, color=INK)
    axes.set_title(
        "Goodput against budget on every device", fontsize=12, color=INK, loc="left", weight="bold"
    )
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    plain(axes)
    figure.legend(
        loc="outside lower left", fontsize=8, frameon=False, title="star: best tree; dotted: plain decoding there",
        title_fontsize=8, alignment="left",
    )  # fmt: skip
    return figure


def _inches(width: float, unit: float) -> float:
    """Width of a panel, which is never too narrow for its title."""
    return max(width * unit + 0.3, 3.5)
