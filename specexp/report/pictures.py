"""Pictures in a common style: speedup bars, parameter curves, phases of a step, draft trees, and time lines."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from textwrap import fill
from typing import Any, Literal

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.collections import PathCollection
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure
from matplotlib.patches import Circle, Patch
from matplotlib.path import Path
from numpy.typing import NDArray

from specexp.base.messages import counted
from specexp.bench import clock
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, breakdown, paired_speedup, summarize
from specexp.core.tree import RankPath, TreeShape
from specexp.scheduling.timeline import TARGET, Span, TimeLine, What, rows_of, served_by, start_of

BLUE, GRAY, ORANGE, INK = "#33658a", "#b4bec6", "#d1782f", "#22303c"
GREEN, VIOLET, SAND = "#6b9080", "#8d6a9f", "#e9b872"
CURVE_COLORS = (BLUE, ORANGE, GREEN, VIOLET)
PHASE_COLORS = {
    "target": BLUE,
    "draft": ORANGE,
    "build": SAND,
    "verify": GREEN,
    "commit": "#a4c3b2",
    "update": VIOLET,
}
"""The color of each phase of a step, in the order in which the phases are stacked."""
DPI = 130
_CHARACTERS_PER_INCH = 12  # in the font of a title
_WIDE = 16  # a parameter with a max/min ratio of at least this gets a logarithmic axis
_ACROSS = 3  # maximum number of trees drawn side by side
SPANS: Mapping[What, tuple[str, str]] = {
    "prefill": ("#a9b8c4", "prefill"),
    "target": (BLUE, "target pass"),
    "verify": (GREEN, "verify, all accepted"),
    "resample": ("#c1443c", "verify, resample after a rejection"),
    "draft": (ORANGE, "draft"),
    "learn": (VIOLET, "learn from the outcome"),
}
"""The color and label of each kind of span in a time line, in the order of the legend."""
_LINE_WIDTH, _ROW = 11.0, 0.27  # width of a time line and height of one of its rows, in inches
_BAR = 0.78  # share of a row that a bar fills
_LEAD = 0.2  # share of a window that may lie before the first target pass
_DIGIT = 0.075  # width of a digit on a bar, in inches


def bare_figure(width: float, height: float, *, dpi: int = DPI) -> Figure:
    """Return an empty figure on matplotlib's Agg canvas, without pyplot. ``width`` and ``height`` are in inches."""
    figure = Figure(figsize=(width, height), dpi=dpi, layout="constrained")
    FigureCanvasAgg(figure)
    return figure


def new_figure(
    width: float,
    height: float,
    title: str = "",
    rows: int = 1,
    columns: int = 1,
    *,
    dpi: int = DPI,
    **subplots: Any,
) -> tuple[Figure, list[list[Axes]]]:
    """Return a figure (sized in inches) with a title above a grid of bare axes, and the axes by row and column.

    Title lines that are too long for the width are wrapped. ``subplots`` are additional arguments of
    ``Figure.subplots``, such as ``sharey="row"``.

    Example:
        >>> figure, [[left, right]] = new_figure(8, 4, "Two panels", 1, 2, sharey=True)
        >>> bars = left.bar([0, 1], [3, 4], color=BLUE)
        >>> png(figure)[:4]
        b'\\x89PNG'
    """
    figure = bare_figure(width, height, dpi=dpi)
    if title:
        broken = (fill(line, int(_CHARACTERS_PER_INCH * width)) for line in title.split("\n"))
        figure.suptitle("\n".join(broken), fontsize=11, color=INK)
    grid: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **subplots).tolist()
    for row in grid:
        for axes in row:
            bare_axes(axes)
    return figure, grid


