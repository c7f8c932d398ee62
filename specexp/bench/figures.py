"""Pictures of a run: speedups as bars, curves over a swept parameter, the phases of a step."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from specexp.bench import clock
from specexp.bench.phases import breakdown
from specexp.bench.pictures import (
    BLUE,
    CURVE_COLOURS,
    GREY,
    INK,
    ORANGE,
    PHASE_COLOURS,
    legend_below,
    name_rows,
    new_figure,
    rule,
)
from specexp.bench.record import PromptRecord
from specexp.bench.statistics import Speedup, arm_names, paired_speedup, summarise

WIDE = 16  # a parameter whose values span more than this is drawn over its logarithm


@dataclass(frozen=True)
class Curve:
    """Arms that differ in one parameter.

    Attributes:
        title: Name of the group of arms.
        axis: What differs, on the x axis.
        points: Value and arm, in the order of the axis.
    """

    title: str
    axis: str
    points: Sequence[tuple[float, str]]


def draw_speedups(
    axes: Axes, places: Sequence[float], speedups: Sequence[Speedup], *, upright: bool = True, **style: Any
) -> None:
    """Ratios as points with their intervals.

    Args:
        axes: Axes to draw on.
        places: Where each stands.
        speedups: As many, none of them refused.
        upright: Whether ratios go up, and places to the right; else the other way round.
        style: Arguments of matplotlib's ``errorbar``.
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
    """One bar an arm, its 95 % interval across its end; refused speedups are named and have no bar.

    Args:
        records: Records of a run.
        baseline: Arm that stands at 1.
        title: Line above.
        published: Figures of a paper by name, drawn hollow: not run here.
    """
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
    """One bar a speedup, grey where it may be none, and its interval across its end.

    Args:
        speedups: Speedups; one that is refused has its name and no bar.
        notes: What stands behind the figure of each.
        title: Title of the picture.
        axis: What the bars measure.
        published: Figures of a paper by name, drawn hollow: not run here.
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
    """Speedup with its interval above, tokens per step below, over each swept parameter; curves over the same one
    share their axes.
    """
    records = list(records)
    panels: dict[str, list[Curve]] = {}
    for curve in curves:
        panels.setdefault(curve.axis, []).append(curve)
    used = summarise(records, baseline).clock
    figure, rows = new_figure(
        4.2 * max(len(panels), 1.4), 5.2, clock.titled(title, used), 2, len(panels), sharey="row"
    )
    for top, bottom, (axis, shown) in zip(*rows, panels.items(), strict=True):
        for curve, colour in zip(shown, cycle(CURVE_COLOURS), strict=False):
            _draw_curve(top, bottom, records, curve, baseline, colour)
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


def _draw_curve(
    top: Axes, bottom: Axes, records: Sequence[PromptRecord], curve: Curve, baseline: str, colour: str
) -> None:
    speedups = [(value, paired_speedup(records, arm, baseline)) for value, arm in curve.points]
    given = [(value, speedup) for value, speedup in speedups if not speedup.refused]
    if given:
        draw_speedups(top, *map(list, zip(*given, strict=True)), color=colour, marker="o", capsize=3)
    steps = [summarise(records, arm).tokens_per_step for _, arm in curve.points]
    bottom.plot([value for value, _ in curve.points], steps, color=colour, marker="s", label=curve.title)


def phase_bars(records: Iterable[PromptRecord], *, title: str = "") -> Figure:
    """How a step's time divides into phases, one stacked bar an arm."""
    records = list(records)
    parts = [part for name in arm_names(records) if (part := breakdown(records, name)) is not None]
    clocks = {part.clock for part in parts}
    shown = clock.titled(title, clocks.pop()) if len(clocks) == 1 else title
    figure, [[ax]] = new_figure(7.5, 1.7 + 0.45 * max(len(parts), 2), shown)
    phases = [phase for phase in PHASE_COLOURS if any(phase in part.shares for part in parts)]
    for place, part in enumerate(parts):
        start = 0.0
        for phase in phases:
            share = 100 * part.shares.get(phase, 0.0)
            ax.barh(
                place,
                share,
                left=start,
                color=PHASE_COLOURS[phase],
                height=0.6,
                label=phase if not place else None,
            )
            if share >= 4:
                text = f"{share:.0f}" if share < 10 else f"{share:.1f} %"
                ax.text(start + share / 2, place, text, ha="center", va="center", fontsize=8, color="white")
            start += share
    labels = []
    for part in parts:
        outside = f"{100 * part.outside_forward:.1f} % outside forward passes"
        labels.append(
            f"{part.arm}\n{1000 * part.step_seconds:.2f} {clock.adjective(part.clock)}ms/step, {outside}"
        )
    ax.set_yticks(range(len(parts)), labels, fontsize=8)
    ax.invert_yaxis()
    ax.set_xlim(0, 100)
    ax.set_xlabel("share of a step (%)", fontsize=9)
    legend_below(figure, len(phases))
    return figure
