"""Draft lengths as pictures: the best of every step, and the speed of fixed ones, also as a table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from specexp.papers._hindsight import Costs, Step, cut_short, global_optimum, local_optima, speed_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.bench.statistics import Speedup
    from specexp.bench.table import Table


@dataclass(frozen=True)
class Point:
    """An arm of a fixed length.

    Attributes:
        length: of its chain.
        speedup: over plain decoding.
    """

    length: int
    speedup: Speedup


def draw_optima(arm: str, steps: Sequence[Step], cost: Costs, most_steps: int) -> Figure:
    """The optimum of every step and of the run; beside it how often each length would have been best.

    Args:
        arm: whose steps.
        steps: all of them.
        cost: of its steps and passes.
        most_steps: drawn one by one, the first ones.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from specexp.bench.pictures import BLUE, GREY, INK, ORANGE

    local, cut = local_optima(steps, cost), cut_short(steps)
    best, speed = global_optimum(steps, cost)
    figure = Figure(figsize=(9.5, 3.9), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(
        f"The best draft length of every step ({arm})\n"
        f"{cost.word}speed if it were known: {speed_of(steps, cost, None):.2f}x plain decoding; "
        f"of the best fixed length: {speed:.2f}x",
        fontsize=11,
        color=INK,
    )
    trace, side = figure.subplots(1, 2, width_ratios=(3.4, 1), sharey=True)
    shown = local[:most_steps]
    places = np.arange(1, len(shown) + 1)
    trace.vlines(places, best, shown, color=GREY, lw=1.6)
    open_ended = cut[:most_steps]
    trace.plot(places[~open_ended], shown[~open_ended], "o", ms=3.6, color=BLUE, label="locally optimal")
    trace.plot(
        places[open_ended],
        shown[open_ended],
        "o",
        ms=3.6,
        mfc="white",
        color=BLUE,
        label="at least (cut short)",
    )
    trace.axhline(best, color=ORANGE, lw=1.6, label=f"globally optimal: {best}")
    trace.set_xlim(0, len(shown) + 1)
    trace.set_xlabel(f"step (the first {len(shown)} of {len(steps)})", fontsize=9)
    trace.set_ylabel("draft length", fontsize=9)
    trace.legend(loc="upper center", bbox_to_anchor=(0.5, 1.1), ncols=3, fontsize=8, frameon=False)
    counts = np.bincount(local, minlength=best + 1)
    shares = 100 * counts / counts.sum()
    side.barh(np.arange(len(counts)), shares, height=0.8, color=BLUE)
    side.axhline(best, color=ORANGE, lw=1.6)
    near = shares[max(best - 1, 0) : best + 2].sum()
    side.set_title(f"{near:.0f} % within 1 of it", fontsize=9, color=INK)
    side.set_xlabel("% of all steps", fontsize=9)
    figure.supxlabel(_cost_text(cost), fontsize=8, color=INK)
    for axes in (trace, side):
        axes.set_ylim(-0.8, max(len(counts), 2) - 0.2)
        axes.yaxis.get_major_locator().set_params(integer=True)
        axes.tick_params(labelsize=8, colors=INK)
        axes.spines[["top", "right"]].set_visible(False)
    return figure


def draw_sensitivity(
    groups: Mapping[tuple[str, str], Sequence[Point]], replayed: tuple[str, Sequence[float]] | None
) -> Figure:
    """Speed against draft length, by group and by category.

    Args:
        groups: points by group and category; ``all`` is every category.
        replayed: an arm, and the speed of the lengths from 1 on as replayed from its steps; None where it has none.
    """
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    from specexp.bench import clock
    from specexp.bench.pictures import GREY, INK

    shown = dict.fromkeys(category for _, category in groups if category != "all")
    names = dict.fromkeys(group for group, _ in groups)
    panels: list[tuple[str, dict[str, Sequence[Point]]]] = [
        ("all prompts", {name: groups[name, "all"] for name in names if (name, "all") in groups})
    ]
    for name in names if shown else ():
        lines = {kind: groups[name, kind] for kind in shown if (name, kind) in groups}
        panels.append((f"{name}, by category", lines))
    figure = Figure(figsize=(4.6 * max(len(panels), 1.3), 4.2), dpi=130, layout="constrained")
    FigureCanvasAgg(figure)
    used = next(point.speedup.clock for points in groups.values() for point in points)
    figure.suptitle(
        clock.title("Speed against draft length, the best length marked", used), fontsize=11, color=INK
    )
    row = figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]
    for axes, (title, lines) in zip(row, panels, strict=True):
        _draw_lines(axes, lines, intervals=title == "all prompts")
        axes.set_title(title, fontsize=9, color=INK)
        axes.set_xlabel("draft length", fontsize=9)
        axes.axhline(1, color=INK, lw=0.8, ls=":")
        axes.tick_params(labelsize=8, colors=INK)
        axes.grid(axis="y", color="#e3e8ec", lw=0.7)
        axes.spines[["top", "right"]].set_visible(False)
    if replayed is not None:
        arm, speeds = replayed
        lengths = range(1, len(speeds) + 1)
        row[0].plot(lengths, speeds, color=GREY, ls="--", lw=1.2, label=f"replayed from {arm}, all tokens")
    for axes in row:
        axes.legend(fontsize=7, frameon=False, loc="best")
    row[0].set_ylabel(f"{clock.word(used)}speedup over plain decoding", fontsize=9)
    return figure


