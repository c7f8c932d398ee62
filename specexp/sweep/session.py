"""One sweep in one process: acceptance counts, reference, search, confirmation, export."""

from __future__ import annotations

import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import cached_property
from typing import TYPE_CHECKING

import optuna
from optuna import get_all_study_names
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from rich.console import Console
from sqlalchemy.exc import SQLAlchemyError

from specexp.artifacts.atomic_write import held
from specexp.bench.experiment import use_threads
from specexp.bench.progress import StageBar
from specexp.bench.publish import PAGE, FolderBusyError, sole_writer, tracker_of
from specexp.bench.report import busy_machine
from specexp.bench.trainer import quiet_libraries
from specexp.config import ConfigError, save_resolved
from specexp.config.command import current_result, fail
from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.core.start import masked
from specexp.sweep.dry_run import check_prompts, open_models, without_impossible
from specexp.sweep.output import StudyOutput, next_steps, setting_of, track_trial
from specexp.sweep.sampler import check_sampler
from specexp.sweep.search import StudySearch, open_study
from specexp.sweep.space import directions_of
from specexp.sweep.storage import check_journal, open_storage, retry_lost
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import ProgressTable, distinct_finished, trial_line, write_trials
from specexp.sweep.workers import (
    CONFIRMATIONS,
    known_waiting,
    open_confirmations,
    others_running,
    requeue,
    sign_in,
)

if TYPE_CHECKING:
    from specexp.sweep.conclusion import Concluded, Conclusion

WIDTH = 120
"""Width of tables in a redirected output, because 80 columns would break them up."""
POLL_SECONDS = 0.2
"""Pause between two checks whether another worker still prepares in the same folder."""


def run_session(config: StudyConfig, settings: Sweep, command: str) -> tuple[int, Concluded | None]:
    """Run or resume a study, or print the result of one that has ended; return the exit code and the conclusion."""
    quiet_libraries()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    console = Console(highlight=False, force_jupyter=False)
    if not console.is_terminal:
        console.width = WIDTH
    try:
        check_sampler(settings, config.config.checker)
        tracker = tracker_of(config.config, config.name, config.folder)
        output = StudyOutput(config.folder, console, tracker, command)
        session = Session(config, settings, output)
        shares = "wait for it, or give --storage an RDB URL to let several workers share a study"
        with sole_writer(config.folder, shares) if session.alone else nullcontext():
            return 0, session.run()
    except (ConfigError, OSError):
        raise
    except (StudyError, FolderBusyError) as error:
        return fail(error, 1), None
    except (StorageInternalError, SQLAlchemyError) as error:
        why = first_line(error.__cause__ or error)
        return fail(f"storage {masked(str(settings.storage))!r} failed: {why}", 1), None
    except ValueError as error:
        return fail(error), None


