"""Workers of a study that come and go: each signs in, and what dead ones were at is asked for again."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy, deepcopy
from datetime import datetime
from typing import Any
from zlib import crc32

import optuna
from optuna import Study
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState

from specexp.config.sweep import Sweep
from specexp.sweep.drawing import build_sampler
from specexp.sweep.lock import locked
from specexp.sweep.space import Space
from specexp.sweep.storage import GRACE_SECONDS

WORKER = "worker "
"""Begins the study's attributes that name its workers."""

MAX_RETRIES = 3
"""How often a trial is measured again whose worker died: what kills every worker ends with it."""

_HISTORY = ("failed_trial", "retry_history")
"""Where Optuna's callback keeps of which trials one is a repetition."""


def resume(study: Study, settings: Sweep, *, alone: bool, stated: Mapping[str, Any] | None = None) -> int:
    """Sign in, and put back what a dead process left running, and the known configurations not yet asked for.

    Args:
        study: The study, opened.
        settings: Its sweep section.
        alone: Whether no other process can be running trials of it, so that every running one is dead; otherwise only
            those of dead processes of this machine are, and the storage's heartbeat finds the others.
        stated: What this worker says of itself: its device, and where its models are placed.

    Returns:
        How many trials were put back.
    """
    begun = len(study.get_trials(deepcopy=False))
    study.set_user_attr(f"{WORKER}{worker()}", dict(stated or {}))
    # The same seed again would draw the same configurations again: in a study that goes on, and in another worker.
    study.sampler = build_sampler(settings, offset=begun + place_among_workers(study))
    with locked(study, "signing in", wait=True):  # workers that begin together find the same trials
        dead = _put_back(study, lambda trial: alone or _is_dead(trial))
        _ask_for_known(study, settings)
    return dead


def _ask_for_known(study: Study, settings: Sweep) -> None:
    # A process that died between taking a trial and signing it left nothing but a known name: ask for that again.
    asked = {
        trial.user_attrs.get("known")
        for trial in study.get_trials(deepcopy=False)
        if trial.state is not TrialState.RUNNING or "worker" in trial.user_attrs
    }
    space = Space(settings)
    for known in settings.known:
        if known.name in asked:
            continue
        params = space.params_of(known.overrides)
        attributes: dict[str, Any] = {"known": known.name}
        if params is None:
            attributes["overrides"] = dict(known.overrides)
        study.enqueue_trial(params or {}, user_attrs=attributes)


def known_waiting(study: Study) -> bool:
    """Whether a known configuration is to be measured again because its worker died."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return any({"known", "retry_of"} <= trial.user_attrs.keys() for trial in waiting)


def _put_back(study: Study, is_dead: Callable[[FrozenTrial], bool]) -> int:
    """Ask for what dead processes were at again, and end their trials; how many these are."""
    # A sampler is told of what ends, and one that enumerates may then end a search that has not begun.
    sampler, study.sampler = study.sampler, optuna.samplers.RandomSampler()
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    dead = [trial for trial in running if is_dead(trial)]
    for trial in dead:
        requeue(study, trial)  # first, so that dying between the two loses nothing
        with suppress(UpdateFinishedTrialError):  # whose heart was missed meanwhile
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    study.sampler = sampler
    return len(dead)


def requeue(study: Study, trial: FrozenTrial) -> None:
    """Ask for a trial's parameters again by Optuna's own callback, unless that was done already, or
    :data:`MAX_RETRIES` times.
    """
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    if any(other.user_attrs.get("retry_of") == trial.number for other in waiting):
        return
    again = copy(trial)
    again.user_attrs = {"retry_of": trial.number} | {
        name: trial.user_attrs[name] for name in ("known", "overrides") if name in trial.user_attrs
    }
    system = {name: trial.system_attrs[name] for name in _HISTORY if name in trial.system_attrs}
    # Asked for, not drawn: what the trial had not drawn yet is drawn now, as its sampler would have.
    fixed = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
    again.system_attrs = deepcopy({**system, "fixed_params": fixed})
    again.distributions, again.params = {}, {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        RetryHeartbeatStaleTrialCallback(max_retry=MAX_RETRIES)(study, again)


def others_running(study: Study) -> bool:
    """Whether another process that shares the study is measuring a trial right now; what dead ones left is put back."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        optuna.storages.fail_stale_trials(study)
    _put_back(study, _is_dead)
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    return any("worker" in trial.user_attrs for trial in running)


def place_among_workers(study: Study) -> int:
    """A number that is added to seeds, so that workers do not draw the same: 0 for one that begins a study alone."""
    names = {name for name in study.user_attrs if name.startswith(WORKER)}
    own = f"{WORKER}{worker()}"
    return 0 if names <= {own} else crc32(own.encode()) >> 1


def worker() -> str:
    """This process, as trials name the one that runs them."""
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
