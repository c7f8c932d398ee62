"""One sweep in one process: acceptance counts, reference, search, confirmation, export."""

from __future__ import annotations

import shlex
import sys
import warnings
from contextlib import nullcontext
from dataclasses import asdict, replace
from functools import cached_property, partial
from time import time
from typing import TYPE_CHECKING

import optuna
from optuna import get_all_study_names
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial
from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from specexp.bench.experiment import use_threads, warn_of_load
from specexp.bench.progress import StageBar
from specexp.bench.publish import PAGE, FolderBusyError, sole_writer, tracked_config, tracker_of
from specexp.bench.report import busy_machine
from specexp.bench.trainer import quiet_libraries
from specexp.config import ConfigError, save_resolved
from specexp.config.command import current_result, fail
from specexp.config.sweep import Sweep
from specexp.core.messages import counted, first_line
from specexp.core.start import masked
from specexp.sweep.dry_run import check_prompts, left_out_lines, open_models, without_impossible
from specexp.sweep.output import StudyOutput, next_steps, track_trial
from specexp.sweep.plan import AFTER_SECONDS, PLAN, SEARCHING, StudyPlan
from specexp.sweep.sampler import check_sampler
from specexp.sweep.search import StudySearch, open_study
from specexp.sweep.space import directions_of
from specexp.sweep.storage import check_journal, open_storage, retry_lost
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import best_line, distinct_finished, trial_line, write_trials
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
"""Width of tables in redirected output, because their lines would wrap at 80 columns."""


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
        check_sampler(settings, config.checker)
        tracker = tracker_of(config, config.name, config.folder)
        session = Session(config, settings, StudyOutput(config.folder, console, tracker, command))
        shares = "wait for it, or give --storage the URL of a database, which several workers can share"
        with sole_writer(config.folder, shares) if session.exclusive else nullcontext():
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
    """A sweep in one process. Without a database, no other process shares the study (``exclusive``)."""

    def __init__(self, config: StudyConfig, settings: Sweep, output: StudyOutput) -> None:
        self.config, self.settings, self.output = config, settings, output
        self.exclusive = settings.storage is None
        self._started = time()
        self._until: float | None = None  # when the search ends, in seconds since the epoch

    def run(self) -> Concluded | None:
        """Run the missing stages. Return the conclusion; None if it is another worker's, or if nothing is confirmed."""
        ended = self._ended()
        if ended is not None:
            self.output.console.print(ended.text, end="", markup=False, highlight=False, soft_wrap=True)
            self.output.say(
                f"Study {self.config.name} has ended, so nothing was measured; --confirm-again confirms its best "
                "trials once more, and pools both confirmations."
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
        """Return the conclusion of a study that has ended; None if stages are missing. No model is loaded."""
        journal = self.output.folder / "journal.log"
        if self.exclusive and (damage := check_journal(journal)):
            self.output.say(damage)
        if self.settings.confirm is None or (self.exclusive and not journal.exists()):
            return None
        try:
            names = retry_lost(lambda: get_all_study_names(self._storage))
        except (StorageInternalError, SQLAlchemyError):
            return None  # the tables of another program, which ``open_study`` reports
        if f"{self.config.name}{CONFIRMATIONS}" not in names:
            return None
        self._open()
        done = self.trials.user_attrs.get("exhausted") or (
            len(distinct_finished(self.trials)) >= self.settings.n_trials
            or self.trials.user_attrs.get("timed_out", 0) == self.settings.minutes
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
        warn_of_load(self.config)
        use_threads(self.config)
        self.study = study = open_models(self.config, self.settings)
        check_prompts(study)
        possible, impossible = without_impossible(self.config, self.settings, study.try_to_compose)
        # Up to here nothing was written: a mistake in models, prompts or parts leaves nothing behind.
        if not hasattr(self, "trials"):
            self._open()
        self.settings = possible  # only now, because the whole space identifies the study
        save_resolved(self.config, self.output.folder, shlex.split(self.output.command))
        with StageBar(self.output.console) as bar:
            study.tick = bar.prompt
            for sentence in left_out_lines(impossible):
                self.output.say(sentence)
            stated = {"device": self.config.clock, "placement": study.device}
            again = sign_in(self.trials, self.settings, exclusive=self.exclusive, stated=stated)
            done = len(distinct_finished(self.trials))
            if done or again:
                of = f"{done} of {self.settings.n_trials} trials are finished"
                repeated = f"; {counted(again, 'interrupted trial')} will be repeated" if again else ""
                self.output.say(f"Continuing study {self.config.name}: {of}{repeated}.")
            if kept := self.trials.user_attrs.get(PLAN):
                study.cut(kept["prompts"])
            if study.load_reference():
                self._plan(study.reference.per_prompt, done)
            else:
                bar.stage("plain decoding of every prompt", len(study.data().prompts))
                study.measure_reference(partial(self._plan, done=done))
            if self.settings.count_acceptances is not None:
                begin = partial(bar.stage, "counting acceptances")
                study.count_acceptances(self.settings.count_acceptances, begin)
            busy = busy_machine(study.reference.seconds_per_token.values())
            if busy and study.latency is None:
                self.output.say(busy)

    def _plan(self, seconds: float | None, done: int) -> None:
        """Say how long the study takes, cut it to ``sweep.minutes``, and store the plan for later starts and workers.

        Args:
            seconds: Plain decoding's seconds per prompt; None if seconds are modelled, so that only the search ends.
            done: Number of finished trials; their prompts stay.
        """
        minutes, kept = self.settings.minutes, self.trials.user_attrs.get(PLAN, {})
        plan = StudyPlan.of(self.settings, self.study, max(self.settings.n_trials - done, 0))
        if minutes is not None:
            left = 60 * minutes - (time() - self._started) - AFTER_SECONDS
            if seconds and kept.get("minutes") == minutes:
                plan = replace(plan, **{name: kept[name] for name in ("counted", "candidates", "confirmed")})
            elif seconds:
                plan = plan.within(left / seconds, fixed=bool(done or kept))
            self._until = time() + (left - plan.confirmation * seconds if seconds else SEARCHING * left)
            shared = not self.exclusive and kept.get("minutes") == minutes and kept["until"] > time()
            self._until = kept["until"] if shared else self._until
        self.study.cut(plan.prompts, plan.counted, plan.confirmed)
        self.trials.set_user_attr(PLAN, {**asdict(plan), "minutes": minutes, "until": self._until})
        if seconds:
            self.output.say(plan.forecast(seconds, minutes))

    def _search(self) -> None:
        """Measure the missing trials, and write all trials to ``trials.csv``."""
        trials, study, objectives = self.trials, self.study, list(self.settings.objectives)
        setting = tracked_config(self.config)

        def after(trial: FrozenTrial) -> None:
            if study.tracks_trials:
                track_trial(self.output.tracker, trial, setting, objectives)
            bar.show(Text(best_line(trials, objectives[0])))
            bar.trial(len(distinct_finished(trials)), trial_line(trials, trial, objectives))

        with StageBar(self.output.console) as bar:
            study.tick = bar.prompt
            done, prompts = len(distinct_finished(trials)), len(study.data().prompts)
            bar.stage("search", self.settings.n_trials, done=done, prompts=prompts)
            bar.show(Text(best_line(trials, objectives[0])))
            exhausted = StudySearch(trials, self.settings, study, after, self._until).run()
        done = len(distinct_finished(trials))
        if exhausted:
            trials.set_user_attr("exhausted", True)
            self.output.say(exhausted)
        elif done < self.settings.n_trials:
            trials.set_user_attr("timed_out", self.settings.minutes)
            of = f"{done} of {self.settings.n_trials} trials"
            self.output.say(f"The {self.settings.minutes:g} minutes allow {of}, and now the confirmation.")
        write_trials(trials, objectives, self.output.folder / "trials.csv")

    def _conclusion(self) -> Conclusion:
        from specexp.sweep.conclusion import Conclusion

        return Conclusion(self.trials, self.confirmations, self.settings, self.config, self.output)

    def _report(self, ended: Concluded | None) -> None:
        """Fill in the command's result, which is printed as the last line or as JSON."""
        result, folder, export = current_result(), self.output.folder, self.settings.export
        result.answer = "" if ended is None else ended.answer
        result.folder = str(folder)
        if (folder / PAGE).exists():
            result.page = str(folder / PAGE)
        # If this worker did not conclude the study, another one does.
        exports = self.settings.confirm is not None if ended is None else ended.deployed is not None
        if export is not None and result.answer and exports:
            result.artifact = f"{export.to}/best"
        result.next = next(iter(next_steps(self.settings, self.config).values()), "") if exports else ""
