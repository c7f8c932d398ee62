"""Pictures and charts of a study: Optuna's own plots, its parameters one by one, its page's charts, and its winner."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.trial import FrozenTrial, TrialState

from specexp.bench.page.charts import importances_chart, ratios_chart, search_chart
from specexp.bench.pictures import INK, bare_figure, plain, rule
from specexp.bench.publish import Report
from specexp.config.sweep import Sweep
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirm import AR, Confirmation
from specexp.sweep.trials import is_modelled, trial_row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.collections import PathCollection
    from matplotlib.figure import Figure

    from specexp.data import Prompt

COLUMNS = 4
"""Panels of numeric parameters side by side."""

SECONDS_SHOWN = 0.5
"""Length of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""

_TOO_FEW = (ValueError, RuntimeError, ZeroDivisionError)
"""Errors of Optuna about studies with too few trials."""


def save_plots(study: optuna.Study, objectives: list[str], folder: Path) -> list[Path]:
    """Write ``history.png``, ``importances.png``, ``slice.png``, ``contour.png`` and, for several objectives,
    ``pareto_front.png``; those that the study has too few trials for are left out.

    Args:
        objectives: Names of its objectives, in the study's order; the first is plotted where one is.
        folder: Folder of the pictures; it is made if it does not exist.

    Returns:
        The files written.
    """
    plots = optuna.visualization.matplotlib
    distinct = _distinct(study)
    # A study's value is the logarithm, so that means and differences are those of ratios.
    modelled = "modelled " if any(map(is_modelled, study.get_trials(deepcopy=False))) else ""
    names = [
        f"{modelled}log speedup over AR" if name == "speedup" else name.replace("_", " ")
        for name in objectives
    ]
    first: dict[str, Any] = {"target_name": names[0], **_first_value(study)}
    searched = _with_parameters(distinct)

    def contour() -> Any:
        target = first.get("target")
        keys = list(optuna.importance.get_param_importances(searched, target=target))[:2]
        return plots.plot_contour(searched, params=keys, **first)

    pictures: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(distinct, **first),
        "importances": lambda: plots.plot_param_importances(searched, **first),
        "slice": lambda: draw_slices(searched.get_trials(deepcopy=False), names[0]),
        "contour": contour,
    }
    if len(objectives) > 1:
        pictures["pareto_front"] = lambda: plots.plot_pareto_front(distinct, target_names=names)
    folder.mkdir(parents=True, exist_ok=True)
    return [path for name, draw in pictures.items() if (path := _save(draw, folder / f"{name}.png"))]


def _first_value(study: optuna.Study) -> dict[str, Any]:
    return {"target": lambda trial: trial.values[0]} if len(study.directions) > 1 else {}


def _distinct(study: optuna.Study) -> optuna.Study:
    """The complete trials alone; those that only repeat another would count it twice."""
    found = optuna.create_study(directions=study.directions)
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    found.add_trials([trial for trial in trials if "duplicate_of" not in trial.user_attrs])
    return found


def _with_parameters(study: optuna.Study) -> optuna.Study:
    """The trials of a study inside its space: those outside have no parameter to show."""
    found = optuna.create_study(directions=study.directions)
    found.add_trials([trial for trial in study.get_trials() if trial.params])
    return found


def _save(draw: Callable[[], Any], path: Path) -> Path | None:
    from matplotlib import pyplot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            drawn = draw()
            figure = drawn.flat[0].figure if hasattr(drawn, "flat") else getattr(drawn, "figure", drawn)
            figure.savefig(path, dpi=120, bbox_inches="tight")
        except _TOO_FEW:
            return None
        finally:
            pyplot.close("all")
    return path


