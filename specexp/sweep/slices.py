"""A study parameter by parameter: what every value brought, in the order of the trials."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

from specexp.bench.pictures import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure
    from optuna.trial import FrozenTrial

COLUMNS = 4
"""Of numeric parameters, side by side."""

GRID = "#e3e8ec"


def draw_slices(trials: Sequence[FrozenTrial], objective: str) -> Figure:
    """A panel for every parameter: choices as lines of their own, best at the top; numbers on their scale.

    Args:
        trials: Finished trials, shown by their first value.
        objective: Name of that value.

    Raises:
        ValueError: No trial has a parameter.
    """
    from matplotlib import rc_context, rcParamsDefault

    with rc_context(rcParamsDefault):  # Optuna's own plots leave their style behind
        return _draw(trials, objective)


def _draw(trials: Sequence[FrozenTrial], objective: str) -> Figure:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    found = {key: trial.distributions[key] for trial in trials for key in trial.params}
    chosen = [key for key, kind in found.items() if isinstance(kind, CategoricalDistribution)]
    numbers = [key for key in found if key not in chosen]
    if not found:
        raise ValueError("no trial has a parameter")
    rows = -(-len(numbers) // COLUMNS)
    choices = [len({trial.params[key] for trial in trials if key in trial.params}) for key in chosen]
    heights = [0.9 + 0.28 * count for count in choices] + [2.4] * rows
    figure = Figure(figsize=(11, 0.8 + sum(heights)), dpi=120, layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle("What every value brought", fontsize=12, color=INK)
    grid = figure.add_gridspec(len(heights), COLUMNS, height_ratios=heights)
    points, first = None, None
    for row, key in enumerate(chosen):
        axes = figure.add_subplot(grid[row, :])
        points = _draw_choices(axes, key, trials)
        axes.set_xlabel(objective, fontsize=8)
    for place, key in enumerate(numbers):
        axes = figure.add_subplot(grid[len(chosen) + place // COLUMNS, place % COLUMNS], sharey=first)
        first = first or axes
        points = _draw_numbers(axes, key, found[key], trials)
        if place % COLUMNS == 0:
            axes.set_ylabel(objective, fontsize=8)
    assert points is not None
    figure.colorbar(points, ax=figure.axes, label="trial", shrink=0.6, aspect=40)
    return figure


def _draw_choices(axes: Axes, key: str, trials: Sequence[FrozenTrial]) -> PathCollection:
    best: dict[Any, float] = {}
    for trial in trials:
        if key in trial.params:
            choice = trial.params[key]
            best[choice] = max(best.get(choice, trial.values[0]), trial.values[0])
    lines = sorted(best, key=best.__getitem__)
    own = [trial for trial in trials if key in trial.params]
    places = [lines.index(trial.params[key]) for trial in own]
    points = _scatter(axes, [trial.values[0] for trial in own], places, own, trials)
    axes.set_yticks(range(len(lines)), [str(line) for line in lines])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    axes.grid(axis="y", color=GRID, lw=0.7)
    axes.set_title(_short(key), fontsize=9, color=INK)
    return points


def _draw_numbers(axes: Axes, key: str, kind: Any, trials: Sequence[FrozenTrial]) -> PathCollection:
    own = [trial for trial in trials if key in trial.params]
    values = [trial.params[key] for trial in own]
    points = _scatter(axes, values, [trial.values[0] for trial in own], own, trials)
    if isinstance(kind, IntDistribution | FloatDistribution) and kind.log:
        from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif isinstance(kind, IntDistribution):
        from matplotlib.ticker import MaxNLocator

        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.set_title(_short(key), fontsize=9, color=INK)
    return points


def _scatter(
    axes: Axes,
    across: Sequence[float],
    up: Sequence[float],
    own: Sequence[FrozenTrial],
    trials: Sequence[FrozenTrial],
) -> PathCollection:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    seen = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    last = max(trial.number for trial in trials)
    numbers = [trial.number for trial in own]
    points = axes.scatter(across, up, c=numbers, cmap=seen, vmin=0, vmax=last, s=22, edgecolors=INK, lw=0.4)
    axes.tick_params(labelsize=8, colors=INK)
    axes.grid(axis="x", color=GRID, lw=0.7)
    axes.spines[["top", "right"]].set_visible(False)
    axes.set_axisbelow(True)
    return points


def _short(key: str) -> str:
    """A dotted key without what all of them have.

    Example:
        >>> _short("builder.init_args.builder.init_args.length")
        'builder.builder.length'
    """
    return key.replace(".init_args", "")
