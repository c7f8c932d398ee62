"""A draft tree as a picture: ranks on the nodes, how often the target accepts each as colour."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle
from matplotlib.path import Path
from numpy.typing import NDArray

from specexp.bench.pictures import INK, bare_figure
from specexp.core.tree import RankPath, TreeShape

EDGE = "#9aa7b2"
UNMEASURED = "#dfe7ee"
ROOT = INK
COLOURS = "YlGnBu"
PLATE = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"}

_TITLE_INCHES = 0.105
"""Width of a character of the heading at its full size of 12 points."""


def draw_tree(
    shape: TreeShape, hit_rates: Mapping[RankPath, float] | None = None, title: str | None = None
) -> Figure:
    """Draw a tree, one row a depth, the root on top, best candidates to the left.

    Every node shows the rank of its candidate, from 0. With hit rates, its colour and the percentage below it
    say in what share of the steps the target accepted it; nodes without a rate stay pale.

    Args:
        shape: The tree, from 1 to some hundred nodes.
        hit_rates: Share of steps, 0 to 1, by rank path: ``counts / steps`` of a
            :class:`~specexp.bench.acceptance_counts.AcceptanceCounter`.
        title: Heading; the number of nodes and the depth are added below it.

    Returns:
        A figure of matplotlib's Agg canvas, apart from pyplot; ``figure.savefig("tree.png")`` writes it.

    Example:
        >>> figure = draw_tree(TreeShape.from_rank_paths([[0], [1], [0, 0]]), {(0,): 0.6, (1,): 0.1})
        >>> len(figure.axes[0].patches)
        4
    """
    x = lay_out(shape)  # [n + 1] in node widths
    width = float(x.max()) + 1.4
    inches = float(np.clip(0.46 * width, 5.0, 18.0))
    unit = inches / max(width, 5.0 / 0.46)  # inches of one node width
    row_height = max(0.95, 1.7 * unit) / unit  # node widths between depths
    top = 0.85
    height = shape.max_depth * row_height * unit + 2 * 0.45 + top
    figure = bare_figure(inches, height, dpi=160)
    axes = figure.add_axes((0.0, 0.0, 1.0, 1.0 - top / height))
    slack = max(inches / unit - width, 0.0) / 2
    axes.set_xlim(-0.7 - slack, width - 0.7 + slack)
    axes.set_ylim(-shape.max_depth * row_height - 0.45 / unit, 0.45 / unit)
    axes.set_aspect("equal")
    axes.axis("off")

    y = (-row_height * shape.depths).astype(np.float64)
    rates = hit_rates or {}
    draw_edges(axes, shape, x, y, rates)
    draw_nodes(axes, shape, x, y, rates, unit)
    _draw_heading(figure, shape, rates, title, height)
    return figure


def lay_out(shape: TreeShape) -> NDArray[np.float64]:
    """``[n + 1]`` horizontal place of every row: leaves one apart, depth first, parents in the middle."""
    x = np.zeros(shape.parents.size, dtype=np.float64)
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


def percent(rate: float) -> str:
    """Write a share in few characters: ``0.613`` as ``61%``, ``0.004`` as ``.4%``."""
    if 0.0005 <= rate < 0.01:
        return f"{100 * rate:.1f}%".removeprefix("0")
    return f"{100 * rate:.0f}%"


def draw_edges(
    axes: Axes,
    shape: TreeShape,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    hit_rates: Mapping[RankPath, float],
) -> None:
    """Curves from parents to children at these places, as wide as the child is often accepted."""
    curves, widths = [], []
    for row in range(1, shape.parents.size):
        parent = shape.parents[row]
        middle = y[row] + 0.62 * (y[parent] - y[row])  # a straight edge would cross the nodes beside its own
        points = [(x[parent], y[parent]), (x[parent], middle), (x[row], middle), (x[row], y[row])]
        curves.append(Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]))
        widths.append(0.8 + 3.0 * hit_rates.get(shape.rank_paths[row], 0.0))
    axes.add_collection(
        PathCollection(curves, facecolors="none", edgecolors=EDGE, linewidths=widths, zorder=1)
    )


def draw_nodes(
    axes: Axes,
    shape: TreeShape,
    x: NDArray[np.float64],
    y: NDArray[np.float64],
    hit_rates: Mapping[RankPath, float],
    unit: float,
) -> None:
    """Circles with the ranks at these places; ``unit`` is what 1 measures in inches."""
    scale = PowerNorm(0.5, vmin=0.0, vmax=max([0.05, *hit_rates.values()]))
    radius = min(0.4, 0.17 / unit)
    points = float(np.clip(radius * unit * 68, 4.5, 10.0))
    for row, path in enumerate(shape.rank_paths):
        rate = hit_rates.get(path) if row else None
        face = ROOT if row == 0 else UNMEASURED if rate is None else colormaps[COLOURS](scale(rate))
        ink = "white" if row == 0 or (rate is not None and float(scale(rate)) > 0.6) else INK
        axes.add_patch(
            Circle((x[row], y[row]), radius, facecolor=face, edgecolor=INK, linewidth=0.6, zorder=3)
        )
        label, size = (str(path[-1]), points) if row else ("root", 0.72 * points)
        style: dict[str, Any] = {"ha": "center", "zorder": 4, "va": "center_baseline"}
        axes.text(x[row], y[row], label, fontsize=size, color=ink, **style)
        if rate is not None:
            style = {"ha": "center", "zorder": 2, "va": "top", "bbox": PLATE}
            place = y[row] - 1.3 * radius
            axes.text(x[row], place, percent(rate), fontsize=0.72 * points, color=INK, **style)


def _draw_heading(
    figure: Figure, shape: TreeShape, hit_rates: Mapping[RankPath, float], title: str | None, height: float
) -> None:
    facts = f"{shape.num_nodes} node{'s' * (shape.num_nodes != 1)}, depth {shape.max_depth}"
    legend = "number: rank of the candidate"
    if hit_rates:
        tokens = 1 + sum(hit_rates.get(path, 0.0) for path in shape.rank_paths[1:])
        facts += f", {tokens:.2f} tokens per step (bonus token included)"
        legend += "; percentage: share of steps that accept it"
    text: dict[str, Any] = {"va": "top", "color": INK, "linespacing": 1.4}
    left = 0.14 / figure.get_figwidth()
    title = title or "Draft tree"
    fits = (figure.get_figwidth() - 0.28) / (len(title) * _TITLE_INCHES)  # above 1: as large as it may be
    figure.text(left, 1 - 0.12 / height, title, fontsize=12 * min(1.0, fits), weight="bold", **text)
    figure.text(left, 1 - 0.40 / height, f"{facts}\n{legend}", fontsize=8, **text)
