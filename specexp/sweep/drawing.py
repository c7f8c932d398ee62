"""Sampler and pruner of a study: built from their specs, and tried before the first trial."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from typing import Any

import optuna
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler
from optuna.study import StudyDirection

from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.sweep.goals import directions_of
from specexp.sweep.space import Space

_UNPLACED = Checker(lambda key: "sweep")
_SAMPLER: dict[str, Any] = {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 0}}
_PRUNER: dict[str, Any] = {"class_path": "optuna.pruners.WilcoxonPruner", "init_args": {"p_threshold": 0.1}}


def seed_of(settings: Sweep) -> int | None:
    """The whole-number seed of the study's sampler, None if it has none."""
    seed = (settings.sampler or _SAMPLER)["init_args"].get("seed")
    return seed if isinstance(seed, int) else None


def build_sampler(settings: Sweep, offset: int = 0, checker: Checker = _UNPLACED) -> BaseSampler:
    """Build the sampler, with ``offset`` added to a whole-number seed.

    Raises:
        ConfigError: Its arguments are invalid.
    """
    spec, seed = settings.sampler or _SAMPLER, seed_of(settings)
    seeded = {} if seed is None else {"seed": seed + offset}
    sampler: BaseSampler = _build(
        {**spec, "init_args": spec["init_args"] | seeded}, BaseSampler, "sampler", checker
    )
    return sampler


def build_pruner(settings: Sweep, checker: Checker = _UNPLACED) -> BasePruner:
    """Build the pruner.

    Raises:
        ConfigError: Its arguments are invalid.
    """
    pruner: BasePruner = _build(settings.pruner or _PRUNER, BasePruner, "pruner", checker)
    return pruner


def _build(spec: Mapping[str, Any], kind: type, key: str, checker: Checker) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return checker.build_part(spec, kind, ("sweep", key))


def check_drawing(settings: Sweep, checker: Checker = _UNPLACED) -> None:
    """Draw a few configurations without measuring them, because some samplers and pruners refuse a study only then.

    Raises:
        ConfigError: Sampler or pruner cannot be built, or cannot be used in this study.
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
