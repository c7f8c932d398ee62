"""Pictures of a run: one style for all of them, speedups as bars, curves over a parameter, the phases of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from itertools import cycle
from textwrap import fill
from typing import Any, Literal

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from specexp.bench import clock
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, breakdown, paired_speedup, summarise

BLUE, GREY, ORANGE, INK = "#33658a", "#b4bec6", "#d1782f", "#22303c"
GREEN, VIOLET, SAND = "#6b9080", "#8d6a9f", "#e9b872"
CURVE_COLOURS = (BLUE, ORANGE, GREEN, VIOLET)
PHASE_COLOURS = {
    "target": BLUE,
    "draft": ORANGE,
    "build": SAND,
    "verify": GREEN,
    "commit": "#a4c3b2",
    "update": VIOLET,
}
"""The colour of each phase of a step, in the order in which bars stack them."""
CHARACTERS_PER_INCH = 12  # that a title holds
DPI = 130
WIDE = 16  # parameters whose values span more than this factor are drawn over their logarithm


def bare_figure(width: float, height: float, *, dpi: int = DPI, layout: Any = None) -> Figure:
    """Return a figure (inches) of matplotlib's Agg canvas, without pyplot, axes or title.

    Without a layout engine positions are the caller's.
    """
    figure = Figure(figsize=(width, height), dpi=dpi, layout=layout)
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
    """Return a figure (inches) with a title above a grid of plain axes, and its axes by row and column.

    Lines of the title that are too long for the width are broken. ``subplots`` are further arguments of
    ``Figure.subplots``, such as ``sharey="row"``.

    Example:
        >>> figure, [[left, right]] = new_figure(8, 4, "Two panels", 1, 2, sharey=True)
        >>> bars = left.bar([0, 1], [3, 4], color=BLUE)
        >>> png(figure)[:4]
        b'\\x89PNG'
    """
    figure = bare_figure(width, height, dpi=dpi, layout="constrained")
    if title:
        broken = (fill(line, int(CHARACTERS_PER_INCH * width)) for line in title.split("\n"))
        figure.suptitle("\n".join(broken), fontsize=11, color=INK)
    grid: list[list[Axes]] = figure.subplots(rows, columns, squeeze=False, **subplots).tolist()
    for row in grid:
        for axes in row:
            plain(axes)
    return figure, grid


def plain(axes: Axes, label_size: float = 8) -> None:
    """Remove the frame's upper and right line, and set small dark tick labels (points)."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.tick_params(labelsize=label_size, colors=INK)


def rule(axes: Axes, axis: Literal["x", "y", "both"] = "y") -> None:
    """Draw faint lines behind everything else, at the ticks of an axis."""
    axes.grid(axis=axis, color="#e3e8ec", lw=0.7)
    axes.set_axisbelow(True)


def whole_numbers(axes: Axes) -> None:
    """Set ticks at whole numbers of the y axis only."""
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))


def name_rows(axes: Axes, labels: Sequence[str]) -> None:
    """Name rows at 0, 1, 2, ... from above to below."""
    axes.set_yticks(range(len(labels)), labels, fontsize=8)
    axes.set_ylim(len(labels) - 0.5, -0.5)


def legend_below(figure: Figure, columns: int, *given: Any) -> None:
    """Add a legend below all axes: of ``given`` handles and labels, or of those of all axes."""
    figure.legend(*given, loc="outside lower center", ncols=max(columns, 1), fontsize=8, frameon=False)


def png(figure: Figure) -> bytes:
    """Return the picture as the bytes of a PNG file."""
    content = BytesIO()
    figure.savefig(content, format="png")
    return content.getvalue()


@dataclass(frozen=True)
class Curve:
    """Arms that differ in one parameter."""

    title: str  # name of the group of arms
    axis: str  # the parameter, on the x axis
    points: Sequence[tuple[float, str]]  # value and arm, in the order of the axis


def draw_speedups(
    axes: Axes, places: Sequence[float], speedups: Sequence[Speedup], *, upright: bool = True, **style: Any
) -> None:
    """Draw speedups, none of them refused, as points with their intervals; ``style`` is for ``errorbar``.

    Ratios go up, and ``places`` to the right; with ``upright=False`` the other way round.
    """
    ratios = [speedup.ratio for speedup in speedups]
    errors = list(zip(*(speedup.errors for speedup in speedups), strict=True))
    if upright:
        axes.errorbar(places, ratios, yerr=errors, **style)
    else:
        axes.errorbar(ratios, places, xerr=errors, **style)


def speedup_bars(
    records: Iterable[PromptRecord],
    *,
    baseline: str = "engine",
    title: str = "",
    published: Mapping[str, float] | None = None,
) -> Figure:
    """Draw the speedup of each arm as :func:`bars_of` does."""
    records = list(records)
    speedups = [paired_speedup(records, name, baseline) for name in arm_names(records) if name != baseline]
    used = summarise(records, baseline).clock  # of every bar: a speedup over another clock is refused
    word = f" {clock.adjective(used)}".rstrip()
    notes = [f"{word}, {summarise(records, one.arm).tokens_per_step:.2f} tokens/step" for one in speedups]
    axis = f"{clock.adjective(used)}speedup over {baseline} (seconds per token, 95 % interval)"
    return bars_of(speedups, notes, clock.titled(title, used), axis, published or {})