def sensitivity_table(groups: Mapping[tuple[str, str], Sequence[Point]]) -> Table:
    """The best length of every group and category, and the speed at each length."""
    from specexp.bench import clock
    from specexp.bench.table import Cell, Column, Table

    used = next(point.speedup.clock for points in groups.values() for point in points)
    lengths = sorted({point.length for points in groups.values() for point in points})
    table = Table(
        clock.title("Speed against draft length", used),
        [
            Column("arms"),
            Column("category"),
            Column("prompts"),
            Column("best length"),
            Column(f"{clock.word(used)}speedup at it", interval=True),
            *(Column(f"at {length}", 2, "x") for length in lengths),
        ],
        notes=[
            f"All {clock.word(used)}speedups over plain decoding; geometric mean over prompts, 95 % bootstrap interval."
        ],
    )
    for (group, category), points in groups.items():
        best = max(points, key=lambda point: point.speedup.ratio)
        ratios = {point.length: point.speedup.ratio for point in points}
        told: list[Cell] = [ratios.get(length) for length in lengths]
        table.rows.append([group, category, best.speedup.n, best.length, best.speedup, *told])
    return table


def _draw_lines(axes: Axes, lines: Mapping[str, Sequence[Point]], intervals: bool) -> None:
    from matplotlib import colormaps

    from specexp.bench.pictures import CURVE_COLOURS

    colours = CURVE_COLOURS if len(lines) <= len(CURVE_COLOURS) else colormaps["tab10"].colors  # type: ignore[attr-defined]
    for number, (name, points) in enumerate(lines.items()):
        colour = colours[number % len(colours)]
        lengths = [point.length for point in points]
        ratios = [point.speedup.ratio for point in points]
        axes.plot(lengths, ratios, color=colour, marker="o", ms=3.5, lw=1.4, label=name)
        if intervals:
            axes.fill_between(
                lengths,
                [point.speedup.low for point in points],
                [point.speedup.high for point in points],
                color=colour,
                alpha=0.15,
                lw=0,
            )
        best = int(np.argmax(ratios))
        axes.plot(lengths[best], ratios[best], "*", color=colour, ms=13, mec="white")
        axes.annotate(
            f"{lengths[best]}",
            (lengths[best], ratios[best]),
            xytext=(0, 8),
            textcoords="offset points",
            ha="center",
            fontsize=8,
            color=colour,
        )


def _cost_text(cost: Costs) -> str:
    return f"a draft pass costs {cost.draft_pass:.3f} steps of plain decoding ({cost.source})"
