"""Sampler and pruner of a study, and a sampler that suggests no configuration twice."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

import optuna
from optuna import Study
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.pruners import BasePruner
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, RandomSampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from typing_extensions import override

from specexp.config.check import Checker
from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.sweep.space import Space, directions_of
from specexp.sweep.trials import FINISHED, Candidate

ENUMERATING = (BruteForceSampler, GridSampler)
"""Samplers that never suggest the same parameters twice, and end a study by themselves."""

LEAST_DRAWS, DRAWS_PER_TRIAL = 200, 2
"""Repeats in a row after which a space counts as exhausted: at least so many, and so many for each trial."""
NEAREST, FARTHER = 0.2, 0.1
"""Probability that a parameter of the first neighbour is drawn at random, and its increase with each further one."""
FINISHED_PER_WORKER = 2
"""With several workers, finished trials for each before the inner sampler is used: with fewer it is worse than chance.
"""

_UNPLACED = Checker(lambda key: "sweep")
_SAMPLER: dict[str, Any] = {"class_path": "optuna.samplers.TPESampler", "init_args": {"seed": 0}}
_PRUNER: dict[str, Any] = {"class_path": "optuna.pruners.WilcoxonPruner", "init_args": {"p_threshold": 0.1}}

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Suggest = Callable[[str, Distribution], Any]


def seed_of(settings: Sweep) -> int | None:
    """The whole-number seed of the study's sampler, None if it has none."""
    seed = (settings.sampler or _SAMPLER)["init_args"].get("seed")
    return seed if isinstance(seed, int) else None


def build_sampler(settings: Sweep, offset: int = 0, checker: Checker = _UNPLACED) -> BaseSampler:
    """Build the sampler, with ``offset`` added to a whole-number seed; ConfigError if its arguments are invalid."""
    spec, seed = settings.sampler or _SAMPLER, seed_of(settings)
    seeded = {} if seed is None else {"seed": seed + offset}
    spec = {**spec, "init_args": spec["init_args"] | seeded}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        sampler: BaseSampler = checker.build_part(spec, BaseSampler, ("sweep", "sampler"))
    return sampler


def build_pruner(settings: Sweep, checker: Checker = _UNPLACED) -> BasePruner:
    """Build the pruner; ConfigError if its arguments are invalid."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pruner: BasePruner = checker.build_part(settings.pruner or _PRUNER, BasePruner, ("sweep", "pruner"))
    return pruner


def check_sampler(settings: Sweep, checker: Checker = _UNPLACED) -> None:
    """Draw a few configurations without measuring them, because some samplers and pruners refuse a study only then.

    Raises:
        ConfigError: Sampler or pruner cannot be built, or cannot be used in this study.
    """
    sampler, pruner = build_sampler(settings, checker=checker), build_pruner(settings, checker)
    space = Space(settings)
    ways = [StudyDirection[way.upper()] for way in directions_of(settings).values()]
    used = "sampler"

    def objective(trial: optuna.Trial) -> list[float]:
        nonlocal used
        space.suggest(trial, lambda key, overrides: True)
        if settings.prunes:
            used = "pruner"
            for step in range(2):
                trial.report(0.0, step)
                trial.should_prune()
            used = "sampler"
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
            ("sweep", used), f": it cannot be used in this study ({first_line(error)})"
        ) from error
    finally:
        optuna.logging.set_verbosity(verbosity)


class CandidatePool:
    """Composes the configurations of a study, each once, for the sampler and for the trial that measures it."""

    def __init__(self, prepare: Callable[[Mapping[str, Any]], Candidate]) -> None:
        self._prepare = prepare
        self._digests: dict[str, str] = {}  # by overrides
        self._latest: tuple[str, Candidate] | None = None

    def digest(self, overrides: Mapping[str, Any]) -> str:
        """A configuration's digest; one that cannot be composed is only like itself."""
        key = _key(overrides)
        if key not in self._digests:
            try:
                self._latest = key, self._prepare(overrides)
                self._digests[key] = self._latest[1].digest
            except Exception:  # the trial composes it again, and records why
                self._digests[key] = key
        return self._digests[key]

    def take(self, overrides: Mapping[str, Any]) -> Candidate:
        """The candidate, composed for its digest or now.

        Raises:
            ValueError: The parts do not go together.
        """
        latest, self._latest = self._latest, None
        if latest is not None and latest[0] == _key(overrides):
            return latest[1]
        return self._prepare(overrides)


def _key(overrides: Mapping[str, Any]) -> str:
    return json.dumps(overrides, sort_keys=True, default=str)


