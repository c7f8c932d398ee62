"""A sampler that does not repeat itself: a configuration that was measured already is drawn anew."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from random import Random
from typing import Any

from optuna import Study
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, RandomSampler
from optuna.trial import FrozenTrial, TrialState
from typing_extensions import override

from specexp.sweep.candidates import CandidatePool
from specexp.sweep.space import Applies, Space
from specexp.sweep.trials import FINISHED

ENUMERATING = (BruteForceSampler, GridSampler)
"""Samplers that never suggest the same parameters twice, and end a study by themselves."""

LEAST_DRAWS = 200
"""Repeats in a row after which a space counts as exhausted, and at least :data:`DRAWS_PER_TRIAL` for each trial."""

DRAWS_PER_TRIAL = 2

NEAREST = 0.2
FARTHER = 0.1
"""Probability that a parameter of the first neighbour is drawn at random, and its increase with each further one."""

FINISHED_PER_WORKER = 2
"""With several workers, finished trials for each before the inner sampler is used: with fewer it is worse than chance.
"""

Distribution = CategoricalDistribution | FloatDistribution | IntDistribution
Suggest = Callable[[str, Distribution], Any]


class DistinctSampler(BaseSampler):
    """Suggests configurations that were not measured yet.

    Different parameters can lead to one configuration, such as a depth that a tree of few nodes never reaches, and a
    sampler that has found the best goes on suggesting it. When the inner sampler repeats a configuration, neighbours of
    it are drawn, farther and farther away, until one is new. Repeats are neither measured nor stored, so that the inner
    sampler's model is not fed the same value again and again.

    Args:
        inner: The sampler whose suggestions are taken while they are new.
        space: The study's space.
        applies: Whether a key of the space exists with the choices before it.
        candidates: Composes configurations.
        seed: Seed of the random draws.
        impossible: Parameters that cannot be built together. A draw that contains them is passed over like a repeat.

    Attributes:
        exhausted: Whether nothing new was found any more, so that the last suggestion repeats.
    """

    def __init__(
        self,
        inner: BaseSampler,
        space: Space,
        applies: Applies,
        candidates: CandidatePool,
        seed: int | None = None,
        impossible: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self.inner = inner
        self.exhausted = False
        self._impossible = impossible
        self._space = space
        self._applies = applies
        self._candidates = candidates
        self._random = RandomSampler(seed=seed)
        self._chance = Random(seed)
        self._given: set[str] = set()  # by this process, failed ones too
        self._drawn: dict[str, Any] = {}

    @override
    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        # A suggestion is drawn whole, because only then it is known whether it is new.
        self._drawn = {}
        if "fixed_params" in trial.system_attrs:  # queued: the parameters it leaves open are drawn one by one
            return {}
        draw = self._new(study, trial)
        self._drawn = draw.params
        return draw.distributions

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
        measured = self._candidates.measured(trials)
        chance = partial(self._random.sample_independent, study, trial)
        running = sum(one.state is TrialState.RUNNING for one in trials)
        finished = sum(one.state in FINISHED for one in trials)
        early = running > 1 and finished < FINISHED_PER_WORKER * running
        first = draw = self._draw(chance if early else self._inner_suggest(study, trial))
        repeat = None
        for place in range(max(LEAST_DRAWS, DRAWS_PER_TRIAL * len(measured))):
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

    def _inner_suggest(self, study: Study, trial: FrozenTrial) -> Suggest:
        """Suggest by the inner sampler, as :class:`optuna.trial.Trial` uses it."""
        space = self.inner.infer_relative_search_space(study, trial)
        relative = self.inner.sample_relative(study, trial, space)

        def suggest(name: str, distribution: Distribution) -> Any:
            if name in relative and _allows(distribution, relative[name]):
                return relative[name]
            return self.inner.sample_independent(study, trial, name, distribution)

        return suggest

    def _neighbour(self, chance: Suggest, params: Mapping[str, Any], probability: float) -> Suggest:
        """Suggest the given parameters, each with some probability another value."""

        def suggest(name: str, distribution: Distribution) -> Any:
            kept = name in params and _allows(distribution, params[name])
            if kept and self._chance.random() >= probability:
                return params[name]
            return chance(name, distribution)

        return suggest

    def _draw(self, suggest: Suggest) -> _Draw:
        draw = _Draw(suggest)
        draw.overrides = self._space.suggest(draw, self._applies)
        return draw


class _Draw:
    """A configuration while it is drawn: takes the place of a trial, and is not stored."""

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
