"""Pictures of a study as PNG files: Optuna's own plots, and its parameters one by one."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.trial import TrialState

from specexp.sweep.slices import draw_slices
from specexp.sweep.trials import is_modelled


def save_plots(study: Study, objectives: list[str], folder: Path) -> list[Path]:
    """Write ``history.png``, ``importances.png``, ``slice.png``, ``contour.png`` and, for several objectives,
    ``pareto_front.png``; those that the study has too few trials for are left out.

    Args:
        study: The study, searched.
        objectives: Names of its objectives, in the study's order; the first is plotted where one is.
        folder: Folder of the pictures; it is made if it does not exist.

    Returns:
        The files written.
    """
    plots = optuna.visualization.matplotlib
    shown = _distinct(study)
    # A study's value is the logarithm, so that means and differences are those of ratios.
    modelled = "modelled " if any(map(is_modelled, study.get_trials(deepcopy=False))) else ""
    names = [
        f"{modelled}log speedup over AR" if name == "speedup" else name.replace("_", " ")
        for name in objectives
    ]
    first: dict[str, Any] = {"target_name": names[0]}
    if len(objectives) > 1:
        first["target"] = lambda trial: trial.values[0]
    searched = _with_parameters(shown)
    pictures: dict[str, Callable[[], Any]] = {
        "history": lambda: plots.plot_optimization_history(shown, **first),
        "importances": lambda: plots.plot_param_importances(searched, **first),
        "slice": lambda: draw_slices(searched.get_trials(deepcopy=False), names[0]),
        "contour": lambda: plots.plot_contour(searched, params=_most_important(searched, first), **first),
    }
    if len(objectives) > 1:
        pictures["pareto_front"] = lambda: plots.plot_pareto_front(shown, target_names=names)
    folder.mkdir(parents=True, exist_ok=True)
    return [
        path for name, draw in pictures.items() if (path := _save(draw, folder / f"{name}.png")) is not None
    ]


def importances(study: Study) -> tuple[dict[str, float], int]:
    """Share of what trials differ by that is due to each searched key, by the first objective, and of how many trials;
    nothing where there are too few to tell.
    """
    searched = _with_parameters(_distinct(study))
    target = (lambda trial: trial.values[0]) if len(study.directions) > 1 else None
    try:
        found = optuna.importance.get_param_importances(searched, target=target)
    except (ValueError, RuntimeError, ZeroDivisionError):
        found = {}
    return found, len(searched.get_trials(deepcopy=False))


def _distinct(study: Study) -> Study:
    """The complete trials alone; those that only repeat another would count it twice."""
    found = optuna.create_study(directions=study.directions)
    for trial in study.get_trials(states=(TrialState.COMPLETE,)):
        if "duplicate_of" not in trial.user_attrs:
            found.add_trial(trial)
    return found


def _with_parameters(study: Study) -> Study:
    """The trials of a study inside its space: those outside have no parameter to show."""
    found = optuna.create_study(directions=study.directions)
    found.add_trials([trial for trial in study.get_trials() if trial.params])
    return found


def _most_important(study: Study, first: dict[str, Any]) -> list[str]:
    return list(optuna.importance.get_param_importances(study, target=first.get("target")))[:2]


def _save(draw: Callable[[], Any], path: Path) -> Path | None:
    from matplotlib import pyplot

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            drawn = draw()
            figure = drawn.flat[0].figure if hasattr(drawn, "flat") else getattr(drawn, "figure", drawn)
            figure.savefig(path, dpi=120, bbox_inches="tight")
        except (ValueError, RuntimeError, ZeroDivisionError):
            return None  # too few trials for this picture
        finally:
            pyplot.close("all")
    return path
