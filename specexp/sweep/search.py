"""The search: opens or resumes a study, and runs trials until enough distinct ones are finished."""

from __future__ import annotations

import errno
import hashlib
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from statistics import fmean
from time import time
from typing import Any

import optuna
from optuna import Trial
from optuna.exceptions import StorageInternalError, TrialPruned
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState

from specexp.base.messages import first_line
from specexp.base.start import masked
from specexp.bench.metrics import figure_of, violation
from specexp.config.sweep import Sweep
from specexp.sweep.bench import Bench
from specexp.sweep.sampler import ExploringSampler, build_pruner, build_sampler
from specexp.sweep.space import MAX_DRAFT_NODES, Space, directions_of
from specexp.sweep.storage import MADE_OF, own_study, retry_lost, storage_error
from specexp.sweep.study_config import StudyError
from specexp.sweep.trial_queue import known_waiting, requeue
from specexp.sweep.trials import FINISHED, Candidate, Measurement, ShouldStop, confirmable, distinct_finished, reason_of
from specexp.tracking.names import SPEEDUP

PATIENCE = 50
"""A search ends after this many trials in a row without a new configuration, or after 2 * n_trials if that is more."""
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)


def open_study(
    name: str,
    settings: Sweep,
    storage: BaseStorage,
    workload: str,
    device: str,
    changed: Callable[[], str] = lambda: "",
) -> optuna.Study:
    """Create a study, or load the one with this name to continue it.

    ``workload`` is the digest of the settings that all trials share, and ``changed`` names a changed one.

    Raises StudyError if the storage cannot hold a study, or already has one with this name that specexp did not make,
    or with another workload, space or device.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    space = hashlib.sha256(str(Space(settings)).encode()).hexdigest()[:16]
    wanted = {"workload": workload, "space": space, "device": device}
    ways = list(directions_of(settings).values())
    how: dict[str, Any] = {"sampler": build_sampler(settings), "pruner": build_pruner(settings), "directions": ways}
    try:
        study = own_study(storage, name, wanted, **how)
    except StorageInternalError as error:  # e.g. the database has another program's tables
        why = masked(first_line(error.__cause__ or error))
        raise StudyError(
            f"storage {masked(str(settings.storage))!r} cannot hold a study: {why}; name another database, or a new one"
        ) from error
    kept = study.user_attrs[MADE_OF]
    if kept.get("device", device) != device:
        raise StudyError(
            f"the study {name!r} measures on {kept['device']}, and this worker has {device}: seconds of different "
            "devices cannot be compared; use the study's device, or give this study another name (--name NEW)"
        )
    if kept != wanted:
        named = {"workload": "workload (models, prompts or shared settings)"}
        others = " and ".join(named.get(key, key) for key in wanted if kept.get(key) != wanted[key])
        raise StudyError(
            f"the study {name!r} exists already with another {others}{changed()}: its trials cannot be compared with "
            "these; give this study another name (--name NEW) or remove the old one"
        )
    return study


@dataclass(frozen=True)
class Deadlines:
    """The ends of a study's stages, in seconds since the epoch; None for no limit."""

    search: float | None = None
    reserved: float = 0.0  # seconds from the search's end to the study's, at the speed of plain decoding's first run
    confirmation: float | None = None  # after which no more prompts are confirmed than planned


