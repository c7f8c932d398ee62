"""A sampler that does not repeat itself: what an inner sampler suggests a second time is drawn anew."""

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
from optuna.samplers import BaseSampler, BruteForceSampler, GridSampler, RandomSampler, TPESampler
from optuna.trial import FrozenTrial, TrialState
from typing_extensions import override

from specexp.sweep.candidates import CandidatePool
from specexp.sweep.seen import Lesson, SeenStudy
from specexp.sweep.space import Applies, Space
from specexp.sweep.trials import FINISHED

ENUMERATING = (BruteForceSampler, GridSampler)
"""Samplers that never suggest the same parameters twice, and end a study by themselves."""

LEAST_DRAWS = 200
"""Repeats in a row after which a space counts as exhausted, and at least :data:`DRAWS_PER_TRIAL` for each trial."""

DRAWS_PER_TRIAL = 2

NEAREST = 0.2
FARTHER = 0.1
"""With what probability a parameter of the first neighbour is drawn at random, and what each further one adds to it."""

FINISHED_PER_WORKER = 2
"""With several workers, finished trials for each that the inner sampler is asked after: it would know less than chance.
"""

Suggest = Callable[[str, BaseDistribution], Any]


class DistinctSampler(BaseSampler):
    """Suggests what was not measured yet.

    Many parameters lead to one configuration, such as a depth that a tree of few nodes never reaches, and a sampler
    that has found the best goes on suggesting it. Where the inner sampler repeats a configuration, neighbours of it are
    drawn, farther and farther away, until one is new. What repeats is neither measured nor stored, so that the inner
    sampler's model is not fed the same value again and again.

    Args:
        inner: The sampler whose suggestions are taken while they are new.
        space: The study's space.
        applies: Says whether a key of the space exists with what was chosen before.
        candidates: What was measured.
        seed: Seed of the random draws.
        impossible: Parameters that cannot be built together; what holds them is passed over like a repeat.

    Attributes:
        exhausted: Whether nothing new was found any more: the last suggestion repeats.
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
        self._impossible = impossible
        self.exhausted = False
        self._space = space
        self._applies = applies
        self._candidates = candidates
        self._random = RandomSampler(seed=seed)
        self._chance = Random(seed)
        self._lesson = (
            Lesson() if isinstance(inner, TPESampler) else None
        )  # others need their last generation
        self._given: set[str] = set()  # by this process, also what failed
        self._drawn: dict[str, Any] = {}

    @override
    def infer_relative_search_space(self, study: Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        # A suggestion is drawn whole: only then it is known whether it is new.
        self._drawn = {}
        if "fixed_params" in trial.system_attrs:  # enqueued: whatever it leaves open is drawn one by one
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

    @override
    def reseed_rng(self) -> None:
        self.inner.reseed_rng()
        self._random.reseed_rng()
        self._chance.seed()

    def _new(self, study: Study, trial: FrozenTrial) -> _Draw:
        """A suggestion that is new, or, of a space that is exhausted, one that repeats a measured configuration."""
        trials = study.get_trials(deepcopy=False)
        measured = self._candidates.measured(trials)
        first = draw = self._draw(self._inner_suggest(study, trial, trials))
        repeat = None
        for place in range(max(LEAST_DRAWS, DRAWS_PER_TRIAL * len(measured))):
            if not any(pair.items() <= draw.params.items() for pair in self._impossible):
                digest = self._candidates.digest(draw.overrides)
                if digest not in measured and digest not in self._given:
                    if not self._candidates.claim(trial, digest):
                        self._given.add(digest)
                        return draw
                    measured.add(digest)  # another worker was faster
                if digest in measured:
                    repeat = draw
            draw = self._draw(self._neighbour(study, trial, first.params, NEAREST + FARTHER * place))
        self.exhausted = True
        return repeat or draw

    def _inner_suggest(self, study: Study, trial: FrozenTrial, trials: Sequence[FrozenTrial]) -> Suggest:
        """The inner sampler, as :class:`optuna.trial.Trial` asks it; chance, while too little is known."""
        running = sum(one.state is TrialState.RUNNING for one in trials)
        if running > 1 and sum(one.state in FINISHED for one in trials) < FINISHED_PER_WORKER * running:
            return partial(self._random.sample_independent, study, trial)
        seen = self._lesson.of(study, trials) if self._lesson else SeenStudy(study, trials)
        space = self.inner.infer_relative_search_space(seen, trial)
        together = self.inner.sample_relative(seen, trial, space)

        def suggest(name: str, distribution: BaseDistribution) -> Any:
            if name in together and _allows(distribution, together[name]):
                return together[name]
            return self.inner.sample_independent(seen, trial, name, distribution)

        return suggest

    def _neighbour(
        self, study: Study, trial: FrozenTrial, params: Mapping[str, Any], probability: float
    ) -> Suggest:
        """The parameters, each with some probability another one."""

        def suggest(name: str, distribution: BaseDistribution) -> Any:
            kept = name in params and _allows(distribution, params[name])
            if kept and self._chance.random() >= probability:
                return params[name]
            return self._random.sample_independent(study, trial, name, distribution)

        return suggest

    def _draw(self, suggest: Suggest) -> _Draw:
        draw = _Draw(suggest)
        draw.overrides = self._space.suggest(draw, self._applies)
        return draw


class _Draw:
    """A configuration while it is drawn; takes the place of a trial, and nothing of it is stored."""

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

    def _take(self, name: str, distribution: BaseDistribution) -> Any:
        self.distributions[name] = distribution
        single = distribution.single()
        self.params[name] = _only(distribution) if single else self._suggest(name, distribution)
        return self.params[name]


def _only(distribution: BaseDistribution) -> Any:
    """The value of a distribution that holds one, which samplers are not asked for."""
    if isinstance(distribution, CategoricalDistribution):
        return distribution.choices[0]
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return distribution.low


def _allows(distribution: BaseDistribution, value: Any) -> bool:
    """Whether a value drawn for the same key, perhaps with other bounds, may be drawn now."""
    if isinstance(distribution, CategoricalDistribution):
        return value in distribution.choices
    assert isinstance(distribution, IntDistribution | FloatDistribution)
    return bool(distribution.low <= value <= distribution.high)
