"""A process that has a study to itself: it locks the study's folder, and keeps the trials in a journal file there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Any

import optuna
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage, JournalStorage
from optuna.trial import FrozenTrial
from sqlalchemy.exc import SQLAlchemyError

from specexp.config.sweep import Sweep
from specexp.report.publish import changed_key, sole_writer
from specexp.sweep.conclusion import CONCLUDED, StudyResult, conclude
from specexp.sweep.prepared import PreparedStudy, result_digest
from specexp.sweep.sampler import build_sampler
from specexp.sweep.search import StudySearch, open_study
from specexp.sweep.space import directions_of
from specexp.sweep.storage import JournalFile, check_journal, open_storage, retry_lost
from specexp.sweep.study_config import StudyConfig, digest_of
from specexp.sweep.trial_queue import known_waiting, put_back, queue_known
from specexp.sweep.trials import distinct_finished


class OneProcess:
    """The only process of a study. :class:`~specexp.sweep.workers.Workers` is one of several."""

    def __init__(self, config: StudyConfig, settings: Sweep) -> None:
        self.config = config
        self.settings = settings

    @contextmanager
    def opened(self) -> Iterator[str]:
        """Lock the study's folder; raises FolderBusyError if another process holds it.

        Yields a warning about damage from which the study can recover, or an empty string.
        """
        shares = "wait for it, or give --storage the URL of a database, which several workers can share"
        with sole_writer(self.config.folder, shares):
            yield check_journal(self.config.folder / "journal.log")

    @cached_property
    def storage(self) -> BaseStorage:
        """The storage of the trials."""
        return open_storage(self.settings.storage, self.config.folder)

    def find(self) -> optuna.Study | None:
        """Return the study if an earlier process made it; raises StudyError if it cannot be continued."""
        if self.settings.storage is None and not (self.config.folder / "journal.log").exists():
            return None
        try:
            names = retry_lost(lambda: optuna.get_all_study_names(self.storage))
        except (StorageInternalError, SQLAlchemyError):
            return None  # the tables of another program, which ``open`` reports
        return self.open() if self.config.name in names else None

    def open(self) -> optuna.Study:
        """Create the study, or load it to continue it; raises StudyError if it was made with other settings."""
        return self._open(self.storage)

    def rehearse(self) -> str:
        """Check the study that an earlier process made, and write nothing; raises StudyError if it cannot be continued.

        Returns a warning about damage from which the study can recover, or an empty string.
        """
        journal = self.config.folder / "journal.log"
        damage = check_journal(journal)
        if journal.exists():
            with TemporaryDirectory() as folder:
                copy = Path(copyfile(journal, Path(folder, journal.name)))  # opening a study writes into its journal
                storage = JournalStorage(JournalFile(copy))
                if self.config.name in optuna.get_all_study_names(storage):
                    self._open(storage)
        return damage

    def _open(self, storage: BaseStorage) -> optuna.Study:
        learned = [] if self.settings.learn is None else [self.settings.learn.model_dump()]
        workload = digest_of([self.config.workload(), directions_of(self.settings), *learned])
        return open_study(self.config.name, self.settings, storage, workload, self.config.clock, self._changed)

    def _changed(self) -> str:
        """Return, in brackets, the first setting that differs from those of the study's last start, if it is known."""
        if not (self.config.folder / "config.yaml").is_file():
            return ""
        key = changed_key(self.config.values, self.config.folder, ("name", "output", "tracking", "trainer"))
        return key and f" ({key}, {self.config.checker.source_of(tuple(key.split('.')))})"

    def result(self, trials: optuna.Study) -> StudyResult | None:
        """Return the result of a study that has ended, or None if something is left to measure."""
        done = trials.user_attrs.get("exhausted") or (
            len(distinct_finished(trials)) >= self.settings.n_trials
            or trials.user_attrs.get("timed_out", 0) == self.settings.minutes
        )
        if self.settings.confirm is None or not done or self.others_running(trials) or known_waiting(trials):
            return None
        return self.unchanged(trials)

    def others_running(self, trials: optuna.Study) -> bool:
        """Return whether another process is measuring a trial; requeue those of dead processes."""
        return False

    def unchanged(self, trials: optuna.Study) -> StudyResult | None:
        """Return the stored result if nothing that it depends on has changed since."""
        kept = self.last_result(trials)
        fresh = kept is not None and kept.of == result_digest(self.config.workload(), self.settings, trials)
        return kept if fresh else None

    def last_result(self, trials: optuna.Study) -> StudyResult | None:
        """Return the stored result; None if the study has not ended."""
        return StudyResult.read(trials.user_attrs.get(CONCLUDED))

    def join(self, trials: optuna.Study, settings: Sweep) -> int:
        """Queue the known configurations and the trials that an earlier process left running.

        Args:
            settings: Without choices and known configurations that cannot be built.

        Returns the number of trials that were left running.
        """
        # The same seed would draw the same configurations again in a resumed study.
        trials.sampler = build_sampler(settings, len(trials.get_trials(deepcopy=False)))
        dead = put_back(trials)
        queue_known(trials, settings)
        return dead

    def deadline(self, kept: Mapping[str, Any], minutes: float, own: float) -> float:
        """Return the end of the search; ``own`` is the end for this process, and ``kept`` the stored plan."""
        return own

    def search(self, study: PreparedStudy, after: Callable[[FrozenTrial], None]) -> str:
        """Run the trials that are left; see :meth:`~specexp.sweep.search.StudySearch.run`."""
        return StudySearch(study.trials, study.settings, study.bench, after, study.ends).run()

    def conclude(self, study: PreparedStudy, search: Callable[[], None]) -> StudyResult | None:
        """Confirm a searched study; ``search`` measures what other processes have left."""
        return conclude(study, lambda: None, lambda result: study.trials.set_user_attr(CONCLUDED, asdict(result)))
