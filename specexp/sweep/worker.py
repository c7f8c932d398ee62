"""Workers of a study that come and go: each signs in, and the trials of dead ones are queued again."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from zlib import crc32

import optuna
from optuna import Study
from optuna.exceptions import UpdateFinishedTrialError
from optuna.trial import FrozenTrial, TrialState

from specexp.config.sweep import Sweep
from specexp.sweep.database import locked, outlasting
from specexp.sweep.drawing import build_sampler
from specexp.sweep.space import Space
from specexp.sweep.storage import GRACE_SECONDS

WORKER = "worker "
"""Begins the study's attributes that name its workers."""

MAX_RETRIES = 3
"""How often a trial is measured again after its worker died: a configuration that kills every worker ends with it."""


def resume(study: Study, settings: Sweep, *, alone: bool, stated: Mapping[str, Any] | None = None) -> int:
    """Sign in, queue the trials of dead processes again, and queue the known configurations that never were.

    Args:
        study: The study, opened.
        settings: Its sweep section.
        alone: Whether no other process can be running trials of it, so that every running one is dead. Otherwise only
            those of dead processes of this machine are, and the storage's heartbeat finds the others.
        stated: The worker's device, and where its models are placed.

    Returns:
        Number of trials that were queued again.
    """
    begun = len(study.get_trials(deepcopy=False))
    study.set_user_attr(f"{WORKER}{worker()}", dict(stated or {}))
    # The same seed would draw the same configurations again: in a resumed study, and in another worker.
    study.sampler = build_sampler(settings, offset=begun + place_among_workers(study))
    with locked(settings.storage, f"{study.study_name}: signing in", wait=True):
        dead = put_back(study, lambda trial: alone or _is_dead(trial))
        _queue_known(study, settings)
    return dead


def _queue_known(study: Study, settings: Sweep) -> None:
    # A process that died between taking a trial and signing it left nothing but a known name: queue that again.
    queued = {
        trial.user_attrs.get("known")
        for trial in study.get_trials(deepcopy=False)
        if trial.state is not TrialState.RUNNING or "worker" in trial.user_attrs
    }
    space = Space(settings)
    for known in settings.known:
        if known.name not in queued:
            params = space.params_of(known.overrides)
            outside = {"overrides": dict(known.overrides)} if params is None else {}
            study.enqueue_trial(params or {}, user_attrs={"known": known.name, **outside})


def known_waiting(study: Study) -> bool:
    """Whether a known configuration is to be measured again because its worker died."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return any({"known", "retry_of"} <= trial.user_attrs.keys() for trial in waiting)


def put_back(study: Study, is_dead: Callable[[FrozenTrial], bool]) -> int:
    """Queue dead running trials again and fail them. Return their number."""
    # Ending a trial notifies the sampler, and an enumerating one may then end a search that has not begun.
    sampler, study.sampler = study.sampler, optuna.samplers.RandomSampler()
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    dead = [trial for trial in running if is_dead(trial)]
    for trial in dead:
        requeue(study, trial)  # first, so that dying between the two loses nothing
        with suppress(UpdateFinishedTrialError):  # failed meanwhile for its heartbeat
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    study.sampler = sampler
    return len(dead)


def requeue(study: Study, trial: FrozenTrial) -> None:
    """Queue a trial's parameters again, unless they are waiting already or were :data:`MAX_RETRIES` times."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    retries = trial.user_attrs.get("retries", 0)
    if retries == MAX_RETRIES or any(one.user_attrs.get("retry_of") == trial.number for one in waiting):
        return
    attributes: dict[str, Any] = {
        name: trial.user_attrs[name] for name in ("known", "overrides") if name in trial.user_attrs
    }
    # A parameter that was fixed and not drawn yet is fixed again. What was left open is drawn by the sampler.
    params = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    study.enqueue_trial(params, user_attrs=attributes | {"retry_of": trial.number, "retries": retries + 1})


def others_running(study: Study) -> bool:
    """Whether another process is measuring a trial right now. Trials of dead ones are queued again first."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        outlasting(lambda: optuna.storages.fail_stale_trials(study))
    put_back(study, _is_dead)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return any("worker" in trial.user_attrs for trial in running)


def place_among_workers(study: Study) -> int:
    """An offset for seeds, so that workers do not draw the same: 0 for one that begins a study alone."""
    own = f"{WORKER}{worker()}"
    alone = not any(name.startswith(WORKER) and name != own for name in study.user_attrs)
    return 0 if alone else crc32(own.encode()) >> 1


def worker() -> str:
    """The name of this process as a worker: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _is_dead(trial: FrozenTrial) -> bool:
    if "worker" not in trial.user_attrs and trial.datetime_start is not None:
        return (datetime.now() - trial.datetime_start).total_seconds() > GRACE_SECONDS
    host, _, process = str(trial.user_attrs.get("worker", "")).rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):
        return False
    return False
