"""Pictures and charts of a study: Optuna's plots, the charts of its page, and its winner."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState

from specexp.bench.page.charts import importances_chart, ratios_chart, search_chart
from specexp.bench.publish import Report
from specexp.config.sweep import Sweep
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirmation import AR, Confirmation
from specexp.sweep.trials import is_modelled, trial_row

if TYPE_CHECKING:
    from specexp.data import Prompt

SECONDS_SHOWN = 0.5
"""Length of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""

_TOO_FEW = (ValueError, RuntimeError, ZeroDivisionError)
"""Errors of Optuna about studies with too few trials."""


def save_plots(study: optuna.Study, objectives: list[str], folder: Path) -> None:
    """Write Optuna's plots that the study has enough trials for, with ``pareto_front.png`` for several objectives."""
    plots = optuna.visualization.matplotlib
    distinct = _distinct(study)
    # A study's value is the logarithm, so that means and differences are those of ratios.
    modelled = "modelled " if any(map(is_modelled, study.get_trials(deepcopy=False))) else ""
    names = [
        f"{modelled}log speedup over AR" if name == "speedup" else name.replace("_", " ")
        for name in objectives
    ]
    first: dict[str, Any] = {"target_name": names[0], **_first_value(study)}
    searched = _distinct(study, searched=True)

    def contour() -> Any:
        target = first.get("target")
        keys = list(optuna.importance.get_param_importances(searched, target=target))[:2]
        return plots.plot_contour(searched, params=keys, **first)

    pictures: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(distinct, **first),
        "importances": lambda: plots.plot_param_importances(searched, **first),
        "slice": lambda: plots.plot_slice(searched, **first),
        "contour": contour,
    }
    if len(objectives) > 1:
        pictures["pareto_front"] = lambda: plots.plot_pareto_front(distinct, target_names=names)
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw in pictures.items():
        _save(draw, folder / f"{name}.png")


def _first_value(study: optuna.Study) -> dict[str, Any]:
    return {"target": lambda trial: trial.values[0]} if len(study.directions) > 1 else {}


def _distinct(study: optuna.Study, *, searched: bool = False) -> optuna.Study:
    """The complete trials without repeats; with ``searched`` only those inside the space, which have parameters."""
    found = optuna.create_study(directions=study.directions)
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    kept = [trial for trial in trials if "duplicate_of" not in trial.user_attrs]
    found.add_trials([trial for trial in kept if trial.params or not searched])
    return found


def _save(draw: Callable[[], Any], path: Path) -> None:
    from matplotlib import pyplot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            drawn = draw()
            figure = drawn.flat[0].figure if hasattr(drawn, "flat") else getattr(drawn, "figure", drawn)
            figure.savefig(path, dpi=120, bbox_inches="tight")
        except _TOO_FEW:
            pass
        finally:
            pyplot.close("all")


def charts_of(
    study: optuna.Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Charts of a study's page: the confirmation prompt by prompt, and the search."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    searched = _distinct(study, searched=True)
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
    """Pictures of the winner during its confirmation: its tree, and its time line.

    Args:
        prompts: Prompts on which a tree under several sequences is counted once more.
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