def bars_of(
    speedups: Sequence[Speedup], notes: Sequence[str], title: str, axis: str, published: Mapping[str, float]
) -> Figure:
    """Draw one bar a speedup, grey unless it is certainly above 1, with its interval across its end.

    A refused speedup has a name but no bar. ``published`` are figures of a paper by name, which were not run here:
    their bars are hollow.
    """
    rows = len(speedups) + len(published)
    figure, [[ax]] = new_figure(7.5, 1.3 + 0.36 * max(rows, 2), title)
    beside: dict[str, Any] = {"va": "center", "fontsize": 8}
    for place, (speedup, note) in enumerate(zip(speedups, notes, strict=True)):
        if speedup.refused:
            ax.text(0.02, place, "refused", color=ORANGE, **beside)
            continue
        ax.barh(place, speedup.ratio, color=BLUE if speedup.is_faster else GREY, height=0.62)
        draw_speedups(ax, [place], [speedup], upright=False, color=INK, capsize=3, lw=1.2)
        ax.text(speedup.high, place, f"  {speedup.ratio:.2f}x{note}", color=INK, **beside)
    for place, ratio in enumerate(published.values(), start=len(speedups)):
        ax.barh(place, ratio, fill=False, edgecolor=GREY, ls="--", height=0.62)
        ax.text(ratio, place, f"  {ratio:.2f}x published", color=INK, **beside)
    name_rows(ax, [*(speedup.arm for speedup in speedups), *(f"{name} (not run here)" for name in published)])
    ax.axvline(1, color=INK, lw=0.8, ls=":")
    ax.set_xlabel(axis, fontsize=9)
    ax.margins(x=0.3)
    ax.set_xlim(left=0)
    return figure


def parameter_curves(
    records: Iterable[PromptRecord], curves: Sequence[Curve], *, baseline: str = "engine", title: str = ""
) -> Figure:
    """Draw speedup with its interval above and tokens per step below, over each swept parameter.

    Curves over the same parameter share their axes.
    """
    records = list(records)
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.axis, []).append(curve)
    used = summarise(records, baseline).clock
    width = 4.2 * max(len(panels), 1.4)
    figure, rows = new_figure(width, 5.2, clock.titled(title, used), 2, len(panels), sharey="row")
    for top, bottom, (axis, shown) in zip(*rows, panels.items(), strict=True):
        for curve, colour in zip(shown, cycle(CURVE_COLOURS), strict=False):
            places, arms = zip(*curve.points, strict=True)
            speedups = [paired_speedup(records, arm, baseline) for arm in arms]
            given = [
                (at, speedup) for at, speedup in zip(places, speedups, strict=True) if not speedup.refused
            ]
            if given:
                draw_speedups(top, *map(list, zip(*given, strict=True)), color=colour, marker="o", capsize=3)
            steps = [summarise(records, arm).tokens_per_step for arm in arms]
            bottom.plot(places, steps, color=colour, marker="s", label=curve.title)
        top.axhline(1, color=INK, lw=0.8, ls=":")
        top.set_title(shown[0].title if len(shown) == 1 else "", fontsize=10)
        if len(shown) > 1:
            bottom.legend(fontsize=8, frameon=False)
        bottom.set_xlabel(axis, fontsize=9)
        values = sorted({value for curve in shown for value, _ in curve.points})
        for ax in (top, bottom):
            if values[0] > 0 and values[-1] / values[0] >= WIDE:
                ax.set_xscale("log", base=2)
            ax.set_xticks(values, [f"{value:g}" for value in values])
            rule(ax)
    rows[0][0].set_ylabel(f"{clock.adjective(used)}speedup over {baseline}", fontsize=9)
    rows[1][0].set_ylabel("tokens per step", fontsize=9)
    return figure


def phase_bars(records: Iterable[PromptRecord], *, title: str = "") -> Figure:
    """Draw how a step's time divides into phases, one stacked bar an arm."""
    records = list(records)
    parts = [part for name in arm_names(records) if (part := breakdown(records, name)) is not None]
    clocks = {part.clock for part in parts}
    shown = clock.titled(title, clocks.pop()) if len(clocks) == 1 else title
    figure, [[ax]] = new_figure(7.5, 1.7 + 0.45 * max(len(parts), 2), shown)
    phases = [phase for phase in PHASE_COLOURS if any(phase in part.shares for part in parts)]
    starts = [0.0] * len(parts)
    for phase in phases:
        shares = [100 * part.shares.get(phase, 0.0) for part in parts]
        texts = ["" if share < 4 else f"{share:.0f}" if share < 10 else f"{share:.1f} %" for share in shares]
        bars = ax.barh(
            range(len(parts)), shares, left=starts, color=PHASE_COLOURS[phase], height=0.6, label=phase
        )
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
