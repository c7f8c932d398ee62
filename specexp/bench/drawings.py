"""Drawings of draft trees, and of time lines of target and drafters (SEED, Figs. 1 and 3)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch
from matplotlib.path import Path
from numpy.typing import NDArray

from specexp.bench.pictures import INK, bare_figure, legend_below, name_rows, new_figure
from specexp.core.messages import counted
from specexp.core.tree import RankPath, TreeShape
from specexp.scheduling.timeline import TARGET, Span, TimeLine, What, rows_of, served_by, start_of

EDGE, UNMEASURED, ROOT, HIT_RATES = "#9aa7b2", "#dfe7ee", INK, "YlGnBu"
PLATE = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"}
_TITLE_INCHES = 0.105  # width of a character of the heading at its full size of 12 points
LANE, END = "#f1f4f7", "#7d8b97"
SPANS: Mapping[What, tuple[str, str]] = {
    "prefill": ("#a9b8c4", "prefill"),
    "target": ("#33658a", "target pass"),
    "verify": ("#6b9080", "verify, all accepted"),
    "resample": ("#c1443c", "verify, resample after a rejection"),
    "draft": ("#d1782f", "draft"),
    "learn": ("#8d6a9f", "learn from the outcome"),
}
"""Colour and label of each kind of span, in the order of the legend."""
_WIDTH, _ROW, _BAR = (
    11.0,
    0.27,
    0.78,
)  # inches of the picture and of a row, and the share of the row that a bar fills
_LEAD = 0.2  # most of a window, as a share, that lies before the first target pass
_DIGIT = 0.075  # inches that a digit on a bar takes


def draw_tree(
    shape: TreeShape, hit_rates: Mapping[RankPath, float] | None = None, title: str = "Draft tree"
) -> Figure:
    """Draw a tree, one row a depth, the root on top, best candidates to the left.

    Every node shows the rank of its candidate, from 0. With hit rates (shares of steps by rank path), its colour and
    the percentage below it are the share of the steps in which the target accepted it. Nodes without a rate stay pale.

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
    top = 0.85  # inches of the heading
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
    facts = f"{counted(shape.num_nodes, 'node')}, depth {shape.max_depth}"
    legend = "number: rank of the candidate"
    if rates:
        tokens = 1 + sum(rates.get(path, 0.0) for path in shape.rank_paths[1:])
        facts += f", {tokens:.2f} tokens per step (bonus token included)"
        legend += "; percentage: share of steps that accept it"
    fits = (inches - 0.28) / (len(title) * _TITLE_INCHES)  # above 1: as large as it may be
    text: dict[str, Any] = {"va": "top", "color": INK, "linespacing": 1.4}
    left = 0.14 / inches
    figure.text(left, 1 - 0.12 / height, title, fontsize=12 * min(1.0, fits), weight="bold", **text)
    figure.text(left, 1 - 0.40 / height, f"{facts}\n{legend}", fontsize=8, **text)
    return figure


def lay_out(shape: TreeShape) -> NDArray[np.float64]:
    """``[n + 1]`` horizontal place of every row: leaves one apart, depth first, parents in the middle."""
    x = np.zeros(shape.parents.size, dtype=np.float64)
    leaves = [row for row in shape.depth_first if not shape.children[row]]
    x[leaves] = np.arange(len(leaves))
    for row in range(shape.parents.size - 1, -1, -1):  # children come after their parent
        if shape.children[row]:
            below = x[list(shape.children[row])]
            x[row] = (below.min() + below.max()) / 2
    return x


def percent(rate: float) -> str:
    """Write a share in few characters: ``0.613`` as ``61%``, ``0.004`` as ``.4%``."""
    if 0.0005 <= rate < 0.01:
        return f"{100 * rate:.1f}%".removeprefix("0")
    return f"{100 * rate:.0f}%"


Places = NDArray[np.float64]
"""``[n + 1]`` coordinates of the rows of a tree."""


def draw_edges(
    axes: Axes, shape: TreeShape, x: Places, y: Places, hit_rates: Mapping[RankPath, float]
) -> None:
    """Draw curves from parents to children, wider for children that are accepted more often."""
    curves, widths = [], []
    for row in range(1, shape.parents.size):
        parent = shape.parents[row]
        middle = y[row] + 0.62 * (y[parent] - y[row])  # a straight edge would cross neighbouring nodes
        points = [(x[parent], y[parent]), (x[parent], middle), (x[row], middle), (x[row], y[row])]
        curves.append(Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]))
        widths.append(0.8 + 3.0 * hit_rates.get(shape.rank_paths[row], 0.0))
    axes.add_collection(
        PathCollection(curves, facecolors="none", edgecolors=EDGE, linewidths=widths, zorder=1)
    )


def draw_nodes(
    axes: Axes, shape: TreeShape, x: Places, y: Places, hit_rates: Mapping[RankPath, float], unit: float
) -> None:
    """Draw circles with the ranks; a length of 1 is ``unit`` inches."""
    scale = PowerNorm(0.5, vmin=0.0, vmax=max([0.05, *hit_rates.values()]))
    radius = min(0.4, 0.17 / unit)
    points = float(np.clip(radius * unit * 68, 4.5, 10.0))
    for row, path in enumerate(shape.rank_paths):
        rate = hit_rates.get(path) if row else None
        face = ROOT if row == 0 else UNMEASURED if rate is None else colormaps[HIT_RATES](scale(rate))
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


