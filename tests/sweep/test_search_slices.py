"""Every searched parameter has a panel: choices with the best on top, numbers on the scale they were drawn on."""

from __future__ import annotations

import optuna
import pytest
from matplotlib import rcParams, style

from specexp.sweep.pictures import draw_slices


def study() -> optuna.Study:
    """A chain brings its length, a bush 10 less a tenth of its nodes."""

    def objective(trial: optuna.Trial) -> float:
        if trial.suggest_categorical("method", ["bush", "chain"]) == "chain":
            return trial.suggest_int("builder.init_args.length", 1, 8)
        return 10 - trial.suggest_int("builder.init_args.nodes", 10, 64, log=True) / 10

    found = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    found.optimize(objective, n_trials=30)
    return found


def test_every_parameter_has_its_panel_and_every_trial_its_points() -> None:
    trials = study().get_trials()
    figure = draw_slices(trials, "tokens")
    panels = {axes.get_title(): axes for axes in figure.axes if axes.get_title()}
    assert set(panels) == {"method", "builder.nodes", "builder.length"}
    drawn = {title: len(axes.collections[0].get_offsets()) for title, axes in panels.items()}
    assert drawn["method"] == 30
    assert drawn["builder.nodes"] + drawn["builder.length"] == 30
    assert panels["builder.nodes"].get_xscale() == "log"
    assert panels["builder.length"].get_xscale() == "linear"
    best = max(trials, key=lambda trial: trial.value or 0).params["method"]
    assert panels["method"].get_yticklabels()[-1].get_text() == best


def test_the_style_of_other_plots_is_neither_taken_nor_left_behind() -> None:
    with style.context("ggplot"):
        figure = draw_slices(study().get_trials(), "tokens")
        assert figure.axes[0].get_facecolor() == (1.0, 1.0, 1.0, 1.0)
        assert rcParams["axes.facecolor"] == "#E5E5E5"


def test_a_study_without_parameters_has_no_such_picture() -> None:
    with pytest.raises(ValueError, match="no trial has a parameter"):
        draw_slices([optuna.trial.create_trial(value=1.0)], "tokens")
