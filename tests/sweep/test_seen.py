"""What a sampler learns from: all trials while they are few, the best and some of the others where they are many."""

from __future__ import annotations

import random

import optuna
import pytest
from optuna.distributions import FloatDistribution
from optuna.trial import FrozenTrial, TrialState

from specexp.sweep import seen
from specexp.sweep.seen import BEST, Lesson, SeenStudy

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


@pytest.fixture(autouse=True)
def _few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seen, "MOST", 200)


def trials(count: int, first: int = 0) -> list[FrozenTrial]:
    """Trials of one parameter, whose value is its distance from 0.5, in any order."""
    chance = random.Random(first)
    found = []
    for number in range(first, first + count):
        x = chance.random()
        trial = optuna.create_trial(
            value=-abs(x - 0.5), params={"x": x}, distributions={"x": FloatDistribution(0, 1)}
        )
        trial.number = number
        found.append(trial)
    return found


def learned(lesson: Lesson, study: optuna.Study, known: list[FrozenTrial]) -> list[FrozenTrial]:
    return lesson.of(study, known)._get_trials(deepcopy=False, states=FINISHED)


@pytest.fixture
def study() -> optuna.Study:
    return optuna.create_study(direction="maximize")


def test_of_few_trials_all_are_learned_from(study: optuna.Study) -> None:
    known = trials(400)
    assert learned(Lesson(), study, known) == known


def test_of_many_the_best_stay_and_of_the_others_some(study: optuna.Study) -> None:
    lesson, known = Lesson(), list[FrozenTrial]()
    for _ in range(30):  # as a study grows
        known += trials(37, len(known))
        kept = learned(lesson, study, known)
        assert len(kept) <= 2 * seen.MOST
        best = sorted(known, key=lambda trial: -trial.value)[:BEST]
        assert {trial.number for trial in best} <= {trial.number for trial in kept}
        assert [trial.number for trial in kept] == sorted(trial.number for trial in kept)
    others = [trial.number for trial in kept]
    assert sum(number < 550 for number in others) > 30  # of the old ones too


def test_what_has_not_ended_is_seen(study: optuna.Study) -> None:
    known = trials(500)
    known[499].state = TrialState.RUNNING
    found = Lesson().of(study, known)
    assert [trial.number for trial in found.get_trials(deepcopy=False, states=(TrialState.RUNNING,))] == [499]


def test_a_seen_study_is_as_it_was_when_it_was_read(study: optuna.Study) -> None:
    study.tell(study.ask(), 1.0)
    found = SeenStudy(study, study.get_trials(deepcopy=False))
    study.tell(study.ask(), 2.0)
    assert [trial.value for trial in found.trials] == [1.0]
    assert found.direction == study.direction
    assert found.study_name == study.study_name


def test_tpe_draws_near_the_best_from_some_as_from_all(
    study: optuna.Study, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seen, "MOST", 1000)
    known = trials(3000)
    study.add_trials(known)
    found = {}
    for name, of in (("all", study), ("some", Lesson().of(study, study.get_trials(deepcopy=False)))):
        sampler = optuna.samplers.TPESampler(seed=0)
        trial = trials(1)[0]
        drawn = [sampler.sample_independent(of, trial, "x", FloatDistribution(0, 1)) for _ in range(50)]
        found[name] = sum(abs(x - 0.5) for x in drawn) / len(drawn)
    assert found["some"] < 0.01
    assert found["all"] < 0.01