class StudySearch:
    """The search of one process. It serves as Optuna's objective: each call measures one trial.

    The user attribute ``reason`` states why a trial failed. A trial that repeats a finished configuration is not
    measured: it copies all values of the original, and ``duplicate_of`` is the original's number. A pruned trial
    returns the mean so far, which helps the sampler, and has the attribute ``pruned_at``. Pruned trials are never
    confirmed. Known configurations are not pruned.

    Args:
        after_trial: Called with every trial that has ended.
        ends: The deadlines. At that of the search, the running trial is pruned, once any trial can be confirmed. It is
            later if the machine becomes faster.
    """

    def __init__(
        self,
        trials: optuna.Study,
        settings: Sweep,
        bench: Bench,
        after_trial: Callable[[FrozenTrial], None] = lambda trial: None,
        ends: Deadlines | None = None,
    ) -> None:
        self._trials = trials
        self._settings = settings
        self._bench = bench
        self._after_trial = after_trial
        self._ends = ends or Deadlines()
        self._space = Space(settings)
        self._patience = max(PATIENCE, 2 * settings.n_trials)
        self._last: FrozenTrial | None = None
        self._barren = self._failed = 0  # trials since the last new configuration, and how many of them failed
        self._full: OSError | None = None  # the error raised by a full disk
        self._failures: dict[str, str] = {}  # why a configuration failed in this process, by digest

    def run(self) -> str:
        """Run trials until ``n_trials`` distinct ones are finished, time is up or the space is exhausted.

        Known configurations left by a dead process are always measured. Returns a sentence if the space has fewer
        configurations than requested, otherwise an empty string.

        Raises:
            StudyError: No trial has finished, or all trials since the last new configuration have failed.
            OSError: The storage or a trial's file cannot be written. The trial is queued again.
        """
        with warnings.catch_warnings(action="ignore", category=optuna.exceptions.ExperimentalWarning):
            self._optimize()
        if self._full is not None:
            raise self._full
        done = self._done()
        target = self._settings.n_trials
        if done >= target or self._is_late():
            return ""
        if done == 0 or 0 < self._barren == self._failed:
            reason = None if self._last is None else reason_of(self._last)
            raise StudyError(
                f"the last {self._barren} trials failed, and {done} of {target} are finished. The most recent error is "
                f"{reason or 'unknown'}"
            )
        return (
            f"The space is exhausted: {done} distinct configurations were measured, {target} were requested, and "
            "further suggestions repeat them."
        )

    def _optimize(self) -> None:
        while not retry_lost(self._ended) and self._full is None:
            try:
                self._trials.optimize(self, catch=(Exception,), callbacks=[self._note])
                break
            except Exception as error:
                self._recover(error)

    def _recover(self, error: Exception) -> None:
        """Raise the storage's error, after an error in Optuna's loop."""
        raise storage_error(error)

    def _done(self) -> int:
        return len(retry_lost(lambda: distinct_finished(self._trials)))

    def _ended(self) -> bool:
        enough = self._barren >= self._patience or self._done() >= self._settings.n_trials
        return (enough or self._is_late()) and not known_waiting(self._trials)

    def _is_late(self) -> bool:
        if self._ends.search is None:
            return False
        # on a slower machine, the confirmation gets fewer prompts instead
        saved = self._ends.reserved * max(1 - self._bench.reference.drift, 0.0) if self._ends.reserved else 0.0
        return time() >= self._ends.search + saved and bool(confirmable(self._trials))

    def __call__(self, trial: Trial) -> list[float]:
        """Measure a trial, and return its values."""
        measured = None
        try:
            overrides = trial.user_attrs.get("overrides")
            if overrides is None:
                overrides = self._space.suggest(trial, self._bench.applies)
            candidate = self._bench.prepare(overrides)
            original = self._sign(trial, candidate)
            if original is not None:
                return _copy(trial, original)
            self._refuse_too_large(trial, candidate)
            measured = candidate.digest
            measurement = self._bench.measure(candidate, self._should_stop_of(trial), trial.number)
            return self._values(trial, measurement)
        except TrialPruned:
            raise
        except KeyboardInterrupt:
            trial.set_user_attr("reason", "interrupted")
            self._requeue(trial)
            raise
        except Exception as error:
            self._fail(trial, error, measured)
            raise

    def _fail(self, trial: Trial, error: Exception, measured: str | None) -> None:
        """Store why a trial failed. Its configuration (the digest ``measured``) is not measured again."""
        text = " ".join(str(error).split())[:500]
        kind = "" if text and isinstance(error, ValueError) else f"{type(error).__name__}: "  # ours are sentences
        reason = f"{kind}{text}"
        trial.set_user_attr("reason", reason)
        if isinstance(error, OSError) and error.errno in _FULL:
            self._full = error  # the next trial could not be written either
            self._trials.stop()
            self._requeue(trial)
        elif measured is not None:
            again = f"trial {trial.number} failed with the same configuration: {reason}"
            self._failures[measured] = again

    def _note(self, trials: optuna.Study, trial: FrozenTrial) -> None:
        self._last = trial
        if "duplicate_of" not in trial.user_attrs and trial.state in FINISHED:
            self._barren = self._failed = 0
        else:
            self._barren += 1
            self._failed += "duplicate_of" not in trial.user_attrs
        if isinstance(trials.sampler, ExploringSampler):
            trials.sampler.repeats = self._barren
        self._after_trial(trial)
        if self._ended():
            trials.stop()

    def _requeue(self, trial: Trial) -> None:
        requeue(self._trials, self._trials.get_trials(deepcopy=False)[trial.number])

    def _sign(self, trial: Trial, candidate: Candidate) -> FrozenTrial | None:
        """Sign the trial with the candidate's digest; return a trial that already measured this candidate, or None."""
        trial.set_user_attr("digest", candidate.digest)
        trial.set_user_attr("attributes", dict(candidate.attributes))
        return self._measured_before(trial, candidate)

    def _measured_before(self, trial: Trial, candidate: Candidate) -> FrozenTrial | None:
        if candidate.digest in self._failures and "queued" not in trial.user_attrs:
            raise ValueError(self._failures[candidate.digest])
        # A known configuration is measured on every prompt, even if it was pruned before.
        left_out = {"duplicate_of", *(["pruned_at"] if "known" in trial.user_attrs else [])}
        same = self._same(trial, candidate)
        whole = (one for one in same if one.state in FINISHED and not left_out & one.user_attrs.keys())
        return next(whole, None)

    def _same(self, trial: Trial, candidate: Candidate) -> list[FrozenTrial]:
        """Return the other trials that a candidate's digest signs."""
        return [
            one
            for one in self._trials.get_trials(deepcopy=False)
            if one.user_attrs.get("digest") == candidate.digest and one.number != trial.number
        ]

    def _should_stop_of(self, trial: Trial) -> ShouldStop:
        # The pruner compares speedups, so a study with any other objective reports none and is not pruned.
        reports = set(self._settings.objectives) == {SPEEDUP}

        def should_stop(prompt: int, log_speedup: float) -> bool:
            if not reports:
                return False
            if not math.isfinite(log_speedup):
                raise ValueError(
                    f"prompt {prompt}: the log speedup must be finite, got {log_speedup} (no time or no token)"
                )
            trial.report(log_speedup, prompt)
            # Other trials are compared with known ones, which are measured on every prompt while there is time.
            if not self._is_late() and ("known" in trial.user_attrs or not trial.should_prune()):
                return False
            trial.set_user_attr("pruned_at", prompt + 1)
            return True

        return should_stop

    def _values(self, trial: Trial, measurement: Measurement) -> list[float]:
        trial.set_user_attr("prompts", len(measurement.log_speedups))
        trial.set_user_attr("metrics", dict(measurement.metrics))
        for name, limit in self._settings.constraints.items():
            missed = None if name == MAX_DRAFT_NODES else violation(name, limit, measurement.metrics)
            if missed is not None:
                trial.set_constraint(name, missed)
            if missed is not None and missed > 0:
                trial.set_user_attr("infeasible", f"{name} = {limit:g} is missed by {missed:g}")
        figures = {**measurement.metrics, SPEEDUP: fmean(measurement.log_speedups.values())}
        values = {name: figure_of(name, figures) for name in self._settings.objectives}
        if missing := [name for name, value in values.items() if value is None]:
            raise ValueError(f"objective {missing[0]} has no value in this trial")
        return [value for value in values.values() if value is not None]

    def _refuse_too_large(self, trial: Trial, candidate: Candidate) -> None:
        """Set the trial's constraint on the number of nodes, and prune the trial if its tree has too many."""
        limit = self._settings.constraints.get(MAX_DRAFT_NODES)
        nodes = candidate.attributes.get("nodes")
        if limit is None or nodes is None:
            return
        trial.set_constraint(MAX_DRAFT_NODES, nodes - limit)
        if nodes > limit:
            trial.set_user_attr("infeasible", f"{nodes} nodes, but {MAX_DRAFT_NODES} is {limit:g}")
            raise TrialPruned


def _copy(trial: Trial, original: FrozenTrial) -> list[float]:
    trial.set_user_attr("duplicate_of", original.number)
    for name in ("prompts", "pruned_at", "metrics", "infeasible"):
        if name in original.user_attrs:
            trial.set_user_attr(name, original.user_attrs[name])
    for name, excess in original.constraints.items():
        trial.set_constraint(name, excess)
    for prompt, log_speedup in original.intermediate_values.items():
        trial.report(log_speedup, prompt)
    if original.state is TrialState.PRUNED:
        raise TrialPruned
    return list(original.values)
