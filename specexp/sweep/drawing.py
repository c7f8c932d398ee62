"""What draws a study's configurations and what ends their trials early: sampler and pruner, made and tried."""

from __future__ import annotations

import warnings
from typing import Any

import optuna
from optuna.study import StudyDirection

from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.sweep.goals import directions_of
from specexp.sweep.space import Space

_UNPLACED = Checker(lambda key: "sweep")


def sampler_of(settings: Sweep) -> dict[str, Any]:
    """``class_path`` and ``init_args`` of the study's sampler."""
    return settings.sampler or {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 0}}


def build_sampler(
    settings: Sweep, offset: int = 0, checker: Checker = _UNPLACED
) -> optuna.samplers.BaseSampler:
    """The sampler.

    Args:
        settings: The sweep section.
        offset: Number that is added to a whole-number ``seed`` of its arguments.
        checker: Knows the file that errors name.

    Raises:
        ConfigError: It refuses its arguments.
    """
    spec = sampler_of(settings)
    arguments = dict(spec["init_args"])
    if isinstance(arguments.get("seed"), int):
        arguments["seed"] += offset
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler: optuna.samplers.BaseSampler = checker.build_part(
            {**spec, "init_args": arguments}, optuna.samplers.BaseSampler, ("sweep", "sampler")
        )
    return sampler


def build_pruner(settings: Sweep, checker: Checker = _UNPLACED) -> optuna.pruners.BasePruner:
    """The pruner.

    Args:
        settings: The sweep section.
        checker: Knows the file that errors name.

    Raises:
        ConfigError: It refuses its arguments.
    """
    default = {"class_path": "optuna.pruners.WilcoxonPruner", "init_args": {"p_threshold": 0.1}}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner: optuna.pruners.BasePruner = checker.build_part(
            settings.pruner or default, optuna.pruners.BasePruner, ("sweep", "pruner")
        )
    return pruner


def check_drawing(settings: Sweep, checker: Checker = _UNPLACED) -> None:
    """Draw a few configurations that nothing measures: some samplers and pruners refuse a study only then.

    Args:
        settings: The sweep section.
        checker: Knows the file that errors name.

    Raises:
        ConfigError: Sampler or pruner cannot be made, or cannot be used here.
    """
    sampler, pruner = build_sampler(settings, checker=checker), build_pruner(settings, checker)
    space = Space(settings)
    ways = [StudyDirection[way.upper()] for way in directions_of(settings).values()]
    asked = "sampler"

    def objective(trial: optuna.Trial) -> list[float]:
        nonlocal asked
        space.suggest(trial, lambda key, overrides: True)
        if settings.prunes:
            asked = "pruner"
            for step in range(2):
                trial.report(0.0, step)
                trial.should_prune()
            asked = "sampler"
        return [0.0] * len(ways)

    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            study = optuna.create_study(directions=ways, sampler=sampler, pruner=pruner)
            study.optimize(objective, n_trials=3)
    except Exception as error:  # of any sampler or pruner, and of packages that it needs
        raise checker.error(
            ("sweep", asked), f": it cannot be used in this study ({first_line(error)})"
        ) from error
    finally:
        optuna.logging.set_verbosity(verbosity)
