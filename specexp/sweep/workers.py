"""Workers of a study, which sign in, requeue the trials of dead workers, and claim the confirmation."""

from __future__ import annotations

import os
import socket
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from datetime import datetime
from time import sleep
from typing import Any, TypeVar
from zlib import crc32

import optuna
from optuna import Trial
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from specexp.config.sweep import Sweep
from specexp.sweep.sampler import build_sampler
from specexp.sweep.space import Space
from specexp.sweep.storage import GRACE_SECONDS, is_lost, own_study, retry_lost

WORKER = "worker "
"""Prefix of the study attributes that name the study's workers."""
CONFIRMATIONS = ": confirmations"
"""Suffix of the name of the second Optuna study, which has one trial per claim to the confirmation."""
CONCLUDED = "concluded"
"""Name of the claim's attribute that holds the study's result."""
MAX_RETRIES = 3
"""Maximum number of times that a trial is retried after its worker dies, in case its configuration kills workers."""

POLL_SECONDS = 2.0
"""Seconds between checks of whether other workers are still measuring."""


Result = TypeVar("Result")


def sign_in(
    study: optuna.Study, settings: Sweep, *, exclusive: bool, stated: Mapping[str, Any] | None = None
) -> int:
    """Register this worker in the study, and queue the known configurations that have never been queued.

    Workers that sign in at the same moment may queue a trial twice. Only the first of the two is measured.

    Args:
        exclusive: True if no other process can run trials of the study, so that every running trial is dead. Otherwise
            this function finds only dead processes on this machine, and the storage's heartbeat finds the others.
        stated: Attributes of the worker: its device and the placement of its models.

    Returns the number of trials of dead processes that were requeued.
    """
    begun = len(study.get_trials(deepcopy=False))
    own = f"{WORKER}{worker()}"
    first = not any(name.startswith(WORKER) and name != own for name in study.user_attrs)
    study.set_user_attr(own, dict(stated or {}))
    # The same seed would draw the same configurations again, in a resumed study and in another worker.
    study.sampler = build_sampler(settings, begun + (0 if first else crc32(own.encode()) >> 1))
    dead = put_back(study, lambda trial: exclusive or is_dead(trial))
    # A trial of a process that died before signing it does not count as queued, so its configuration is queued again.
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


def put_back(study: optuna.Study, dead: Callable[[FrozenTrial], bool]) -> int:
    """Requeue the running trials that are dead, mark them as failed, and return their number."""
    # Ending a trial notifies the sampler, and an enumerating sampler may then end a search that has not begun.
    sampler, study.sampler = study.sampler, optuna.samplers.RandomSampler()
    found = [trial for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)) if dead(trial)]
    for trial in found:
        requeue(study, trial)  # first, so that nothing is lost if this process dies in between
        with suppress(UpdateFinishedTrialError):  # its heartbeat expired meanwhile
            study.tell(trial.number, state=TrialState.FAIL, skip_if_finished=True)
    study.sampler = sampler
    return len(found)


def known_waiting(study: optuna.Study) -> bool:
    """Return whether a known configuration must be measured again because its worker died."""
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    return any({"known", "retry_of"} <= trial.user_attrs.keys() for trial in waiting)


def running(study: optuna.Study, dead: Callable[[FrozenTrial], bool]) -> list[FrozenTrial]:
    """Return the running trials, after requeuing those of dead processes and marking them as failed."""

    def look() -> list[FrozenTrial]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            optuna.storages.fail_stale_trials(study)
        put_back(study, dead)
        return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    return retry_lost(look)


def others_running(study: optuna.Study) -> bool:
    """Return whether another process is measuring a trial."""
    return any("worker" in trial.user_attrs for trial in running(study, is_dead))


class TakenOverError(Exception):
    """Raised if another worker is confirming, or has confirmed, the best trials."""


class Claim:
    """This worker's claim to the confirmation, held as a running trial, which another worker ends if this one dies."""

    def __init__(self, confirmations: optuna.Study, trial: Trial) -> None:
        self._confirmations, self._trial = confirmations, trial

    def check(self) -> None:
        """Raise TakenOverError if this worker lost the claim because it was suspended for too long."""
        if self._confirmations.get_trials(deepcopy=False)[self._trial.number].state is not TrialState.RUNNING:
            raise TakenOverError

    def sign(self, name: str, value: object) -> None:
        """Store a JSON value as an attribute of the claim."""
        self._trial.set_user_attr(name, value)


def open_confirmations(name: str, storage: BaseStorage) -> optuna.Study:
    """Open the second Optuna study in a study's storage. It has one trial per claim to the confirmation."""
    return own_study(
        storage, f"{name}{CONFIRMATIONS}", {"confirms": name}, sampler=optuna.samplers.RandomSampler()
    )


def in_turn(
    trials: optuna.Study,
    confirmations: optuna.Study,
    search: Callable[[], None],
    kept: Callable[[], Result | None],
    confirm: Callable[[Claim], Result],
    say: Callable[[str], None],
) -> Result | None:
    """Confirm a searched study, or return another worker's result; None if another worker is still confirming it.

    If this worker dies, its claim passes to the next one. A worker that loses its claim while suspended writes nothing.

    Args:
        search: Measures the known configurations left by workers that have died in the meantime.
        kept: Returns the stored result of the study; None if there is something to confirm.
    """

    def claimed(claim: Claim) -> Result:
        if others_running(trials):
            say("Waiting for the last trials of the other workers before the best trials are confirmed.")
        while others_running(trials) or known_waiting(trials):
            while others_running(trials):
                sleep(POLL_SECONDS)
            search()  # even if nothing is left: trials.csv then has the last trials of the other workers
        return kept() or confirm(claim)

    try:
        return claim_confirmation(confirmations, claimed)
    except TakenOverError:
        say("Another worker confirms the best trials.")
        return None


def claim_confirmation(confirmations: optuna.Study, confirm: Callable[[Claim], Result]) -> Result:
    """Claim the confirmation and return the result of ``confirm``; raises TakenOverError if another worker has it.

    The claim of a dead worker expires.
    """
    number, results, problems = -1, list[Result](), list[Exception]()

    def claimed(trial: Trial) -> float:
        nonlocal number
        number = trial.number
        trial.set_user_attr("worker", worker())
        # If two workers claim at the same moment, the earlier claim counts.
        if any(one.number < number for one in running(confirmations, is_dead)):
            raise optuna.TrialPruned
        try:
            results.append(confirm(Claim(confirmations, trial)))
        except Exception as error:
            problems.append(error)
            raise
        return 0.0

    while True:
        try:
            confirmations.optimize(claimed, n_trials=1)  # not ``ask``, which does not send heartbeats
            break
        except Exception as error:  # also if another worker has ended this claim
            if problems:
                raise problems[0] from None
            if results:
                break
            if not is_lost(error):
                raise
            # The connection was lost before the confirmation began: end this claim and claim once more.
            retry_lost(lambda: put_back(confirmations, lambda one: one.number == number))
    if not results:
        raise TakenOverError
    return results[0]


def worker() -> str:
    """Return the name of this process as a worker: host and process id."""
    return f"{socket.gethostname()}:{os.getpid()}"


def is_dead(trial: FrozenTrial) -> bool:
    """Return whether a trial's process is known to be dead: it is gone from this machine, or never signed the trial."""
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
