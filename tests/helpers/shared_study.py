"""What a study of made-up configurations that several workers shared must hold, read from its database."""

from __future__ import annotations

from collections import Counter

import optuna
from optuna.trial import TrialState

from helpers.database_worker import TRIALS
from helpers.fake_bench import PROMPTS
from specexp.sweep.study import MAX_RETRIES
from specexp.sweep.trials import FINISHED


def finished(url: str) -> dict[int, tuple[float, ...]]:
    """The values of what has finished, by number."""
    try:
        study = optuna.load_study(study_name="fake", storage=url)
    except Exception:  # no study yet
        return {}
    return {trial.number: tuple(trial.values) for trial in study.trials if trial.state in FINISHED}


def check(url: str, workers: int) -> optuna.Study:
    """24 distinct trials, and at most what other workers were at when the last of them ended."""
    study = optuna.load_study(study_name="fake", storage=url)
    own = [
        trial for trial in study.trials if trial.state in FINISHED and "duplicate_of" not in trial.user_attrs
    ]
    digests = Counter(trial.user_attrs["digest"] for trial in own)
    assert set(digests.values()) == {1}
    assert TRIALS <= len(digests) < TRIALS + workers
    assert all(len(t.intermediate_values) == t.user_attrs.get("pruned_at", PROMPTS) for t in own)
    assert not [trial for trial in study.trials if trial.state is TrialState.RUNNING]
    retries = [len(trial.system_attrs.get("retry_history", [])) for trial in study.trials]
    assert max(retries) <= MAX_RETRIES
    return study
