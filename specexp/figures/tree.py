"""A draft tree as a picture: ranks on the nodes, how often the target accepts each as colour."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import LineCollection
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from numpy.typing import NDArray

from specexp.tree import RankPath, TreeShape

INK = "#22303c"
EDGE = "#9aa7b2"
UNMEASURED = "#dfe7ee"
ROOT = "#22303c"
COLOURS = "YlGnBu"


def draw_tree(
    shape: TreeShape, hit_rates: Mapping[RankPath, float] | None = None, title: str | None = None
) -> Figure:
    """Draw a tree, one row a depth, the root on top, best candidates to the left.

    Every node shows the rank of its candidate, from 0. With hit rates, its colour and the percentage below it say in
    what share of the steps the target accepted it; nodes without a rate stay pale.

    Args:
        shape: the tree, from 1 to some hundred nodes.
        hit_rates: share of steps, 0 to 1, by rank path: :class:`~specexp.hits.HitCounter`'s ``hits / steps``.
        title: heading; the number of nodes and the depth are added below it.

    Returns:
        A figure of matplotlib's Agg canvas, apart from pyplot; ``figure.savefig("tree.png")`` writes it.

    Example:
        >>> figure = draw_tree(TreeShape.from_rank_paths([[0], [1], [0, 0]]), {(0,): 0.6, (1,): 0.1})
        >>> len(figure.axes[0].patches)
        4
    """
    x = lay_out(shape)  # [n + 1] in node widths
    width = float(x.max()) + 1
    inches = float(np.clip(0.46 * width, 5.0, 18.0))
    unit = inches / max(width, 5.0 / 0.46)  # inches of one node width
    row_height = max(0.95, 1.7 * unit) / unit  # node widths between depths
    top = 0.75 + 0.2
    height = shape.max_depth * row_height * unit + 2 * 0.45 + top
    figure = Figure(figsize=(inches, height), dpi=160)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0 - top / height))
    slack = max(inches / unit - width, 0.0) / 2
    axes.set_xlim(-0.5 - slack, width - 0.5 + slack)
    axes.set_ylim(-shape.max_depth * row_height - 0.45 / unit, 0.45 / unit)
    axes.set_aspect("equal")
    axes.axis("off")

    y = -row_height * shape.depths
    _draw_edges(axes, shape, x, y, hit_rates)
    _draw_nodes(axes, shape, x, y, hit_rates, unit)
    _draw_heading(figure, shape, hit_rates, title, height)
    return figure


def lay_out(shape: TreeShape) -> NDArray[np.float64]:
    """``[n + 1]`` horizontal place of every row: leaves one apart in depth-first order, parents above their middle."""
    x = np.zeros(shape.parents.size)
    leaves = 0
    for row in shape.depth_first:
        if not shape.children[row]:
            x[row] = leaves
            leaves += 1
    for row in range(shape.parents.size - 1, -1, -1):  # children stand after their parent
        if shape.children[row]:
            below = x[list(shape.children[row])]
            x[row] = (below.min() + below.max()) / 2
    return x


def _draw_edges(
    axes: Axes,
    shape: TreeShape,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    hit_rates: Mapping[RankPath, float] | None,
) -> None:
    rows = range(1, shape.parents.size)
    lines = [[(x[shape.parents[row]], y[shape.parents[row]]), (x[row], y[row])] for row in rows]
    rates = [(hit_rates or {}).get(shape.rank_paths[row], 0.0) for row in rows]
    axes.add_collection(
        LineCollection(lines, colors=EDGE, linewidths=[0.8 + 3.0 * rate for rate in rates], zorder=1)
    )


def _draw_nodes(
    axes: Axes,
    shape: TreeShape,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    hit_rates: Mapping[RankPath, float] | None,
    unit: float,
) -> None:
    from matplotlib import colormaps

    colours = colormaps[COLOURS]
    scale = PowerNorm(0.5, vmin=0.0, vmax=max([0.05, *(hit_rates or {}).values()]))
    radius = min(0.4, 0.17 / unit)
    points = float(np.clip(radius * unit * 72 * 0.95, 4.5, 10.0))
    for row, path in enumerate(shape.rank_paths):
        rate = hit_rates.get(path) if hit_rates is not None and row else None
        face = ROOT if row == 0 else UNMEASURED if rate is None else colours(scale(rate))
        dark = row == 0 or (rate is not None and float(scale(rate)) > 0.6)
        axes.add_patch(
            Circle((x[row], y[row]), radius, facecolor=face, edgecolor=INK, linewidth=0.6, zorder=2)
        )
        label = "root" if row == 0 else str(path[-1])
        size = points * 0.72 if row == 0 else points
        axes.text(
            x[row],
            y[row],
            label,
            ha="center",
            va="center_baseline",
            fontsize=size,
            zorder=3,
            color="w" if dark else INK,
        )
        if rate is not None:
            place = (x[row], y[row] - radius * 1.25)
            axes.text(
                *place, percent(rate), ha="center", va="top", fontsize=points * 0.72, color=INK, zorder=3
            )


def percent(rate: float) -> str:
    """Write a share in at most three characters and a sign: ``0.613`` as ``61%``, ``0.004`` as ``.4%``."""
    if 0.0 < rate < 0.01:
        return f"{100 * rate:.1f}%".removeprefix("0") if rate >= 0.0005 else "~0"
    return f"{100 * rate:.0f}%"


def _draw_heading(
    figure: Figure,
    shape: TreeShape,
    hit_rates: Mapping[RankPath, float] | None,
    title: str | None,
    height: float,
) -> None:
    facts = f"{shape.num_nodes} nodes, depth {shape.max_depth}; a node's number is its candidate's rank"
    if hit_rates:
        facts += ", below it the share of steps that accept it"
        mean = 1 + sum(hit_rates.get(path, 0.0) for path in shape.rank_paths[1:])
        facts += f"\n{mean:.2f} tokens per step with the bonus token"
    figure.text(
        0.02, 1 - 0.12 / height, title or "Draft tree", va="top", fontsize=12, color=INK, weight="bold"
    )
    figure.text(0.02, 1 - 0.40 / height, facts, va="top", fontsize=8, color=INK, linespacing=1.4)