def bare_axes(axes: Axes) -> None:
    """Remove the top and right spines, and set the color and size (in points) of the tick labels."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=8, colors=INK)


def rule(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    """Draw faint grid lines at an axis's ticks, behind everything else."""
    axes.grid(axis=axis, color="#e3e8ec", lw=0.7)
    axes.set_axisbelow(True)


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Label the rows at y = 0, 1, 2, ..., from top to bottom."""
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def legend_below(figure: Figure, columns: int, *given: Any) -> None:
    """Add a legend below all axes, with the ``given`` handles and labels or with those of all axes."""
    figure.legend(*given, loc="outside lower center", ncols=max(columns, 1), fontsize=8, frameon=False)


def png(figure: Figure) -> bytes:
    """Return the figure as a 128-color PNG, about a third of the size of a full-color one."""
    from PIL import Image

    whole, content = BytesIO(), BytesIO()
    figure.savefig(whole, format="png")
    Image.open(whole).convert("RGB").quantize(128).save(content, "PNG", optimize=True)
    return content.getvalue()


@dataclass(frozen=True)
class Curve:
    """A group of arms that differ in only one parameter."""

    title: str  # name of the group
    axis: str  # the parameter, on the x axis
    points: Sequence[tuple[float, str]]  # value and arm, in the order of the axis


def draw_speedups(
    axes: Axes, positions: Sequence[float], speedups: Sequence[Speedup], *, upright: bool = True, **style: Any
) -> None:
    """Draw speedups as points with intervals. None of them may be refused. ``style`` is passed to ``errorbar``.

    Ratios are on the y axis and ``positions`` on the x axis; ``upright=False`` swaps them.
    """
    ratios = [speedup.ratio for speedup in speedups]
    errors = [[one.ratio - one.low for one in speedups], [one.high - one.ratio for one in speedups]]
    if upright:
        axes.errorbar(positions, ratios, yerr=errors, **style)
    else:
        axes.errorbar(ratios, positions, xerr=errors, **style)


def speedup_bars(
    records: Iterable[PromptRecord], *, baseline: str, title: str, published: Mapping[str, float]
) -> Figure:
    """Draw the speedup of each arm over the baseline, as in :func:`bars_of`."""
    records = list(records)
    speedups = [paired_speedup(records, name, baseline) for name in arm_names(records) if name != baseline]
    used = summarize(records, baseline).clock  # used for every bar, since speedups across clocks are refused
    word = f" {clock.adjective(used)}".rstrip()
    notes = [f"{word}, {summarize(records, one.arm).tokens_per_step:.2f} tokens/step" for one in speedups]
    axis = f"{clock.adjective(used)}speedup over {baseline} (seconds per token, 95 % interval)"
    return bars_of(speedups, notes, clock.titled(title, used), axis, published)


def bars_of(
    speedups: Sequence[Speedup], notes: Sequence[str], title: str, axis: str, published: Mapping[str, float]
) -> Figure:
    """Draw each speedup as a bar with its interval. A bar is gray unless its whole interval is above 1.

    A refused speedup is labeled ``refused`` and has no bar. ``published`` maps names to a paper's speedups. They were
    not measured here, so their bars are hollow.
    """
    rows = len(speedups) + len(published)
    figure, [[ax]] = new_figure(7.5, 1.3 + 0.36 * max(rows, 2), title)
    beside: dict[str, Any] = {"va": "center", "fontsize": 8}
    for place, (speedup, note) in enumerate(zip(speedups, notes, strict=True)):
        if speedup.refused:
            ax.text(0.02, place, "refused", color=ORANGE, **beside)
            continue
        ax.barh(place, speedup.ratio, color=BLUE if speedup.is_faster else GRAY, height=0.62)
        draw_speedups(ax, [place], [speedup], upright=False, color=INK, capsize=3, lw=1.2)
        ax.text(speedup.high, place, f"  {speedup.ratio:.2f}x{note}", color=INK, **beside)
    for place, ratio in enumerate(published.values(), start=len(speedups)):
        ax.barh(place, ratio, fill=False, edgecolor=GRAY, ls="--", height=0.62)
        ax.text(ratio, place, f"  {ratio:.2f}x published", color=INK, **beside)
    name_rows(ax, [*(speedup.arm for speedup in speedups), *(f"{name} (not run here)" for name in published)])
    ax.axvline(1, color=INK, lw=0.8, ls=":")
    ax.set_xlabel(axis, fontsize=9)
    ax.margins(x=0.3)
    ax.set_xlim(left=0)
    return figure


def parameter_curves(records: Iterable[PromptRecord], curves: Sequence[Curve], *, baseline: str, title: str) -> Figure:
    """Plot speedups with intervals, and tokens per step below them, against each swept parameter.

    Curves over the same parameter share their axes.
    """
    records = list(records)
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.axis, []).append(curve)
    used = summarize(records, baseline).clock
    width = 4.2 * max(len(panels), 1.4)
    figure, rows = new_figure(width, 5.2, clock.titled(title, used), 2, len(panels), sharey="row")
    for top, bottom, (axis, shown) in zip(*rows, panels.items(), strict=True):
        for curve, color in zip(shown, cycle(CURVE_COLORS), strict=False):
            positions, arms = zip(*curve.points, strict=True)
            speedups = [paired_speedup(records, arm, baseline) for arm in arms]
            given = [(at, speedup) for at, speedup in zip(positions, speedups, strict=True) if not speedup.refused]
            if given:
                draw_speedups(top, *map(list, zip(*given, strict=True)), color=color, marker="o", capsize=3)
            steps = [summarize(records, arm).tokens_per_step for arm in arms]
            bottom.plot(positions, steps, color=color, marker="s", label=curve.title)
        top.axhline(1, color=INK, lw=0.8, ls=":")
        top.set_title(shown[0].title if len(shown) == 1 else "", fontsize=10)
        if len(shown) > 1:
            bottom.legend(fontsize=8, frameon=False)
        bottom.set_xlabel(axis, fontsize=9)
        values = sorted({value for curve in shown for value, _ in curve.points})
        for ax in (top, bottom):
            if values[0] > 0 and values[-1] / values[0] >= _WIDE:
                ax.set_xscale("log", base=2)
            ax.set_xticks(values, [f"{value:g}" for value in values])
            rule(ax)
    rows[0][0].set_ylabel(f"{clock.adjective(used)}speedup over {baseline}", fontsize=9)
    rows[1][0].set_ylabel("tokens per step", fontsize=9)
    return figure


def phase_bars(records: Iterable[PromptRecord], *, title: str) -> Figure:
    """Draw each phase's share of the step time, as one stacked bar per arm."""
    records = list(records)
    parts = [part for name in arm_names(records) if (part := breakdown(records, name)) is not None]
    clocks = {part.clock for part in parts}
    shown = clock.titled(title, clocks.pop()) if len(clocks) == 1 else title
    figure, [[ax]] = new_figure(7.5, 1.7 + 0.45 * max(len(parts), 2), shown)
    phases = [phase for phase in PHASE_COLORS if any(phase in part.shares for part in parts)]
    starts = [0.0] * len(parts)
    for phase in phases:
        shares = [100 * part.shares.get(phase, 0.0) for part in parts]
        texts = ["" if share < 4 else f"{share:.0f}" if share < 10 else f"{share:.1f} %" for share in shares]
        bars = ax.barh(range(len(parts)), shares, left=starts, color=PHASE_COLORS[phase], height=0.6, label=phase)
        ax.bar_label(bars, texts, label_type="center", fontsize=8, color="white")
        starts = [start + share for start, share in zip(starts, shares, strict=True)]
    labels = [
        f"{part.arm}\n{1000 * part.step_seconds:.2f} {clock.adjective(part.clock)}ms/step, "
        f"{100 * part.outside_forward:.1f} % outside forward passes"
        for part in parts
    ]
    ax.set_yticks(range(len(parts)), labels, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of a step (%)", fontsize=9)
    legend_below(figure, len(phases))
    return figure


def tree_lines(shape: TreeShape, accepted: Mapping[RankPath, float], title: str, most: int = 24) -> str:
    """Return a tree as text. Each of the first ``most`` nodes gets a line with its rank and how often it is accepted.

    Example:
        >>> print(tree_lines(TreeShape.from_rank_paths([[0], [1]]), {(0,): 0.6, (1,): 0.1}, "A tree"))
        A tree (share of steps that accept a node)
        ├─ 0 ██████ 60 %
        └─ 1 █ 10 %
    """
    lines, children = [f"{title} (share of steps that accept a node)"], shape.children
    last = {rows[-1] for rows in children if rows}
    for row in shape.depth_first[1 : most + 1]:
        above = "".join("   " if one in last else "│  " for one in shape.path(row)[:-1])
        share = accepted.get(shape.rank_paths[row])
        how_often = "" if share is None else f" {'█' * round(10 * share)} {100 * share:.0f} %"
        lines.append(f"{above}{'└─' if row in last else '├─'} {shape.rank_paths[row][-1]}{how_often}")
    left = shape.num_nodes - most
    return "\n".join([*lines, *([f"and {counted(left, 'node')} more"] if left > 0 else [])])


def draw_trees(
    panels: Sequence[tuple[TreeShape, str]], title: str, hit_rates: Mapping[RankPath, float], meaning: str
) -> Figure:
    """Draw trees at the same scale: one row per depth, with the root at the top and the best candidates on the left.

    Each node shows the rank of its candidate, from 0. A node's hit rate, if given, is shown as a percentage and by its
    color; other nodes stay pale. ``meaning`` explains the percentage in the legend.
    """
    layouts = [lay_out(shape) for shape, _ in panels]
    across, down = min(_ACROSS, len(panels)), -(-len(panels) // _ACROSS)
    width = max(float(x.max()) for x in layouts) + 1.8  # in node widths
    unit = float(np.clip(18.0 / across / width, 0.17, 0.46))  # inches per node width
    row_height = max(0.8, 1.7 * unit)
    deepest = max(shape.max_depth for shape, _ in panels)
    inches = max(width * unit, 4.0)
    tall = 0.5 + 0.6 * unit + row_height * deepest
    figure, grid = new_figure(across * inches + 0.4, down * (tall + 0.9) + 0.8, title, down, across, dpi=150)
    cells = [axes for row in grid for axes in row]
    for axes, (shape, heading), x in zip(cells, panels, layouts, strict=False):
        middle = float(x.max()) / 2
        axes.set_xlim(middle - inches / unit / 2, middle + inches / unit / 2)
        axes.set_ylim((0.25 - tall) / unit, 0.25 / unit)
        axes.set_aspect("equal")
        coordinates = np.stack([x, -row_height / unit * shape.depths])
        _draw_edges(axes, shape, coordinates, hit_rates)
        _draw_nodes(axes, shape, coordinates, hit_rates, unit)
        axes.set_title(heading, fontsize=8.5, color=INK)
        axes.axis("off")
    legend = "number: rank of the candidate" + f"; percentage: {meaning}" * bool(hit_rates)
    figure.supxlabel(legend, fontsize=8, color=INK)
    for axes in cells[len(panels) :]:
        axes.remove()
    return figure


def lay_out(shape: TreeShape) -> NDArray[np.float64]:
    """Return the x coordinates of rows, ``[n + 1]``: leaves 1 apart, depth first; parents centered over children."""
    x = np.zeros(shape.parents.size, dtype=np.float64)
    leaves = [row for row in shape.depth_first if not shape.children[row]]
    x[leaves] = np.arange(len(leaves))
    for row in range(shape.parents.size - 1, -1, -1):  # children come after their parent
        if shape.children[row]:
            below = x[list(shape.children[row])]
            x[row] = (below.min() + below.max()) / 2
    return x


_Coordinates = NDArray[np.float64]
"""The x and y coordinates of a tree's rows, ``[2, n + 1]``."""


def _draw_edges(axes: Axes, shape: TreeShape, coordinates: _Coordinates, hit_rates: Mapping[RankPath, float]) -> None:
    """Draw curves from parents to children. The more often a child is accepted, the wider its curve."""
    x, y = coordinates
    curves, widths = [], []
    for row in range(1, shape.parents.size):
        parent = shape.parents[row]
        middle = y[row] + 0.62 * (y[parent] - y[row])  # a straight edge would cross adjacent nodes
        points = [(x[parent], y[parent]), (x[parent], middle), (x[row], middle), (x[row], y[row])]
        curves.append(Path(points, [Path.MOVETO, Path.CURVE4, Path.CURVE4, Path.CURVE4]))
        widths.append(0.8 + 3.0 * hit_rates.get(shape.rank_paths[row], 0.0))
    axes.add_collection(PathCollection(curves, facecolors="none", edgecolors="#9aa7b2", linewidths=widths, zorder=1))


def _draw_nodes(
    axes: Axes, shape: TreeShape, coordinates: _Coordinates, hit_rates: Mapping[RankPath, float], unit: float
) -> None:
    """Draw each node as a circle with its rank inside. Coordinates are in units of ``unit`` inches."""
    x, y = coordinates
    scale = PowerNorm(0.5, vmin=0.0, vmax=max([0.05, *hit_rates.values()]))
    radius = min(0.4, 0.17 / unit)
    points = float(np.clip(radius * unit * 68, 4.5, 10.0))
    center: dict[str, Any] = {"ha": "center", "va": "center_baseline", "zorder": 4}
    plate = {"boxstyle": "square,pad=0.05", "facecolor": "white", "edgecolor": "none"}
    for row, path in enumerate(shape.rank_paths):
        rate = hit_rates.get(path) if row else None
        face: Any = INK if row == 0 else "#dfe7ee" if rate is None else colormaps["YlGnBu"](scale(rate))
        ink = "white" if row == 0 or (rate is not None and float(scale(rate)) > 0.6) else INK
        axes.add_patch(Circle((x[row], y[row]), radius, facecolor=face, edgecolor=INK, linewidth=0.6, zorder=3))
        label, size = (str(path[-1]), points) if row else ("root", 0.72 * points)
        axes.text(x[row], y[row], label, fontsize=size, color=ink, **center)
        if rate is not None:
            below: dict[str, Any] = {**center, "va": "top", "zorder": 2, "bbox": plate}
            axes.text(x[row], y[row] - 1.3 * radius, _percent(rate), fontsize=0.72 * points, color=INK, **below)


def _percent(rate: float) -> str:
    """Format a share compactly: ``0.613`` becomes ``61%``, and ``0.004`` becomes ``.4%``."""
    if 0.0005 <= rate < 0.01:
        return f"{100 * rate:.1f}%".removeprefix("0")
    return f"{100 * rate:.0f}%"


def draw_time_line(timelines: Mapping[str, TimeLine], title: str, seconds: float | None = None) -> Figure:
    """Draw time lines of target and drafters (SEED, Figs. 1 and 3), one below the other, each from its own start.

    A panel has a row for the target and one for each drafter. If most target passes are wide enough, they show the
    numbers of the drafters that they verify. Above each panel are its name, the duration of the whole run, and the
    share of that time in which the target was busy with a pass or prefill. Each time line has at least one span.

    If ``seconds`` is set, only this many are drawn, so that individual passes are visible. The window then starts with
    the run or, if the prefill is long, shortly before the first target pass.

    Example:
        >>> line = TimeLine([Span("target", "target", 0.0, 0.003, "a"), Span("draft 1", "draft", 0.001, 0.004, "b")])
        >>> len(draw_time_line({"scheduled": line}, "One pass").axes)
        1
    """
    longest = max(timeline.seconds for timeline in timelines.values())
    window = longest if seconds is None else min(seconds, longest)
    heights = [len(rows_of(timeline)) for timeline in timelines.values()]
    height = 1.25 + sum(0.42 + _ROW * number for number in heights)
    figure, grid = new_figure(_LINE_WIDTH, height, title, len(heights), dpi=150, sharex=True, height_ratios=heights)
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
        _draw_panel(axes, timeline, spans, begin, window)
        total = timeline.seconds
        duration = f"{1000 * total:.0f} ms" if total < 2 else f"{total:.1f} s"
        facts = f"target busy {100 * timeline.utilisation():.0f} %,  run {duration}"
        up: dict[str, Any] = {"xycoords": "axes fraction", "textcoords": "offset points", "va": "bottom"}
        axes.annotate(name, (0, 1), (0, 3), color=INK, fontsize=9.5, **up)
        axes.annotate(facts, (1, 1), (0, 3), color=INK, fontsize=9.5, ha="right", **up)
    origin = " since the start of the run" if from_start else ", from shortly before a run's first target pass"
    grid[-1][0].set_xlabel(f"ms{origin}", fontsize=9, color=INK)
    known = [style for what, style in SPANS.items() if what in drawn]
    handles = [Patch(color=color, label=label) for color, label in known]
    legend_below(figure, len(handles), handles, [label for _, label in known])
    return figure


def _draw_panel(axes: Axes, timeline: TimeLine, spans: list[Span], begin: float, window: float) -> None:
    end = start_of(timeline) + timeline.seconds - begin
    rows = rows_of(timeline)
    for place, who in enumerate(rows):
        lane = [(0.0, 1000 * min(end, window))]
        axes.broken_barh(lane, (place - _BAR / 2, _BAR), facecolors="#f1f4f7", lw=0, zorder=0)
        for what, (color, _) in SPANS.items():
            bars = [
                (1000 * (span.start - begin), 1000 * (span.end - span.start))
                for span in spans
                if span.who == who and span.what == what
            ]
            axes.broken_barh(bars, (place - _BAR / 2, _BAR), facecolors=color, lw=0, zorder=2)
    _number_passes(axes, timeline, spans, begin, window)
    if end < 0.995 * window:
        axes.axvline(1000 * end, color=GRAY, lw=0.9, ls=(0, (2, 2)), zorder=1)
        axes.text(1000 * end, (len(rows) - 1) / 2, " done", fontsize=8, color=INK, va="center")
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
    inches = (_LINE_WIDTH - 1.15) / window
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