def draw_slices(trials: Sequence[FrozenTrial], objective: str) -> Figure:
    """A panel for every parameter: choices as lines of their own, best at the top; numbers on their scale.

    Raises:
        ValueError: No trial has a parameter.
    """
    from matplotlib import rc_context, rcParamsDefault

    found = {key: trial.distributions[key] for trial in trials for key in trial.params}
    chosen = [key for key, kind in found.items() if isinstance(kind, CategoricalDistribution)]
    numbers = [key for key in found if key not in chosen]
    if not found:
        raise ValueError("no trial has a parameter")
    choices = [len({trial.params[key] for trial in trials if key in trial.params}) for key in chosen]
    heights = [0.9 + 0.28 * count for count in choices] + [2.4] * -(-len(numbers) // COLUMNS)
    with rc_context(rcParamsDefault):  # Optuna's own plots leave their style behind
        figure = bare_figure(11, 0.8 + sum(heights), dpi=120, layout="constrained")
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
    own = [trial for trial in trials if key in trial.params]
    best: dict[Any, float] = {}
    for trial in own:
        choice = trial.params[key]
        best[choice] = max(best.get(choice, trial.values[0]), trial.values[0])
    lines = sorted(best, key=best.__getitem__)
    places = [lines.index(trial.params[key]) for trial in own]
    points = _scatter(axes, key, [trial.values[0] for trial in own], places, own, trials)
    axes.set_yticks(range(len(lines)), [str(line) for line in lines])
    axes.set_ylim(-0.6, len(lines) - 0.4)
    rule(axes, "both")
    return points


def _draw_numbers(axes: Axes, key: str, kind: Any, trials: Sequence[FrozenTrial]) -> PathCollection:
    from matplotlib.ticker import LogLocator, MaxNLocator, NullFormatter, StrMethodFormatter

    own = [trial for trial in trials if key in trial.params]
    across = [trial.params[key] for trial in own]
    points = _scatter(axes, key, across, [trial.values[0] for trial in own], own, trials)
    if isinstance(kind, IntDistribution | FloatDistribution) and kind.log:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    elif isinstance(kind, IntDistribution):
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    return points


def _scatter(
    axes: Axes,
    key: str,
    across: Sequence[float],
    up: Sequence[float],
    own: Sequence[FrozenTrial],
    trials: Sequence[FrozenTrial],
) -> PathCollection:
    from matplotlib import colormaps
    from matplotlib.colors import ListedColormap

    blues = ListedColormap(colormaps["Blues"](np.linspace(0.15, 1, 256)))
    last = max(trial.number for trial in trials)
    numbers = [trial.number for trial in own]
    points = axes.scatter(across, up, c=numbers, cmap=blues, vmin=0, vmax=last, s=22, edgecolors=INK, lw=0.4)
    plain(axes)
    rule(axes, "x")
    axes.set_title(key.replace(".init_args", ""), fontsize=9, color=INK)
    return points


def charts_of(
    study: optuna.Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Charts of a study's page: the confirmation prompt by prompt, and the search behind it."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    searched = _with_parameters(_distinct(study))
    try:
        shares = optuna.importance.get_param_importances(searched, **_first_value(study))
    except _TOO_FEW:
        shares = {}
    found = {
        "confirmation": ratios_chart(confirmation.records, AR, titles, texts),
        "search": search_chart(rows, choice),
        "importances": importances_chart(shares, len(searched.get_trials(deepcopy=False))),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def pictures_of_winner(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Report:
    """Pictures of the winner, from what was observed while it was confirmed: its tree, and its time line.

    Args:
        prompts: Its prompts; a tree under several sequences decoded together is counted on them once more.
    """
    winner = confirmation.winner
    figures, fragments, files = dict[str, Any](), dict[str, str](), dict[str, str]()
    if "rank_paths" in winner.attributes:
        from specexp.bench.drawings import draw_tree
        from specexp.bench.page.sections import folding_tree

        shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
        rates = _rates(confirmation, shape, prompts)
        figures["tree"] = draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR")
        fragments["tree"] = folding_tree(shape.rank_paths[1:], rates, f"The tree of {winner.label}")
    if lines := confirmation.watch.time_lines:
        from specexp.bench.drawings import draw_time_line
        from specexp.scheduling.timeline import chrome_trace

        shown = {"AR (engine)": lines[AR], winner.label: lines[winner.name]}
        title = f"prompt {prompts[0].prompt_id}: {winner.over_ar} over AR"
        figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
        files["time_line.json"] = chrome_trace(shown)
    return Report(figures=figures, files=files, fragments=fragments)


def _rates(confirmation: Confirmation, shape: TreeShape, prompts: Sequence[Prompt]) -> dict[RankPath, float]:
    winner = confirmation.winner
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is None:
        return {}
    if not counter.steps:
        for prompt in prompts:
            confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
    return {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
