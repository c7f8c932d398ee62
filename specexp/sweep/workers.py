"""Several workers of one study in a database: they share its trials, and one of them confirms the best.

A process that has a study to itself never imports this module.
"""

from __future__ import annotations

import os
import socket
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from time import sleep, time
from typing import Any
from zlib import crc32

import optuna
import psutil
from optuna import Trial
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from sqlalchemy import make_url
from typing_extensions import override

from specexp.cluster.launch import ClusterOptions, run_workers
from specexp.config import ConfigError
from specexp.config.layers import COMMAND_LINE
from specexp.config.sweep import Sweep
from specexp.sweep.conclusion import CONCLUDED, StudyResult, conclude
from specexp.sweep.one_process import OneProcess
from specexp.sweep.prepared import PreparedStudy
from specexp.sweep.sampler import build_sampler
from specexp.sweep.search import StudySearch
from specexp.sweep.storage import GRACE_SECONDS, is_lost, open_storage, own_study, retry_lost
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.trial_queue import known_waiting, put_back, queue_known
from specexp.sweep.trials import Candidate

WORKER = "worker "
"""Prefix of the study attributes that name the study's workers."""
CONFIRMATIONS = ": confirmations"
"""Suffix of the name of the second Optuna study, which has one trial per claim to the confirmation."""

POLL_SECONDS = 2.0
"""Seconds between checks of whether other workers are still measuring."""


class Workers(OneProcess):
    """One of the workers of a study in a database."""

    @override
    @contextmanager
    def opened(self) -> Iterator[str]:
        yield ""

    @override
    def open(self) -> optuna.Study:
        trials = super().open()
        self.confirmations = open_confirmations(trials.study_name, self.storage)
        return trials

    @override
    def others_running(self, trials: optuna.Study) -> bool:
        return any("worker" in trial.user_attrs for trial in running(trials))

    @override
    def join(self, trials: optuna.Study, settings: Sweep) -> int:
        """Register this worker in the study, and queue the known configurations that have never been queued.

        Workers that join at the same moment may queue a trial twice. Only the first of the two is measured. Dead
        processes on this machine are found here, and those on other machines by the storage's heartbeat.

        Returns the number of trials of dead processes that were requeued.
        """
        begun = len(trials.get_trials(deepcopy=False))
        own = f"{WORKER}{worker()}"
        first = not any(name.startswith(WORKER) and name != own for name in trials.user_attrs)
        trials.set_user_attr(own, True)
        # The same seed would draw the same configurations again, in a resumed study and in another worker.
        trials.sampler = build_sampler(settings, begun + (0 if first else crc32(own.encode()) >> 1))
        dead = put_back(trials, is_dead)
        # A trial of a process that died before signing it does not count: its configuration is queued again.
        queue_known(trials, settings, lambda one: one.state is not TrialState.RUNNING or "worker" in one.user_attrs)
        return dead

    @override
    def search(self, study: PreparedStudy, after: Callable[[FrozenTrial], None]) -> str:
        return SharedSearch(study.trials, study.settings, study.bench, after, study.ends).run()

    @override
    def deadline(self, kept: Mapping[str, Any], minutes: float, own: float) -> float:
        return float(kept["until"]) if kept.get("minutes") == minutes and kept["until"] > time() else own

    @override
    def last_result(self, trials: optuna.Study) -> StudyResult | None:
        return last_result(self.confirmations)

    @override
    def conclude(self, study: PreparedStudy, search: Callable[[], None]) -> StudyResult | None:
        """Confirm a searched study, or return another worker's result; None if another worker is still confirming it.

        If this worker dies, its claim passes to the next one. A suspended worker that loses its claim writes nothing.
        """
        trials = study.trials

        def claimed(claim: Claim) -> StudyResult:
            if self.others_running(trials):
                study.say("Waiting for the last trials of the other workers before the best trials are confirmed.")
            while self.others_running(trials) or known_waiting(trials):
                while self.others_running(trials):
                    sleep(POLL_SECONDS)
                search()  # even if nothing is left: trials.csv then has the last trials of the other workers
            if found := self.unchanged(trials):
                study.say(f"The best trials were confirmed by {found.worker}, in {found.folder}.")
                return found
            return conclude(study, claim.check, claim.sign, worker())

        try:
            return claim_confirmation(self.confirmations, claimed)
        except TakenOverError:
            study.say("Another worker confirms the best trials.")
            return None


def last_result(confirmations: optuna.Study) -> StudyResult | None:
    """Return the last result of a study; None if the study has not ended."""
    ends = [one.user_attrs.get(CONCLUDED) for one in confirmations.get_trials(deepcopy=False)]
    return StudyResult.read(next(filter(None, reversed(ends)), None))


