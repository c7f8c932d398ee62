"""The study: opened or resumed, filled with known configurations, run to its number of distinct finished
trials.
"""

from __future__ import annotations

import errno
import hashlib
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import optuna
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial

from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.core.secrets import masked
from specexp.sweep.candidates import Bench, CandidatePool, Watcher
from specexp.sweep.distinct import ENUMERATING, DistinctSampler
from specexp.sweep.drawing import build_pruner, build_sampler, sampler_of
from specexp.sweep.error import StudyError
from specexp.sweep.goals import directions_of
from specexp.sweep.objective import Objective
from specexp.sweep.seen import SeenStudy
from specexp.sweep.space import Space
from specexp.sweep.storage import open_storage, together
from specexp.sweep.trials import FINISHED, distinct_finished, reason_of
from specexp.sweep.worker import known_waiting, place_among_workers, requeue, worker

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
        study = together(
            lambda: optuna.create_study(
                storage=storage,
                study_name=name,
                directions=directions,
                sampler=sampler,
                pruner=pruner,
                load_if_exists=True,
            )
        )
    except optuna.exceptions.StorageInternalError as error:  # of a database with tables of another make
        why = masked(first_line(error.__cause__ or error))
        raise StudyError(
            f"storage {masked(str(settings.storage))!r} takes no study: {why}; name another database, or a new one"
        ) from error
    _check_same(study, settings, workload, device)
    return study


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
        bench: What measures.
        after_trial: Called after every trial with the study as it is then.
        watcher: Told of every trial as it goes.
        impossible: Choices by key that cannot be built together, which are not drawn.

    Returns:
        A sentence about a space that holds fewer; empty where all that were asked for are finished.

    Raises:
        StudyError: Nearly every trial fails.
        OSError: The storage, or what a trial leaves, cannot be written; the trial is asked for again.
    """
    target = settings.n_trials
    candidates = CandidatePool(study, bench)
    objective = Objective(settings, bench, candidates, watcher)
    patience = max(20, 2 * target)
    barren = 0
    unwritten: list[OSError] = []
    last: FrozenTrial | None = None  # of this worker: others may still be at theirs
    sampler = study.sampler
    if not isinstance(sampler, ENUMERATING):
        seed = sampler_of(settings)["init_args"].get("seed")
        offset = len(study.get_trials(deepcopy=False)) + place_among_workers(study)
        study.sampler = sampler = DistinctSampler(
            sampler,
            objective.space,
            bench.applies,
            candidates,
            seed + offset if isinstance(seed, int) else None,
            impossible,
        )

    def note(study: Study, trial: FrozenTrial) -> None:
        nonlocal barren, last
        last = trial
        fresh = trial.state in FINISHED and "duplicate_of" not in trial.user_attrs
        barren = 0 if fresh else barren + 1
        seen = SeenStudy(study, study.get_trials(deepcopy=False))
        if after_trial is not None:
            after_trial(seen, trial)
        exhausted = isinstance(sampler, DistinctSampler) and sampler.exhausted
        ended = exhausted or len(distinct_finished(seen)) >= target
        if (ended and not known_waiting(seen)) or barren >= patience:
            study.stop()

    def owned(trial: optuna.Trial) -> float | tuple[float, ...]:
        trial.set_user_attr("worker", worker())
        try:
            _ = trial.relative_params  # drawn also where no parameter has a second value: it may repeat
            return objective(trial)
        except KeyboardInterrupt:
            trial.set_user_attr("reason", "interrupted")
            requeue(study, study.get_trials(deepcopy=False)[trial.number])
            raise
        except OSError as error:
            if error.errno in _FULL:  # the next one could not be written either
                requeue(study, study.get_trials(deepcopy=False)[trial.number])
                unwritten.append(error)
                study.stop()
            raise

    if len(distinct_finished(study)) < target or known_waiting(study):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            while _was_taken(lambda: study.optimize(owned, catch=(Exception,), callbacks=[note])):
                pass
        for error in unwritten:
            raise error
    done = len(distinct_finished(study))
    if done >= target:
        return ""
    if done == 0 or (last is not None and last.state not in FINISHED):
        raise StudyError(
            f"the last {barren} trials failed, the last one because of "
            f"{(last and reason_of(last)) or 'an unknown error'} ({done} of {target} are finished)"
        )
    return (
        f"The space is exhausted: {done} distinct configurations were measured, {target} were asked for, and what else "
        "is suggested repeats them."
    )


def _was_taken(search: Callable[[], None]) -> bool:
    """Search; whether that ended because this worker was out of reach for so long that its trial was given to another.

    Raises:
        Exception: Whatever else ends it.
    """
    try:
        search()
    except (AssertionError, ValueError) as error:
        # Optuna asserts that a trial it cannot store was stored; what went wrong stands before. Where the objective
        # raised too, it asserts nothing, and lets what went wrong through.
        cause = error.__context__ if isinstance(error, AssertionError) else error
        if not str(cause).startswith("Cannot tell a "):
            raise cause or error from None
        return True
    return False


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
