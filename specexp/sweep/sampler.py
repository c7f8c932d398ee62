"""The sampler and the pruner of a study."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from random import Random
from typing import Any

import optuna
from optuna.distributions import BaseDistribution
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from typing_extensions import override

from specexp.base.messages import first_line
from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.sweep.space import Space, directions_of
from specexp.sweep.trials import FINISHED

ENUMERATING = (BruteForceSampler, GridSampler)
"""Samplers that never suggest the same parameters twice and that end a study themselves."""
NEAREST, FARTHER = 0.2, 0.1
"""After n repeats in a row, a parameter is drawn at random with probability ``NEAREST + FARTHER * n``."""
FINISHED_PER_WORKER = 2
"""Number of finished trials per worker before several workers use the inner sampler instead of random values."""

_NO_FILE = Checker(lambda key: "sweep")
_SAMPLER: dict[str, Any] = {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 0}}
_PRUNER: dict[str, Any] = {"class_path": "optuna.pruners.WilcoxonPruner", "init_args": {"p_threshold": 0.1}}


def build_sampler(settings: Sweep, offset: int = 0, checker: Checker = _NO_FILE) -> BaseSampler:
    """Build the sampler, adding ``offset`` to an integer seed; raises ConfigError if its arguments are invalid.

    A sampler that does not enumerate the space is wrapped in :class:`ExploringSampler`.
    """
    spec = settings.sampler or _SAMPLER
    seed = spec["init_args"].get("seed")
    seed = seed + offset if isinstance(seed, int) else None
    seeded = {} if seed is None else {"seed": seed}
    spec = {**spec, "init_args": spec["init_args"] | seeded}
    with warnings.catch_warnings(action="ignore"):
        sampler: BaseSampler = checker.build_part(spec, BaseSampler, ("sweep", "sampler"))
    return sampler if isinstance(sampler, ENUMERATING) else ExploringSampler(sampler, seed)


def build_pruner(settings: Sweep, checker: Checker = _NO_FILE) -> BasePruner:
    """Build the pruner; raises ConfigError if its arguments are invalid."""
    with warnings.catch_warnings(action="ignore"):
        pruner: BasePruner = checker.build_part(settings.pruner or _PRUNER, BasePruner, ("sweep", "pruner"))
    return pruner


def check_sampler(settings: Sweep, checker: Checker) -> None:
    """Draw a few configurations without measuring them; raises ConfigError if sampler or pruner cannot be used."""
    # Some samplers and pruners raise only when they are used.
    sampler = build_sampler(settings, checker=checker)
    pruner = build_pruner(settings, checker)
    ways = [StudyDirection[way.upper()] for way in directions_of(settings).values()]
    used = "sampler"

    def draw(trial: optuna.Trial) -> list[float]:
        nonlocal used
        used = "sampler"
        Space(settings).suggest(trial, lambda key, overrides: True)
        for step in range(2 if settings.prunes else 0):
            used = "pruner"
            trial.report(0.0, step)
            trial.should_prune()
        used = "sampler"  # it learns from the result
        return [0.0] * len(ways)

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    try:
        with warnings.catch_warnings(action="ignore"):
            study = optuna.create_study(directions=ways, sampler=sampler, pruner=pruner)
            study.optimize(draw, n_trials=3)  # a sampler that has drawn all configurations ends this
    except Exception as error:  # samplers and pruners raise errors of any type
        why = f": it cannot be used in this study ({first_line(error)})"
        raise checker.error(("sweep", used), why) from error


class ExploringSampler(BaseSampler):
    """Mixes random values into another sampler's suggestions for as long as these repeat earlier trials.

    Different parameters can yield the same configuration, for example two depths that a small tree never reaches. A
    sampler that has found the best configuration keeps suggesting it. A repeated trial costs nothing, as it copies the
    measured values, but it adds no information. Each consecutive repeat makes random values more likely.

    Attributes:
        repeats: Number of trials in a row that measured nothing new.
    """

    def __init__(self, inner: BaseSampler, seed: int | None = None) -> None:
        self.inner = inner
        self.repeats = 0
        self._random = RandomSampler(seed=seed)
        self._chance = Random(seed)
        self._early = False

    def _explores(self) -> bool:
        likely = NEAREST + FARTHER * self.repeats
        return self._early or (self.repeats > 0 and self._chance.random() < likely)

    @override
    def before_trial(self, study: optuna.Study, trial: FrozenTrial) -> None:
        states = [one.state for one in study.get_trials(deepcopy=False)]
        running = states.count(TrialState.RUNNING)
        finished = sum(state in FINISHED for state in states)
        self._early = running > 1 and finished < FINISHED_PER_WORKER * running
        self.inner.before_trial(study, trial)

    @override
    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        return {} if self._early else self.inner.infer_relative_search_space(study, trial)

    @override
    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        # Optuna calls ``sample_independent`` for each parameter that is left out here.
        drawn = self.inner.sample_relative(study, trial, search_space)
        return {name: value for name, value in drawn.items() if not self._explores()}

    @override
    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        sampler = self._random if self._explores() else self.inner
        return sampler.sample_independent(study, trial, param_name, param_distribution)

    @override
    def after_trial(
        self, study: optuna.Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)
