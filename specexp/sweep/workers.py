"""Workers of a study: they sign in, queue the trials of dead workers again, and one of them claims the confirmation."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from typing import Any, TypeVar
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
"""Prefix of the study's attributes that name its workers."""
CONFIRMATIONS = ": confirmations"
"""Suffix of the name of the study of claims."""
CONCLUDED = "concluded"
"""The attribute of a claim with the conclusion of its study."""
MAX_RETRIES = 3
"""Limit of repeats of a trial after its worker died, because its configuration may kill every worker."""

Result = TypeVar("Result")


def sign_in(
    study: Study, settings: Sweep, *, exclusive: bool, stated: Mapping[str, Any] | None = None
) -> int:
    """Name this worker in the study, and queue the known configurations that never were.

    Workers that sign in at the same moment may queue a trial twice. Only the first of the two is measured.

    Args:
        exclusive: Whether no other process can run trials of the study, so that every running one is dead. Otherwise
            only dead processes of this machine are found, and the storage's heartbeat finds the others.
        stated: Attributes of the worker: its device, and the placement of its models.

    Returns the number of dead processes' trials that are queued again.
    """
    begun = len(study.get_trials(deepcopy=False))
    own = f"{WORKER}{worker()}"
    first = not any(name.startswith(WORKER) and name != own for name in study.user_attrs)
    study.set_user_attr(own, dict(stated or {}))
    # The same seed would draw the same configurations again, in a resumed study and in another worker.
    study.sampler = build_sampler(settings, begun + (0 if first else crc32(own.encode()) >> 1))
    dead = put_back(study, lambda trial: exclusive or is_dead(trial))
    # A process that died between taking a trial and signing it left only its known name, which is queued again.
    queued = {
        trial.user_attrs.get("known")
        for trial in study.get_trials(deepcopy=False)
        if trial.state is not TrialState.RUNNING or "worker" in trial.user_attrs
    }
    for known in settings.known:
        if known.name not in queued:
            params = Space(settings).params_of(known.overrides)
            outside = {"overrides": dict(known.overrides)} if params is None else {}
            enqueue(study, params or {}, {"known": known.name, **outside})
    return dead


def enqueue(study: Study, params: dict[str, Any], attributes: Mapping[str, Any]) -> None:
    """Queue a trial, and keep its parameters for a retry, because the storage has only those drawn so far."""
    study.enqueue_trial(params, user_attrs={**attributes, "queued": params})


def requeue(study: Study, trial: FrozenTrial) -> None:
    """Queue a trial's parameters again, unless they wait already or were retried :data:`MAX_RETRIES` times."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    attributes, retries = trial.user_attrs, trial.user_attrs.get("retries", 0)
    if retries == MAX_RETRIES or any(one.user_attrs.get("retry_of") == trial.number for one in waiting):
        return
    kept: dict[str, Any] = {name: attributes[name] for name in ("known", "overrides") if name in attributes}
    params = {**attributes.get("queued", {}), **trial.params}
    enqueue(study, params, {**kept, "retry_of": trial.number, "retries": retries + 1})


def put_back(study: Study, dead: Callable[[FrozenTrial], bool]) -> int:
    """Queue dead running trials again and fail them. Return their number."""
    # Ending a trial notifies the sampler, and an enumerating one may then end a search that has not begun.
    sampler, study.sampler = study.sampler, optuna.samplers.RandomSampler()
    found = [trial for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if dead(trial)]
    for trial in found:
        requeue(study, trial)  # first, so that dying between the two loses nothing
        with suppress(UpdateFinishedTrialError):  # failed meanwhile for its heartbeat
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    study.sampler = sampler
    return len(found)


def known_waiting(study: Study) -> bool:
    """Return whether a known configuration is to be measured again because its worker died."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return any({"known", "retry_of"} <= trial.user_attrs.keys() for trial in waiting)


def running(study: Study, dead: Callable[[FrozenTrial], bool]) -> list[FrozenTrial]:
    """Return the running trials after ending and queueing again those of dead processes."""

    def look() -> list[FrozenTrial]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        put_back(study, dead)
        return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    return retry_lost(look)


def others_running(study: Study) -> bool:
    """Return whether another process is measuring a trial."""
    return any("worker" in trial.user_attrs for trial in running(study, is_dead))


class TakenOverError(Exception):
    """Another worker confirms, or confirmed, the best trials."""


class Claim:
    """The confirmation as this worker claimed it: a running trial, which another worker fails if this one is dead."""

    def __init__(self, confirmations: Study, trial: Trial) -> None:
        self._confirmations, self._trial = confirmations, trial

    def check(self) -> None:
        """Raise TakenOverError if this worker was stopped for so long that it lost the claim."""
        if self._confirmations.get_trials(deepcopy=False)[self._trial.number].state is not TrialState.RUNNING:
            raise TakenOverError

    def sign(self, name: str, value: object) -> None:
        """Keep a JSON value with the claim."""
        self._trial.set_user_attr(name, value)


def open_confirmations(name: str, storage: BaseStorage) -> Study:
    """Open the confirmations of a study: a second study in its storage, with a trial for each claim."""
    return retry_creation(
        lambda: optuna.create_study(
            storage=storage,
            study_name=f"{name}{CONFIRMATIONS}",
            sampler=optuna.samplers.RandomSampler(),
            load_if_exists=True,
        )
    )


def claim_confirmation(
    confirmations: Study, confirm: Callable[[Claim], Result], *, exclusive: bool
) -> Result:
    """Return the result of ``confirm``; TakenOverError if another worker confirms.

    A dead worker's claim ends by itself. With ``exclusive`` no other process can have a claim, so others are dead.
    """
    number, results, problems = -1, list[Result](), list[Exception]()

    def is_gone(claim: FrozenTrial) -> bool:
        return claim.user_attrs.get("worker") != worker() if exclusive else is_dead(claim)

    def claimed(trial: Trial) -> float:
        nonlocal number
        number = trial.number
        trial.set_user_attr("worker", worker())
        # Of two claims at the same moment the earlier one counts.
        if any(one.number < number for one in running(confirmations, is_gone)):
            raise optuna.TrialPruned
        try:
            results.append(confirm(Claim(confirmations, trial)))
        except Exception as error:
            problems.append(error)
            raise
        return 0.0

    while True:
        try:
            confirmations.optimize(claimed, n_trials=1)  # and not ``ask``, which sends no heartbeat
            break
        except Exception as error:  # also of ending a claim that another worker gave away
            if problems:
                raise problems[0] from None
            if results:
                break
            if not is_lost(error):
                raise
            # The database was lost before the confirmation began: end this claim and claim once more.
            retry_lost(lambda: put_back(confirmations, lambda one: one.number == number))
    if not results:
        raise TakenOverError
    return results[0]


def worker() -> str:
    """Return the name of this process as a worker: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_dead(trial: FrozenTrial) -> bool:
    """Return whether the process of a trial is known to be dead: on this machine, or before it signed the trial."""
    if "worker" not in trial.user_attrs and trial.datetime_start is not None:
        return (datetime.now() - trial.datetime_start).total_seconds() > GRACE_SECONDS
    host, _, process = str(trial.user_attrs.get("worker", "")).rpartition(":")
    if host != socket.gethostname():
        return False
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (OSError, ValueError):  # another user's process, or not a number
        pass
    return False