class Session:
    """A sweep over one experiment; it is ``alone`` without a database."""

    def __init__(self, config: StudyConfig, settings: Sweep, output: StudyOutput) -> None:
        self.config, self.settings, self.output = config, settings, output
        self.alone = settings.storage is None

    def run(self) -> Concluded | None:
        """Do what is missing; None if another worker concludes the study, or nothing is confirmed."""
        ended = self._ended()
        if ended is not None:
            self.output.console.print(ended.said, end="", markup=False, highlight=False, soft_wrap=True)
            self.output.say(
                f"Study {self.config.name} has ended, so nothing was measured; --confirm-again confirms its best "
                "once more, and pools both."
            )
        else:
            self._prepare()
            self._search()
            if self.settings.confirm is not None:
                ended = self._conclusion().in_turn(self.study, self._search)
            if hint := self.output.tracker.sync_hint():
                self.output.say(f"W&B: {hint}")
        self._report(ended)
        return ended

    def _ended(self) -> Concluded | None:
        """Return the conclusion of a study that has ended; None if there is something to do. No model is loaded."""
        journal = self.output.folder / "journal.log"
        if self.alone and (damage := check_journal(journal)):
            self.output.say(damage)
        if self.settings.confirm is None or (self.alone and not journal.exists()):
            return None
        try:
            names = retry_lost(lambda: get_all_study_names(self._storage))
        except (StorageInternalError, SQLAlchemyError):
            return None  # tables of another make, about which ``open_study`` has a sentence
        if f"{self.config.name}{CONFIRMATIONS}" not in names:
            return None
        self._open()
        done = self.trials.user_attrs.get("exhausted") or (
            len(distinct_finished(self.trials)) >= self.settings.n_trials
        )
        if not done or others_running(self.trials) or known_waiting(self.trials):
            return None
        return self._conclusion().unchanged()

    @cached_property
    def _storage(self) -> BaseStorage:
        return open_storage(self.settings.storage, self.output.folder, requeue)

    def _open(self) -> None:
        learned = [] if self.settings.learn is None else [self.settings.learn.model_dump()]
        workload = digest_of([self.config.workload(), directions_of(self.settings), *learned])
        name = self.config.name
        self.trials = open_study(name, self.settings, self._storage, workload, self.config.clock)
        self.confirmations = open_confirmations(name, self._storage)

    def _prepare(self) -> None:
        """Load the models or the recording, open the study, and measure plain decoding."""
        use_threads(self.config.config)
        self.study = study = open_models(self.config, self.settings)
        check_prompts(study)
        possible, left_out = without_impossible(self.config, self.settings, study.try_to_compose)
        # Up to here nothing was written: a mistake in models, prompts or parts leaves nothing behind.
        if not hasattr(self, "trials"):
            self._open()
        self.settings = possible  # after the study was identified by its whole space
        save_resolved(self.config.config, self.output.folder, shlex.split(self.output.command))
        with StageBar(self.output.console) as bar, self._only_worker_here():
            study.tick = bar.prompt
            self._count_acceptances(bar)
            for what, why in left_out.items():
                self.output.say(f"Cannot be built, so it is not measured: {what}: {why}.")
            stated = {"device": self.config.clock, "placement": study.device}
            again = sign_in(self.trials, self.settings, alone=self.alone, stated=stated)
            done = len(distinct_finished(self.trials))
            if done or again:
                cut = f", {again} had been cut off and {'is' if again == 1 else 'are'} repeated"
                of = f"{done} of {self.settings.n_trials} trials are finished"
                self.output.say(f"Going on with study {self.config.name}: {of}{cut if again else ''}.")
            if not study.load_reference():
                bar.stage("AR on every prompt", len(study.data().prompts))
                study.measure_reference()
            busy = busy_machine(study.reference.seconds_per_token.values())
            if busy and study.latency is None:
                self.output.say(busy)

    @contextmanager
    def _only_worker_here(self) -> Iterator[None]:
        """Wait until no other worker prepares in the same folder."""
        while True:
            with nullcontext(True) if self.alone else held(self.output.folder / ".preparation") as is_mine:
                if is_mine:
                    yield
                    return
            time.sleep(POLL_SECONDS)

    def _count_acceptances(self, bar: StageBar) -> None:
        stage, path = self.settings.count_acceptances, self.config.acceptance_counts
        if stage is None or path is None:
            return
        resolved = self.config.resolved(self.config.config)
        made_of = digest_of([self.config.workload(), resolved, stage.model_dump()])
        mark = path.with_suffix(".digest")
        if path.exists() and mark.exists() and mark.read_text(encoding="utf-8") == made_of:
            return
        bar.stage("counting acceptances", len(self.study.data("count_acceptances").prompts))
        self.study.count_acceptances({"builder": stage.builder}, path)
        mark.write_text(made_of, encoding="utf-8")

    def _search(self) -> None:
        """Measure what is left, and write all trials."""
        trials, study, folder = self.trials, self.study, self.output.folder
        objectives = list(self.settings.objectives)
        setting = setting_of(self.config.config)
        progress = ProgressTable(objectives, self.settings.n_trials)

        def after(trial: FrozenTrial) -> None:
            if study.tracks_trials:
                track_trial(self.output.tracker, trial, setting, objectives)
            progress.update(trials)
            bar.trial(len(distinct_finished(trials)), trial_line(trials, trial, objectives))

        with StageBar(self.output.console) as bar:
            study.tick = bar.prompt
            done, prompts = len(distinct_finished(trials)), len(study.data().prompts)
            bar.stage("search", self.settings.n_trials, done=done, prompts=prompts)
            progress.update(trials)
            bar.show(progress)
            exhausted = StudySearch(trials, self.settings, study, after).run()
        if exhausted:
            trials.set_user_attr("exhausted", True)
            self.output.say(exhausted)
        from specexp.sweep.pictures import save_plots

        write_trials(trials, objectives, folder / "trials.csv")
        save_plots(trials, objectives, folder / "plots")

    def _conclusion(self) -> Conclusion:
        from specexp.sweep.conclusion import Conclusion

        return Conclusion(self.trials, self.confirmations, self.settings, self.config, self.output)

    def _report(self, ended: Concluded | None) -> None:
        """Set the command's result, for its last line and for machines."""
        found, folder, export = current_result(), self.output.folder, self.settings.export
        found.answer = "" if ended is None else ended.answer
        found.folder = str(folder)
        if (folder / PAGE).exists():
            found.page = str(folder / PAGE)
        # If this worker did not conclude the study, another one does.
        exports = self.settings.confirm is not None if ended is None else ended.deployed is not None
        if export is not None and found.answer and exports:
            found.artifact = f"{export.to}/best"
        found.next = next(iter(next_steps(self.settings, self.config).values()), "") if exports else ""