class DistinctSampler(BaseSampler):
    """Suggests configurations that were not measured yet.

    Different parameters can lead to one configuration, such as a depth that a tree of few nodes never reaches, and a
    sampler that has found the best goes on suggesting it. When the inner sampler repeats a configuration, neighbours of
    it are drawn, farther and farther away, until one is new. Repeats are neither measured nor stored, so that the inner
    sampler's model is not fed the same value again and again.

    Args:
        inner: The sampler whose suggestions are taken while they are new.
        impossible: Parameters that cannot be built together. A draw that contains them is passed over like a repeat.

    Attributes:
        exhausted: Whether nothing new was found any more, so that the last suggestion repeats.
    """

    def __init__(
        self,
        inner: BaseSampler,
        suggest: Callable[[Any], Mapping[str, Any]],
        candidates: CandidatePool,
        seed: int | None = None,
        impossible: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.inner = inner
        self.exhausted = False
        self._impossible = impossible
        self._suggest = suggest
        self._candidates = candidates
        self._random = RandomSampler(seed=seed)
        self._chance = Random(seed)
        self._given: set[str] = set()  # by this process, failed ones too
        self._drawn: dict[str, Any] = {}

    @override
    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        # A suggestion is drawn whole, because only then it is known whether it is new.
        self._drawn = {}
        if "queued" in trial.user_attrs:  # the parameters that it leaves open are drawn one by one
            return {}
        draw = self._new(study, trial)
        self._drawn = draw.params
        return draw.distributions

    def give_back(self, digest: str) -> None:
        """Allow a configuration to be drawn again that was drawn and not measured."""
        self._given.discard(digest)

    @override
    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        return self._drawn

    @override
    def sample_independent(
        self, study: Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:
        return self.inner.sample_independent(study, trial, param_name, param_distribution)

    @override
    def before_trial(self, study: Study, trial: FrozenTrial) -> None:
        self.inner.before_trial(study, trial)

    @override
    def after_trial(
        self, study: Study, trial: FrozenTrial, state: TrialState, values: Sequence[float] | None
    ) -> None:
        self.inner.after_trial(study, trial, state, values)

    def _new(self, study: Study, trial: FrozenTrial) -> _Draw:
        """Draw a new configuration, or one that repeats a measured one if the space is exhausted."""
        trials = study.get_trials(deepcopy=False)
        measured = {one.user_attrs.get("digest") for one in trials if one.state is not TrialState.FAIL}
        chance = partial(self._random.sample_independent, study, trial)
        running = sum(one.state is TrialState.RUNNING for one in trials)
        finished = sum(one.state in FINISHED for one in trials)
        early = running > 1 and finished < FINISHED_PER_WORKER * running
        first = draw = self._draw(chance if early else self._inner_suggest(study, trial))
        repeat = None
        for place in range(max(LEAST_DRAWS, DRAWS_PER_TRIAL * len(measured - {None}))):
            if not any(pair.items() <= draw.params.items() for pair in self._impossible):
                digest = self._candidates.digest(draw.overrides)
                if digest not in measured | self._given:
                    self._given.add(digest)
                    return draw
                if digest in measured:
                    repeat = draw
            draw = self._draw(self._neighbour(chance, first.params, NEAREST + FARTHER * place))
        self.exhausted = True
        return repeat or draw

    def _draw(self, suggest: Suggest) -> _Draw:
        draw = _Draw(suggest)
        draw.overrides = self._suggest(draw)
        return draw

    def _inner_suggest(self, study: Study, trial: FrozenTrial) -> Suggest:
        space = self.inner.infer_relative_search_space(study, trial)
        relative = self.inner.sample_relative(study, trial, space)

        def suggest(name: str, distribution: Distribution) -> Any:
            if name in relative and _allows(distribution, relative[name]):
                return relative[name]
            return self.inner.sample_independent(study, trial, name, distribution)

        return suggest

    def _neighbour(self, chance: Suggest, params: Mapping[str, Any], probability: float) -> Suggest:
        def suggest(name: str, distribution: Distribution) -> Any:
            kept = name in params and _allows(distribution, params[name])
            if kept and self._chance.random() >= probability:
                return params[name]
            return chance(name, distribution)

        return suggest


class _Draw:
    def __init__(self, suggest: Suggest) -> None:
        self.params: dict[str, Any] = {}
        self.distributions: dict[str, BaseDistribution] = {}
        self.overrides: Mapping[str, Any] = {}
        self._suggest = suggest

    def suggest_categorical(self, name: str, choices: Sequence[Any]) -> Any:
        return self._take(name, CategoricalDistribution(choices))

    def suggest_int(self, name: str, low: int, high: int, *, step: int = 1, log: bool = False) -> int:
        return int(self._take(name, IntDistribution(low, high, log=log, step=step)))

    def suggest_float(
        self, name: str, low: float, high: float, *, step: float | None = None, log: bool = False
    ) -> float:
        return float(self._take(name, FloatDistribution(low, high, log=log, step=step)))

    def _take(self, name: str, distribution: Distribution) -> Any:
        if not distribution.single():
            value = self._suggest(name, distribution)
        elif isinstance(distribution, CategoricalDistribution):
            value = distribution.choices[0]
        else:
            value = distribution.low
        self.params[name], self.distributions[name] = value, distribution
        return value


def _allows(distribution: Distribution, value: Any) -> bool:
    """Whether a value drawn for the same key, perhaps with other bounds, may be drawn now."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    return bool(distribution.low <= value <= distribution.high)
