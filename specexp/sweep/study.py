"""The study: opened or resumed, filled with known configurations, run to its number of distinct finished
trials.
"""

from __future__ import annotations

import errno
import hashlib
import json
import warnings
from collections.abc import Callable, Container, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from typing_extensions import override

from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.core.start import masked
from specexp.sweep.candidates import Bench, CandidatePool, Watcher
from specexp.sweep.database import is_lost, outlasting
from specexp.sweep.distinct import ENUMERATING, DistinctSampler
from specexp.sweep.drawing import build_pruner, build_sampler, seed_of
from specexp.sweep.error import StudyError
from specexp.sweep.goals import directions_of
from specexp.sweep.objective import Objective
from specexp.sweep.space import Space
from specexp.sweep.storage import open_storage, together
from specexp.sweep.trials import FINISHED, distinct_finished, reason_of
from specexp.sweep.worker import known_waiting, place_among_workers, put_back, requeue, worker

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EROFS)

AfterTrial = Callable[[Study, FrozenTrial], None]


def open_study(name: str, settings: Sweep, folder: Path, workload: str, device: str = "") -> Study:
    """Create a study, or load the one of this name to go on with it.

    Args:
        name: The study's name in its storage.
        settings: The sweep section.
        folder: Where the journal lies when ``settings.storage`` is None.
        workload: Digest of what all trials have in common (models, prompts, sampling, objectives).
        device: Name of the device: seconds of two kinds of device cannot be compared.

    Raises:
        StudyError: The storage cannot be reached, or holds a study of this name with another workload, space
            or device.
        OSError: The journal cannot be written.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = open_storage(settings.storage, folder, requeue)
    sampler, pruner = build_sampler(settings), build_pruner(settings)
    directions = [StudyDirection[way.upper()] for way in directions_of(settings).values()]
    try:
        together(
            lambda: optuna.create_study(
                storage=storage, study_name=name, directions=directions, load_if_exists=True
            )
        )
    except optuna.exceptions.StorageInternalError as error:  # of a database with tables of another make
        why = masked(first_line(error.__cause__ or error))
        raise StudyError(
            f"storage {masked(str(settings.storage))!r} takes no study: {why}; name another database, or a new one"
        ) from error
    study = _Study(name, storage, sampler, pruner)
    _check_same(study, settings, workload, device)
    return study


class _Study(Study):
    """Optuna's study, whose trials are read again when the database was lost meanwhile."""

    @override
    def get_trials(
        self, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        return outlasting(lambda: super(_Study, self).get_trials(deepcopy, states))


def run_study(
    study: Study,
    settings: Sweep,
    bench: Bench,
    after_trial: AfterTrial | None = None,
    watcher: Watcher | None = None,
    impossible: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Run trials until ``settings.n_trials`` distinct ones are finished, or the space is exhausted.

    Known configurations of workers that died are measured even then.

    Args:
        study: The study.
        settings: Its sweep section.
        bench: Measures the candidates.
        after_trial: Called after every trial.
        watcher: Called as each trial goes.
        impossible: Choices by key that cannot be built together, which are not drawn.

    Returns:
        A sentence about a space that holds fewer. Empty if all that were asked for are finished.

    Raises:
        StudyError: Nearly every trial fails.
        OSError: The storage, or a file of a trial, cannot be written. The trial is queued again.
    """
    search = _Search(study, settings, bench, after_trial, watcher, impossible)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        search.run()
    done, target, last = len(distinct_finished(study)), settings.n_trials, search.last
    if done >= target:
        return ""
    if done == 0 or (last is not None and last.state not in FINISHED):
        raise StudyError(
            f"the last {search.barren} trials failed, the last one because of "
            f"{(last and reason_of(last)) or 'an unknown error'} ({done} of {target} are finished)"
        )
    return (
        f"The space is exhausted: {done} distinct configurations were measured, {target} were asked for, and what else "
        "is suggested repeats them."
    )


class _Search:
    """The trials of one worker.

    Attributes:
        last: Its last trial.
        barren: Its trials since the last that measured a new configuration.
    """

    def __init__(
        self,
        study: Study,
        settings: Sweep,
        bench: Bench,
        after_trial: AfterTrial | None,
        watcher: Watcher | None,
        impossible: Sequence[Mapping[str, Any]],
    ) -> None:
        self.last: FrozenTrial | None = None
        self.barren = 0
        self._study, self._after_trial, self._target = study, after_trial, settings.n_trials
        self._patience = max(20, 2 * settings.n_trials)
        self._current: int | None = None  # number of the trial that is running
        self._unwritten: OSError | None = None
        candidates = CandidatePool(bench)
        self._objective = Objective(settings, bench, candidates, watcher)
        if not isinstance(study.sampler, (DistinctSampler, *ENUMERATING)):
            seed = seed_of(settings)
            if seed is not None:
                seed += len(study.get_trials(deepcopy=False)) + place_among_workers(study)
            study.sampler = DistinctSampler(
                study.sampler, self._objective.space, bench.applies, candidates, seed, impossible
            )

    def ended(self) -> bool:
        """Whether enough trials are finished, or nothing new can be drawn, and no known configuration waits."""
        exhausted = isinstance(self._study.sampler, DistinctSampler) and self._study.sampler.exhausted
        enough = exhausted or len(distinct_finished(self._study)) >= self._target
        return enough and not known_waiting(self._study)

    def run(self) -> None:
        """Run trials until the search has ended.

        Raises:
            Exception: The storage's error, where a trial can neither be measured nor ended.
        """
        while True:
            try:
                if not self.ended():
                    self._study.optimize(self._measure, catch=(Exception,), callbacks=[self._note])
                break
            except Exception as error:
                if self._was_cut_off(error):
                    continue
                # Optuna asserts that a trial was ended even if the storage has just raised.
                cause = error.__context__ if isinstance(error, AssertionError) else None
                raise cause or error from None
        if self._unwritten is not None:
            raise self._unwritten

    def _measure(self, trial: optuna.Trial) -> float | tuple[float, ...]:
        self._current = trial.number
        trial.set_user_attr("worker", worker())
        try:
            _ = trial.relative_params  # drawn even if no parameter has a second value: it may repeat
            return self._objective(trial)
        except KeyboardInterrupt:
            trial.set_user_attr("reason", "interrupted")
            self._requeue(trial)
            raise
        except OSError as error:
            if error.errno in _FULL:  # the next one could not be written either
                self._requeue(trial)
                self._unwritten = error
                self._study.stop()
            raise

    def _note(self, study: Study, trial: FrozenTrial) -> None:
        self._current, self.last = None, trial
        fresh = trial.state in FINISHED and "duplicate_of" not in trial.user_attrs
        self.barren = 0 if fresh else self.barren + 1
        if self._after_trial is not None:
            self._after_trial(study, trial)
        if self.ended() or self.barren >= self._patience:
            study.stop()

    def _requeue(self, trial: optuna.Trial) -> None:
        requeue(self._study, self._study.get_trials(deepcopy=False)[trial.number])

    def _was_cut_off(self, error: Exception) -> bool:
        """Whether the search can go on after an error of Optuna's loop.

        It can if the database was away for a while, and if another worker has failed the running trial because this one
        was stopped for too long.
        """
        number, self._current = self._current, None
        self.barren += 1
        if is_lost(error):
            outlasting(lambda: put_back(self._study, lambda trial: trial.number == number))
            return self.barren < self._patience
        trials = self._study.get_trials(deepcopy=False)
        taken = number is not None and trials[number].state.is_finished()
        return taken and self.barren < self._patience


def _check_same(study: Study, settings: Sweep, workload: str, device: str) -> None:
    digest = hashlib.sha256(str(Space(settings)).encode()).hexdigest()[:16]
    wanted = {"workload": workload, "space": digest, "device": device}
    kept = study.user_attrs.get("made_of")
    if kept is None:
        study.set_user_attr("made_of", wanted)
        return
    if kept["device"] != device:
        raise StudyError(
            f"the study {study.study_name!r} measures on {kept['device'] or 'an unnamed device'}, and this worker has "
            f"{device or 'an unnamed one'}: seconds of two kinds of device cannot be compared; start it on the study's "
            "kind, or give this one another name (--name NEW)"
        )
    if kept != wanted:
        changed = " and ".join(key for key in wanted if kept.get(key) != wanted[key])
        raise StudyError(
            f"the study {study.study_name!r} exists already with another {changed}: its trials cannot be "
            "compared with "
            "these; give this one another name (--name NEW) or remove the old one"
        )


def digest_of(value: Any) -> str:
    """A short digest of a JSON value, whatever the order of its keys."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()[:16]
