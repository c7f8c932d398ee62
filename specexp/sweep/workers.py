"""Workers of a study: they sign in, queue the trials of dead ones again, and take turns."""

from __future__ import annotations

import os
import socket
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any
from zlib import crc32

import optuna
from optuna import Study, Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from specexp.config.sweep import Sweep
from specexp.sweep.sampler import build_sampler
from specexp.sweep.space import Space
from specexp.sweep.storage import GRACE_SECONDS, is_lost, retry_creation, retry_lost

WORKER = "worker "
"""Begins the study's attributes that name its workers."""

MAX_RETRIES = 3
"""How often a trial is measured again after its worker died, because its configuration may kill every worker."""

CONFIRMATION = "confirmation"
"""The kind of turn for which a worker does not wait: another worker's confirmation is enough."""

TURN_SECONDS = 0.2
"""Pause between two checks of the earlier turns."""


def resume(
    study: Study, turns: Study, settings: Sweep, *, alone: bool, stated: Mapping[str, Any] | None = None
) -> int:
    """Sign in, and queue the known configurations that never were.

    Args:
        alone: Whether no other process can run trials of the study, so that every running one is dead. Otherwise only
            dead processes of this machine are known, and the storage's heartbeat finds the others.
        stated: Attributes of the worker: its device, and the placement of its models.

    Returns:
        The number of dead processes' trials that are queued again.
    """
    begun = len(study.get_trials(deepcopy=False))
    study.set_user_attr(f"{WORKER}{worker()}", dict(stated or {}))
    # The same seed would draw the same configurations again: in a resumed study, and in another worker.
    study.sampler = build_sampler(settings, offset=begun + place_among_workers(study))
    dead = 0

    def sign_in(turn: Turn) -> None:
        nonlocal dead
        dead = put_back(study, lambda trial: alone or is_dead(trial))
        _queue_known(study, settings)

    in_turn(turns, "start", sign_in, alone=alone)
    return dead


def _queue_known(study: Study, settings: Sweep) -> None:
    # A process that died between taking a trial and signing it left only its known name, which is queued again.
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
            enqueue(study, params or {}, {"known": known.name, **outside})


def enqueue(study: Study, params: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    """Queue a trial, and keep its parameters for a retry, because the storage has only those drawn so far."""
    study.enqueue_trial(params, user_attrs={**attributes, "queued": params})


def requeue(study: Study, trial: FrozenTrial) -> None:
    """Queue a trial's parameters again, unless they are waiting already or were :data:`MAX_RETRIES` times."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    retries = trial.user_attrs.get("retries", 0)
    if retries == MAX_RETRIES or any(one.user_attrs.get("retry_of") == trial.number for one in waiting):
        return
    kept: dict[str, Any] = {
        name: trial.user_attrs[name] for name in ("known", "overrides") if name in trial.user_attrs
    }
    params = {**trial.user_attrs.get("queued", {}), **trial.params}
    enqueue(study, params, {**kept, "retry_of": trial.number, "retries": retries + 1})


def put_back(study: Study, dead: Callable[[FrozenTrial], bool]) -> int:
    """Queue dead running trials again and fail them. Return their number."""
    # Ending a trial notifies the sampler, and an enumerating one may then end a search that has not begun.
    sampler, study.sampler = study.sampler, optuna.samplers.RandomSampler()
    running = study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
    found = [trial for trial in running if dead(trial)]
    for trial in found:
        requeue(study, trial)  # first, so that dying between the two loses nothing
        with suppress(UpdateFinishedTrialError):  # failed meanwhile for its heartbeat
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    study.sampler = sampler
    return len(found)


def known_waiting(study: Study) -> bool:
    """Whether a known configuration is to be measured again because its worker died."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return any({"known", "retry_of"} <= trial.user_attrs.keys() for trial in waiting)


def running(study: Study, dead: Callable[[FrozenTrial], bool] | None = None) -> list[FrozenTrial]:
    """Return the running trials after ending and queueing again those of dead processes."""

    def look() -> list[FrozenTrial]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        put_back(study, dead or is_dead)
        return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    return retry_lost(look)


def others_running(study: Study) -> bool:
    """Whether another process is measuring a trial."""
    return any("worker" in trial.user_attrs for trial in running(study))


def open_turns(name: str, storage: BaseStorage) -> Study:
    """Open the turns of a study's workers: a second study in its storage, whose trials are claimed one by one."""
    return retry_creation(
        lambda: optuna.create_study(
            storage=storage,
            study_name=f"{name}: turns",
            sampler=optuna.samplers.RandomSampler(),
            load_if_exists=True,
        )
    )


class Turn:
    """The turn that this worker claimed: a trial of ``turns``."""

    def __init__(self, turns: Study, trial: Trial) -> None:
        self._turns, self._trial = turns, trial

    def is_mine(self) -> bool:
        """Whether this worker still holds it; one that was stopped for too long loses it."""
        kept = self._turns.get_trials(deepcopy=False)[self._trial.number]
        return kept.state is TrialState.RUNNING

    def sign(self, name: str, value: object) -> None:
        """Keep a JSON value with the turn."""
        self._trial.set_user_attr(name, value)


def in_turn(turns: Study, kind: str, work: Callable[[Turn], None], *, alone: bool) -> bool:
    """Do work once all earlier turns of other workers have ended. The turn of a dead worker ends by itself.

    Args:
        alone: Whether no other process can have a turn, so that every other one is a dead process's.

    Returns:
        Whether it was done; false if this is a confirmation and another worker confirms.

    Raises:
        Exception: The error of ``work``.
    """
    done, number, problem = False, -1, list[Exception]()

    def is_gone(turn: FrozenTrial) -> bool:
        return turn.user_attrs.get("worker") != worker() if alone else is_dead(turn)

    def turn(trial: Trial) -> float:
        nonlocal done, number
        number = trial.number
        trial.set_user_attr("worker", worker())
        trial.set_user_attr("kind", kind)
        while ahead := [one for one in running(turns, is_gone) if one.number < trial.number]:
            if kind == CONFIRMATION and any(one.user_attrs.get("kind") == kind for one in ahead):
                raise optuna.TrialPruned
            time.sleep(TURN_SECONDS)
        try:
            work(Turn(turns, trial))
            done = True
        except Exception as error:
            problem.append(error)
            raise
        return 0.0

    while True:
        try:
            turns.optimize(turn, n_trials=1)
            return done
        except Exception as error:  # also of ending a turn that another worker gave away
            if problem:
                raise problem[0] from None
            if done:
                return True
            if not is_lost(error):
                raise
            # It was cut off before its work began, and is queued for the next attempt.
            retry_lost(lambda: put_back(turns, lambda one: one.number == number))


def place_among_workers(study: Study) -> int:
    """An offset for seeds that differs between workers; 0 for one that begins a study alone."""
    own = f"{WORKER}{worker()}"
    alone = not any(name.startswith(WORKER) and name != own for name in study.user_attrs)
    return 0 if alone else crc32(own.encode()) >> 1


def worker() -> str:
    """The name of this process as a worker: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_dead(trial: FrozenTrial) -> bool:
    """Whether the process that runs a trial is known to have died: on this machine, or before it signed the trial."""
    if "worker" not in trial.user_attrs and trial.datetime_start is not None:
        return (datetime.now() - trial.datetime_start).total_seconds() > GRACE_SECONDS
    host, _, process = str(trial.user_attrs.get("worker", "")).rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):  # another user's process, or no number
        pass
    return False
