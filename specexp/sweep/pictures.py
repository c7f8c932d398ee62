"""Pictures and charts of a study: Optuna's plots, the charts of its page, and its winner."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import TrialState

from specexp.bench.page.sections import folding_tree, importances_chart, ratios_chart, search_chart
from specexp.bench.pictures import draw_time_line, draw_tree
from specexp.bench.publish import Report
from specexp.config.sweep import Sweep
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirmation import AR, BASELINES, Confirmation
from specexp.sweep.trials import is_modelled, trial_row

if TYPE_CHECKING:
    from specexp.data import Prompt

SECONDS_SHOWN = 0.5
"""Length of a time line in a picture, so that single passes can be seen; the file for Perfetto holds all."""

_TOO_FEW = (ValueError, RuntimeError, ZeroDivisionError)
"""Errors of Optuna about studies with too few trials."""


def save_plots(study: optuna.Study, objectives: list[str], folder: Path) -> None:
    """Write Optuna's history and slices, with ``pareto_front.png`` for several objectives, of the complete trials."""
    from matplotlib import pyplot

    plots, complete, searched = optuna.visualization.matplotlib, *_complete(study)
    # A study's value is the logarithm, so that means and differences are those of ratios.
    modelled = "modelled " if any(map(is_modelled, study.get_trials(deepcopy=False))) else ""
    names = [
        f"{modelled}log speedup over AR" if name == "speedup" else name.replace("_", " ")
        for name in objectives
    ]
    first: dict[str, Any] = {"target_name": names[0], **_first_value(study)}
    pictures: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(complete, **first),
        "slice": lambda: plots.plot_slice(searched, **first),
    }
    if len(objectives) > 1:
        pictures["pareto_front"] = lambda: plots.plot_pareto_front(complete, target_names=names)
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, draw in pictures.items():
            try:
                draw()
                pyplot.savefig(folder / f"{name}.png", dpi=120, bbox_inches="tight")
            except _TOO_FEW:
                pass
            finally:
                pyplot.close("all")


def _first_value(study: optuna.Study) -> dict[str, Any]:
    return {"target": lambda trial: trial.values[0]} if len(study.directions) > 1 else {}


def _complete(study: optuna.Study) -> tuple[optuna.Study, optuna.Study]:
    """The complete trials without repeats, and those of them inside the space, which have parameters."""
    trials = study.get_trials(states=(TrialState.COMPLETE,))
    kept = [trial for trial in trials if "duplicate_of" not in trial.user_attrs]
    complete, searched = (optuna.create_study(directions=study.directions) for _ in range(2))
    complete.add_trials(kept)
    searched.add_trials([trial for trial in kept if trial.params])
    return complete, searched


def charts_of(
    study: optuna.Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Charts of a study's page: the confirmation prompt by prompt, and the search."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    _, searched = _complete(study)
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
        shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
        rates = _acceptance_rates(confirmation, shape, prompts)
        figures["tree"] = draw_tree(shape, rates, title=f"{winner.label}: {winner.over_ar} over AR")
        fragments["tree"] = folding_tree(shape.rank_paths[1:], rates, f"The tree of {winner.label}")
    if lines := confirmation.watch.time_lines:
        from specexp.scheduling.timeline import chrome_trace

        shown = {BASELINES[AR]: lines[AR], winner.label: lines[winner.name]}
        title = f"prompt {prompts[0].prompt_id}: {winner.over_ar} over AR"
        figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
        files["time_line.json"] = chrome_trace(shown)
    return Report(figures=figures, files=files, fragments=fragments)


def _acceptance_rates(
    confirmation: Confirmation, shape: TreeShape, prompts: Sequence[Prompt]
) -> dict[RankPath, float]:
    winner = confirmation.winner
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is None:
        return {}
    if not counter.steps:
        for prompt in prompts:
            confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
    return {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
