"""Checks of a study of several workers, read from its database."""

from __future__ import annotations

from collections import Counter

import optuna
from optuna.trial import TrialState

from helpers.database_worker import TRIALS
from helpers.fake_bench import PROMPTS
from specexp.sweep.trial_queue import MAX_RETRIES
from specexp.sweep.trials import FINISHED


def finished(url: str, name: str = "fake") -> dict[int, tuple[float, ...]]:
    """Return the values of the finished trials, by number."""
    try:
        study = optuna.load_study(study_name=name, storage=url)
    except Exception:  # no study yet
        return {}
    return {trial.number: tuple(trial.values) for trial in study.trials if trial.state in FINISHED}


def check_trials(name: str, url: str, least: int, before: dict[int, tuple[float, ...]] | None = None) -> optuna.Study:
    """Check for ``least`` distinct trials, those of ``before`` among them; trials of killed workers were repeated."""
    study = optuna.load_study(study_name=name, storage=url)
    assert (before or {}).items() <= finished(url, name).items()
    digests = Counter(
        trial.user_attrs["digest"]
        for trial in study.trials
        if trial.state in FINISHED and "duplicate_of" not in trial.user_attrs
    )
    assert set(digests.values()) == {1}
    assert len(digests) >= least
    running = [trial for trial in study.trials if trial.state is TrialState.RUNNING]
    assert not [trial for trial in running if "worker" in trial.user_attrs]
    assert max(trial.user_attrs.get("retries", 0) for trial in study.trials) <= MAX_RETRIES
    for trial in study.trials:
        if "retry_of" in trial.user_attrs:
            assert study.trials[trial.user_attrs["retry_of"]].state is TrialState.FAIL
    return study


def check(url: str, workers: int, before: dict[int, tuple[float, ...]] | None = None) -> optuna.Study:
    """Check for 24 distinct configurations, and at most one more a worker."""
    study = check_trials("fake", url, TRIALS, before)
    own = [trial for trial in study.trials if trial.state in FINISHED and "duplicate_of" not in trial.user_attrs]
    assert len(own) < TRIALS + workers
    assert all(len(t.intermediate_values) == t.user_attrs.get("pruned_at", PROMPTS) for t in own)
    return study
