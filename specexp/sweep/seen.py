"""A study as it was at one moment, and as much of it as a sampler has to learn from."""

from __future__ import annotations

import copy
from collections.abc import Container, Sequence

from optuna import Study
from optuna.samplers._tpe.sampler import _split_trials
from optuna.trial import FrozenTrial, TrialState
from typing_extensions import override

from specexp.sweep.trials import FINISHED

MOST = 1000
"""Finished trials that a sampler learns from, where there are more: up to twice as many between two selections."""

BEST = 25
"""Of these, the best: as many as TPE calls good at most. Were they more, most others would lie near the best, and TPE
would take that neighbourhood for a bad one."""


class SeenStudy(Study):
    """A study whose trials were read once; everything else is the study's own.

    Args:
        study: The study.
        trials: Its trials, or some of them, in the order of their numbers.
    """

    def __init__(self, study: Study, trials: Sequence[FrozenTrial]) -> None:
        self.__dict__.update(study.__dict__)
        self._seen = trials

    @override
    def _get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None, use_cache: bool = False
    ) -> list[FrozenTrial]:
        found = [trial for trial in self._seen if states is None or trial.state in states]
        return copy.deepcopy(found) if deepcopy else found


class Lesson:
    """What a sampler learns from: all finished trials of a study, or the best of many and some of the others.

    A sampler such as TPE sorts and weighs every trial at every ask. Of many, the best are kept, which it draws near to,
    and of the others, which it draws away from, every second one whenever there are twice as many as :data:`MOST`; the
    oldest become rarest, as TPE weighs them. So an ask takes as long with ten thousand trials as with two thousand.
    """

    def __init__(self) -> None:
        self._trials: list[FrozenTrial] = []
        self._known: set[int] = set()

    def of(self, study: Study, trials: Sequence[FrozenTrial]) -> Study:
        """The study with what is to be learned from.

        Args:
            study: The study.
            trials: All of its trials.
        """
        new = [trial for trial in trials if trial.state in FINISHED and trial.number not in self._known]
        self._known.update(trial.number for trial in new)
        self._trials += new
        if len(self._trials) > 2 * MOST:
            good, others = _split_trials(study, self._trials, BEST)
            spared = len(others) / (MOST - len(good))
            self._trials = good + [others[int(place * spared)] for place in range(MOST - len(good))]
        self._trials.sort(key=lambda trial: trial.number)
        unfinished = [trial for trial in trials if trial.state not in FINISHED]
        return SeenStudy(study, sorted([*self._trials, *unfinished], key=lambda trial: trial.number))