def draw_time_line(timelines: Mapping[str, TimeLine], title: str, seconds: float | None = None) -> Figure:
    """Draw time lines below each other over one axis, each from its own beginning.

    A panel has a row for the target and one for every drafter. Numbers on target passes are the drafters that they
    verify, if most have room. Above a panel are its name, how long the run took and what share of that the target
    ran a pass or a prefill, even if only a part of the run is drawn.

    Args:
        timelines: At least one, with at least a span, by the name of their panel.
        seconds: Draw only so much, so that single passes can be seen: from the start of a run or, if its prompt
            takes long to read, from shortly before its first target pass. None draws everything.

    Example:
        >>> line = TimeLine([Span("target", "target", 0.0, 0.003, "a"), Span("draft 1", "draft", 0.001, 0.004, "b")])
        >>> len(draw_time_line({"scheduled": line}, "One pass").axes)
        1
    """
    longest = max(timeline.seconds for timeline in timelines.values())
    window = longest if seconds is None else min(seconds, longest)
    rows = {name: rows_of(timeline) for name, timeline in timelines.items()}
    heights = [len(found) for found in rows.values()]
    height = 1.25 + sum(0.42 + _ROW * number for number in heights)
    figure, grid = new_figure(_WIDTH, height, title, len(rows), dpi=150, sharex=True, height_ratios=heights)
    drawn: set[What] = set()
    from_start = True
    for [axes], (name, timeline) in zip(grid, timelines.items(), strict=True):
        start = begin = start_of(timeline)
        passes = [span.start for span in timeline if span.what == TARGET]
        if seconds is not None and passes:
            begin = max(start, min(passes) - _LEAD * seconds)
        from_start = from_start and begin == start
        spans = [span for span in timeline if span.end > begin and span.start - begin < window]
        drawn |= {span.what for span in spans}
        _draw_panel(axes, timeline, rows[name], spans, begin, window)
        total = timeline.seconds
        duration = f"{1000 * total:.0f} ms" if total < 2 else f"{total:.1f} s"
        facts = f"target busy {100 * timeline.utilisation():.0f} %,  run {duration}"
        up: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
        axes.annotate(name, (0, 1), (0, 3), color=INK, fontsize=9.5, **up)
        axes.annotate(facts, (1, 1), (0, 3), color=INK, fontsize=9.5, ha="right", **up)
    before = ", from shortly before a run's first target pass"
    label = f"ms{' since the start of the run' if from_start else before}"
    grid[-1][0].set_xlabel(label, fontsize=9, color=INK)
    known = [style for what, style in SPANS.items() if what in drawn]
    handles = [Patch(color=colour, label=label) for colour, label in known]
    legend_below(figure, len(handles), handles, [label for _, label in known])
    return figure


def _draw_panel(
    axes: Axes, timeline: TimeLine, rows: list[str], spans: list[Span], begin: float, window: float
) -> None:
    end = start_of(timeline) + timeline.seconds - begin
    for place, who in enumerate(rows):
        lane = [(0.0, 1000 * min(end, window))]
        axes.broken_barh(lane, (place - _BAR / 2, _BAR), facecolors=LANE, lw=0, zorder=0)
        for what, (colour, _) in SPANS.items():
            bars = [
                (1000 * (span.start - begin), 1000 * (span.end - span.start))
                for span in spans
                if span.who == who and span.what == what
            ]
            axes.broken_barh(bars, (place - _BAR / 2, _BAR), facecolors=colour, lw=0, zorder=2)
    _number_passes(axes, timeline, spans, begin, window)
    if end < 0.995 * window:
        axes.axvline(1000 * end, color=END, lw=0.9, ls=(0, (2, 2)), zorder=1)
        axes.text(1000 * end, (len(rows) - 1) / 2, " done", fontsize=8, color=END, va="center")
    axes.set_xlim(0, 1000 * window)
    name_rows(axes, [who.capitalize() for who in rows])
    axes.tick_params(axis="y", length=0, pad=5)
    axes.spines["left"].set_visible(False)
    axes.grid(axis="x", color="white", lw=0.9, zorder=1)
    axes.set_axisbelow(True)


def _number_passes(axes: Axes, timeline: TimeLine, spans: list[Span], begin: float, window: float) -> None:
    served = served_by(timeline)
    if len({who for drafters in served.values() for who in drafters}) < 2:
        return
    inches = (_WIDTH - 1.15) / window
    passes = [span for span in spans if span.what == TARGET and span.round in served]
    numbers = []
    for span in passes:
        text = "+".join(sorted(who.rpartition(" ")[2] for who in served[span.round]))
        began, ended = max(span.start - begin, 0.0), min(span.end - begin, window)
        if (ended - began) * inches >= _DIGIT * len(text) + 0.02:
            numbers.append((1000 * (began + ended) / 2, text))
    style: dict[str, Any] = {"ha": "center", "va": "center_baseline", "fontsize": 7.5, "color": "white"}
    for middle, text in numbers if len(numbers) >= 0.8 * len(passes) else ():
        axes.text(middle, 0, text, zorder=3, **style)
