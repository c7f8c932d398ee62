"""A measured profile as a picture."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from statistics import median
from textwrap import fill
from typing import TYPE_CHECKING, Any

from matplotlib.ticker import LogLocator

from specexp.bench.pictures import (
    BLUE,
    CURVE_COLOURS,
    GREY,
    INK,
    ORANGE,
    bare_figure,
    name_rows,
    new_figure,
    plain,
)
from specexp.core.latency import PLAIN

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from specexp.artifacts.kinds.latency_profile import Measured, MeasuredPass
    from specexp.core.latency import LatencyProfile
    from specexp.profile.backends import Contest

_COSTS = (("of the step", "#6b9080"), ("of its nodes", "#e9b872"), ("of its new tokens", "#8d6a9f"))
_LABEL = 30  # characters of a composition in a line


def draw(profile: LatencyProfile, measured: Measured) -> Figure:
    """Passes over their tokens, a line for every prefix with its interval; below, what a mean step of each composition
    costs beside them.

    Args:
        profile: The profile as fitted.
        measured: What it was fitted to.
    """
    kinds = [
        (name, points) for name, points in (("Target", measured.target), ("Draft", measured.draft)) if points
    ]
    bars = 0.42 * max(len(profile.overheads), 1) + 1.1
    figure = bare_figure(9.5, 4.2 + bars, layout="constrained")
    figure.suptitle(fill(f"{profile.name} ({profile.source})", 100), fontsize=11, color=INK)
    panels: Any = figure.subfigures(2, 1, height_ratios=[4.0, bars])
    above, below = panels
    for axes, (name, points) in zip(above.subplots(1, len(kinds), squeeze=False)[0], kinds, strict=True):
        _draw_pass(axes, name, points)
    _draw_costs(below.subplots(), profile, measured)
    return figure


def _draw_pass(axes: Axes, name: str, points: Sequence[MeasuredPass]) -> None:
    sizes = sorted({point.tokens for point in points})
    for number, prefix in enumerate(sorted({point.prefix for point in points})):
        own = sorted((point for point in points if point.prefix == prefix), key=lambda point: point.tokens)
        colour = CURVE_COLOURS[number % len(CURVE_COLOURS)]
        places = [point.tokens for point in own]
        axes.fill_between(
            places,
            [point.low for point in own],
            [point.high for point in own],
            color=colour,
            alpha=0.25,
            lw=0,
        )
        axes.plot(
            places, [point.ms for point in own], color=colour, marker="o", ms=3, lw=1.4, label=str(prefix)
        )
    axes.set_xscale("log", base=2)
    ticks = [size for size in sizes if size & (size - 1) == 0] or sizes
    axes.set_xticks(ticks, [str(size) for size in ticks])
    axes.minorticks_off()
    axes.set_ylim(bottom=0)
    axes.set_title(f"{name} pass", fontsize=10, color=INK)
    axes.set_xlabel("new tokens", fontsize=9)
    axes.set_ylabel("ms (median, 95 % interval)", fontsize=9)
    axes.grid(axis="y", lw=0.4, alpha=0.5)
    plain(axes)
    axes.legend(title="tokens in the cache", fontsize=8, title_fontsize=8, frameon=False)


def _draw_costs(axes: Axes, profile: LatencyProfile, measured: Measured) -> None:
    """Stacked bars at every composition's mean step."""
    labels = [label for label in profile.overheads if any(arm.composition == label for arm in measured.arms)]
    longest = 0.0
    for place, label in enumerate(labels):
        arms = [arm for arm in measured.arms if arm.composition == label]
        steps = sum(arm.steps for arm in arms)
        nodes = sum(arm.nodes for arm in arms) / steps
        tokens = sum(arm.tokens for arm in arms) / steps
        cost, left = profile.overheads[label], 0.0
        parts = (0.0 if label == PLAIN else cost.step_ms, cost.node_ms * nodes, cost.token_ms * tokens)
        for (what, colour), width in zip(_COSTS, parts, strict=True):
            axes.barh(place, width, left=left, color=colour, height=0.6, label=None if place else what)
            left += width
        said = f"  {left:.2f} ms" + ("" if label == PLAIN else f" at {nodes:.1f} nodes, {tokens:.2f} tokens")
        axes.text(left, place, said, va="center", fontsize=8, color=INK)
        longest = max(longest, left)
    axes.set_yticks(range(len(labels)), [fill(label, _LABEL) for label in labels], fontsize=8)
    axes.invert_yaxis()
    axes.set_xlim(0, 1.45 * longest or 1.0)
    axes.set_xlabel("ms of a mean step beside its passes", fontsize=9)
    plain(axes)
    axes.legend(fontsize=8, frameon=False, loc="upper right")


def draw_contest(contest: Contest) -> Figure:
    """Target passes of every backend over their rows, with what bounds them; beside it where a step's time goes.

    Args:
        contest: What was measured.
    """
    figure, [[left, right]] = new_figure(12, 5, "Where the backends stand", 1, 2)
    prefix = contest.backends[0].stated_prefix
    for number, timed in enumerate(contest.backends):
        samples = timed.passes["target"]
        times = [median(samples.milliseconds[prefix, rows]) for rows in samples.sizes]
        left.plot(samples.sizes, times, color=CURVE_COLOURS[number], marker="o", ms=3, label=timed.name)
    for name, samples in contest.bounds.items():
        behind = samples.prefixes[(len(samples.prefixes) - 1) // 2]
        times = [median(samples.milliseconds[behind, rows]) for rows in samples.sizes]
        if len(times) == 1:
            left.axhline(times[0], color=INK, lw=0.8, ls=":", label=name)
        else:
            left.plot(samples.sizes, times, lw=0.9, ls="--", label=name)
    left.set_xscale("log", base=2)
    left.set_yscale("log")
    sizes = contest.backends[0].passes["target"].sizes
    ticks = [size for size in sizes if size & (size - 1) == 0] or sizes
    left.set_xticks(ticks, [str(size) for size in ticks])
    left.minorticks_off()
    left.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    left.yaxis.set_major_formatter("{x:g}")
    left.set_xlabel("rows of a target pass", fontsize=9)
    left.set_ylabel(f"ms behind {prefix} tokens", fontsize=9)
    left.legend(fontsize=7, frameon=False)
    ours = [(timed, arm) for timed in contest.backends for arm in timed.arms]
    for place, (_, arm) in enumerate(ours):
        within = 1e3 * median(step.pass_seconds for step in arm.steps)
        beside = 1e3 * median(step.seconds - step.pass_seconds for step in arm.steps)
        right.barh(place, within, color=BLUE, height=0.6, label=None if place else "passes")
        right.barh(place, beside, left=within, color=ORANGE, height=0.6, label=None if place else "outside")
        right.text(within + beside, place, f" {within + beside:.2f}", va="center", fontsize=8, color=INK)
    for place, loop in enumerate(contest.loops, start=len(ours)):
        whole = 1e3 * median(chain.from_iterable(loop.answers))
        right.barh(place, whole, color=GREY, height=0.6)
        right.text(whole, place, f" {whole:.2f}", va="center", fontsize=8, color=INK)
    names = [f"{timed.name}: {arm.arm.name}" for timed, arm in ours] + [loop.name for loop in contest.loops]
    name_rows(right, [fill(name, _LABEL) for name in names])
    right.set_xlabel("ms of a step (median)", fontsize=9)
    right.legend(fontsize=8, frameon=False)
    return figure