class SharedSearch(StudySearch):
    """One worker's search in a study that others search too. It outlives a lost connection to the database.

    Every trial is signed with its worker, so that a dead worker's trials can be found.
    """

    _current: int | None = None  # number of the running trial

    @override
    def __call__(self, trial: Trial) -> list[float]:
        self._current = trial.number
        trial.set_user_attr("worker", worker())
        return super().__call__(trial)

    @override
    def _note(self, trials: optuna.Study, trial: FrozenTrial) -> None:
        self._current = None
        super()._note(trials, trial)

    @override
    def _fail(self, trial: Trial, error: Exception, measured: str | None) -> None:
        retry_lost(lambda: super(SharedSearch, self)._fail(trial, error, None if is_lost(error) else measured))
        if is_lost(error):
            retry_lost(lambda: self._requeue(trial))

    @override
    def _recover(self, error: Exception) -> None:
        """Prepare to continue after an error in Optuna's loop, or raise the storage's error.

        The search can continue if the database was temporarily unreachable. It can also continue if this process was
        suspended for so long that another worker marked its trial as failed.
        """
        number = self._current
        self._current = None
        self._barren += 1
        self._failed += 1
        if is_lost(error):
            retry_lost(lambda: put_back(self._trials, lambda trial: trial.number == number))
            continues = True
        else:
            trials = self._trials.get_trials(deepcopy=False)
            continues = number is not None and trials[number].state.is_finished()
        if not continues or self._barren >= self._patience:
            super()._recover(error)

    @override
    def _sign(self, trial: Trial, candidate: Candidate) -> FrozenTrial | None:
        # If two workers sign at the same moment, the earlier trial continues, unless the later one already
        # has attributes and so is being measured. The second round finds an earlier trial that signed in between.
        for name, value in (("digest", candidate.digest), ("attributes", dict(candidate.attributes))):
            trial.set_user_attr(name, value)
            for one in self._same(trial, candidate):
                if one.state is not TrialState.RUNNING or one.number == trial.user_attrs.get("retry_of"):
                    continue
                if one.number < trial.number or (name == "digest" and "attributes" in one.user_attrs):
                    trial.set_user_attr("duplicate_of", one.number)
                    if "queued" in trial.user_attrs:
                        self._requeue(trial)
                    raise ValueError(f"trial {one.number} is measuring the same candidate now")
        return self._measured_before(trial, candidate)


def running(study: optuna.Study) -> list[FrozenTrial]:
    """Return the running trials, after requeuing those of dead processes and marking them as failed."""

    def look() -> list[FrozenTrial]:
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            optuna.storages.fail_stale_trials(study)
        put_back(study, is_dead)
        return study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))

    return retry_lost(look)


class TakenOverError(Exception):
    """Raised if another worker is confirming, or has confirmed, the best trials."""


class Claim:
    """This worker's claim to the confirmation, held as a running trial, which another worker ends if this one dies."""

    def __init__(self, confirmations: optuna.Study, trial: Trial) -> None:
        self._confirmations = confirmations
        self._trial = trial

    def check(self) -> None:
        """Raise TakenOverError if this worker lost the claim because it was suspended for too long."""
        if self._confirmations.get_trials(deepcopy=False)[self._trial.number].state is not TrialState.RUNNING:
            raise TakenOverError

    def sign(self, result: StudyResult) -> None:
        """Store the result of the study, which all workers can read."""
        self._trial.set_user_attr(CONCLUDED, asdict(result))


def open_confirmations(name: str, storage: BaseStorage) -> optuna.Study:
    """Open the second Optuna study in a study's storage. It has one trial per claim to the confirmation."""
    return own_study(storage, f"{name}{CONFIRMATIONS}", {"confirms": name}, sampler=optuna.samplers.RandomSampler())


def claim_confirmation(confirmations: optuna.Study, confirm: Callable[[Claim], StudyResult]) -> StudyResult:
    """Claim the confirmation and return the result of ``confirm``; raises TakenOverError if another worker has it.

    The claim of a dead worker expires.
    """
    number = -1
    results: list[StudyResult] = []
    problems: list[Exception] = []

    def claimed(trial: Trial) -> float:
        nonlocal number
        number = trial.number
        trial.set_user_attr("worker", worker())
        # If two workers claim at the same moment, the earlier claim counts.
        if any(one.number < number for one in running(confirmations)):
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
    return host == socket.gethostname() and process.isdecimal() and not psutil.pid_exists(int(process))


def run_study_workers(
    config: StudyConfig, options: ClusterOptions, typed: Sequence[str], console: Console
) -> tuple[int, StudyResult | None]:
    """Run a study with workers on a cluster, and print its result.

    Returns the exit code (1 if a worker failed) and the result, which is None if no worker concluded the study. Raises
    ConfigError if the cluster rejects the workers, and ConfigError or StudyError if the database cannot be used.
    """
    storage = config.sweep.storage
    if storage is None or (storage.startswith("sqlite") and options.on != "local"):
        why = "all workers must reach the study" if storage is None else "an SQLite file serves one machine only"
        needs = f"--on {options.on} needs a database, because {why}: --storage postgresql://user@host/name"
        raise ConfigError(f"{COMMAND_LINE}: {needs}")
    password = make_url(storage).password
    if password is not None:
        # Pass it in libpq's environment variable, so that no command line or job file contains it.
        os.environ["PGPASSWORD"] = str(password)
        bare = make_url(storage)._replace(password=None).render_as_string()
        typed = [one.replace(storage, bare) for one in typed]
    command = (sys.executable, "-m", "specexp.sweep", *typed)
    folder = config.folder / "workers"
    status = run_workers(
        options,
        {f"{config.name} {number}": command for number in range(options.workers)},
        folder,
        gpus=options.gpus_on(config.pair.device),
        threads=config.generation.threads or 1,
    )
    study = f"{config.name}{CONFIRMATIONS}"
    try:
        kept = last_result(optuna.load_study(study_name=study, storage=open_storage(storage, folder)))
    except KeyError:
        kept = None
    text = f"No worker has concluded the study; see the workers' logs in {folder}\n" if kept is None else kept.text
    console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    return status, kept
