"""The queue of a study's trials: known configurations, which are measured first, and trials to be measured again."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

import optuna
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from specexp.config.sweep import Sweep
from specexp.sweep.space import Space

MAX_RETRIES = 3
"""Maximum number of times that a trial is retried after its process dies, in case its configuration kills processes."""


def enqueue(study: optuna.Study, params: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    """Queue a trial, and store a copy of its parameters, because the storage keeps only those already drawn."""
    study.enqueue_trial(params, user_attrs={**attributes, "queued": params})


def requeue(study: optuna.Study, trial: FrozenTrial) -> None:
    """Requeue a trial's parameters, unless they are queued already or were retried :data:`MAX_RETRIES` times."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    attributes, retries = trial.user_attrs, trial.user_attrs.get("retries", 0)
    if retries == MAX_RETRIES or any(one.user_attrs.get("retry_of") == trial.number for one in waiting):
        return
    kept: dict[str, Any] = {name: attributes[name] for name in ("known", "overrides") if name in attributes}
    params = {**attributes.get("queued", {}), **trial.params}
    enqueue(study, params, {**kept, "retry_of": trial.number, "retries": retries + 1})


def put_back(study: optuna.Study, dead: Callable[[FrozenTrial], bool] = lambda trial: True) -> int:
    """Requeue the running trials that are dead, mark them as failed, and return their number."""
    # Ending a trial notifies the sampler, and an enumerating sampler may then end a search that has not begun.
    sampler = study.sampler
    study.sampler = optuna.samplers.RandomSampler()
    found = [trial for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if dead(trial)]
    for trial in found:
        requeue(study, trial)  # first, so that nothing is lost if this process dies in between
        with suppress(UpdateFinishedTrialError):  # its heartbeat expired meanwhile
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    study.sampler = sampler
    return len(found)


def queue_known(
    study: optuna.Study, settings: Sweep, begun: Callable[[FrozenTrial], bool] = lambda trial: True
) -> None:
    """Queue the known configurations that have no trial yet, or only trials that have not ``begun``."""
    trials = study.get_trials(deepcopy=False)
    queued = {trial.user_attrs.get("known") for trial in trials if begun(trial)}
    for known in settings.known:
        if known.name not in queued:
            params = Space(settings).params_of(known.overrides)
            outside = {"overrides": dict(known.overrides)} if params is None else {}
            enqueue(study, params or {}, {"known": known.name, **outside})


def known_waiting(study: optuna.Study) -> bool:
    """Return whether a known configuration must be measured again because its process died."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return any({"known", "retry_of"} <= trial.user_attrs.keys() for trial in waiting)
