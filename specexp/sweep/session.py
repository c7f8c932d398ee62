"""One sweep in one process: acceptance counts, reference, search, confirmation, export."""

from __future__ import annotations

import math
import shlex
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING

import optuna
from optuna.trial import FrozenTrial

from specexp.artifacts.atomic_write import held
from specexp.bench.experiment import use_threads
from specexp.bench.progress import StageBar
from specexp.bench.publish import PAGE, sole_writer
from specexp.bench.report import busy_machine
from specexp.bench.trainer import quiet_libraries
from specexp.config import save_resolved
from specexp.config.command import current_result
from specexp.config.sweep import Sweep
from specexp.sweep.dry_run import check_prompts, open_models, without_impossible
from specexp.sweep.journal import check_journal
from specexp.sweep.output import StudyOutput, TrackedTrials, next_steps, setting_of
from specexp.sweep.search import open_study, run_study
from specexp.sweep.space import directions_of
from specexp.sweep.storage import open_storage
from specexp.sweep.study_config import StudyConfig, digest_of
from specexp.sweep.trials import (
    ProgressTable,
    distinct_finished,
    is_modelled,
    name_of_trial,
    reason_of,
    state_of,
    write_trials,
)
from specexp.sweep.workers import (
    TURN_SECONDS,
    known_waiting,
    open_turns,
    others_running,
    requeue,
    resume,
)

if TYPE_CHECKING:
    from specexp.sweep.conclusion import Concluded, Conclusion


class Session:
    """A sweep over one experiment."""

    def __init__(self, config: StudyConfig, settings: Sweep, output: StudyOutput) -> None:
        self.config, self.settings, self.output = config, settings, output
        self.alone = settings.storage is None

    def lock(self) -> AbstractContextManager[object]:
        """Lock the folder of a study without a database.

        Raises:
            FolderBusyError: Another process holds it.
        """
        shares = "wait for it, or give --storage an RDB URL to let several workers share a study"
        return sole_writer(self.output.folder, shares) if self.alone else nullcontext()

    def ended(self) -> Concluded | None:
        """The conclusion of a study that has ended; None if there is something to do. No model is loaded.

        Raises:
            StudyError: The journal is damaged, or the conclusion cannot be read.
        """
        if self.alone and (damage := check_journal(self.output.folder / "journal.log")):
            self.output.say(damage)
        if not (self.output.folder / "concluded.json").exists() or self.settings.confirm is None:
            return None
        self._open()
        done = self.trials.user_attrs.get("exhausted") or (
            len(distinct_finished(self.trials)) >= self.settings.n_trials
        )
        if not done or others_running(self.trials) or known_waiting(self.trials):
            return None
        return self._conclusion().unchanged()

    def prepare(self) -> None:
        """Load the models or the recording, open the study, and measure plain decoding.

        Raises:
            ValueError: Models, recording, prompts and parts do not go together.
            StudyError: The study cannot go on.
        """
        folder, name = self.output.folder, self.config.name
        use_threads(self.config.config)
        self.study = study = open_models(self.config, self.settings)
        check_prompts(study)
        possible, left_out = without_impossible(self.config, self.settings, study.try_to_compose)
        # Up to here nothing was written: a mistake in models, prompts or parts leaves nothing behind.
        self._open()
        self.settings = possible  # after the study was identified by its whole space
        save_resolved(self.config.config, folder, shlex.split(self.output.command))
        with StageBar(self.output.console) as bar, self._only_worker_here():
            study.tick = bar.prompt
            self._count_acceptances(bar)
            for what, why in left_out.items():
                self.output.say(f"Cannot be built, so it is not measured: {what}: {why}.")
            stated = {"device": self.config.clock, "placement": study.device}
            again = resume(self.trials, self.turns, self.settings, alone=self.alone, stated=stated)
            done = len(distinct_finished(self.trials))
            if done or again:
                cut = f", {again} had been cut off and {'is' if again == 1 else 'are'} repeated"
                of = f"{done} of {self.settings.n_trials} trials are finished"
                self.output.say(f"Going on with study {name}: {of}{cut if again else ''}.")
            if not study.load_reference():
                bar.stage("AR on every prompt", len(study.data().prompts))
                study.measure_reference()
            busy = busy_machine(study.reference.seconds_per_token.values())
            if busy and study.latency is None:
                self.output.say(busy)

    def _open(self) -> None:
        if hasattr(self, "trials"):
            return
        learned = [] if self.settings.learn is None else [self.settings.learn.model_dump()]
        workload = digest_of([self.config.workload(), directions_of(self.settings), *learned])
        storage = open_storage(self.settings.storage, self.output.folder, requeue)
        name = self.config.name
        self.trials = open_study(name, self.settings, storage, workload, self.config.clock)
        self.turns = open_turns(name, storage)

    @contextmanager
    def _only_worker_here(self) -> Iterator[None]:
        """Wait until no other worker prepares in the same folder."""
        while True:
            with nullcontext(True) if self.alone else held(self.output.folder / ".preparation") as is_mine:
                if is_mine:
                    yield
                    return
            time.sleep(TURN_SECONDS)

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

    def search(self) -> None:
        """Measure what is left, and write all trials.

        Raises:
            StudyError: Nearly every trial fails.
        """
        trials, study, folder = self.trials, self.study, self.output.folder
        objectives = list(self.settings.objectives)
        tracked = None
        if study.tracks_trials:
            tracked = TrackedTrials(self.output.tracker, setting_of(self.config.config), objectives)
        progress = ProgressTable(objectives, self.settings.n_trials)

        def after(trials: optuna.Study, trial: FrozenTrial) -> None:
            if tracked is not None:
                tracked.end(trial)
            progress.update(trials)
            bar.trial(len(distinct_finished(trials)), _line(trials, trial, objectives))

        with StageBar(self.output.console) as bar:
            study.tick = bar.prompt
            done, prompts = len(distinct_finished(trials)), len(study.data().prompts)
            bar.stage("search", self.settings.n_trials, done=done, prompts=prompts)
            progress.update(trials)
            bar.show(progress)
            try:
                exhausted = run_study(trials, self.settings, study, after, tracked)
            finally:
                if tracked is not None:
                    tracked.interrupt()
        if exhausted:
            trials.set_user_attr("exhausted", True)
            self.output.say(exhausted)
        from specexp.sweep.pictures import save_plots

        write_trials(trials, objectives, folder / "trials.csv")
        save_plots(trials, objectives, folder / "plots")

    def conclude(self) -> Concluded | None:
        """Confirm and export, unless another worker does.

        Raises:
            StudyError: Nothing can be confirmed, or it may not be exported.
        """
        if self.settings.confirm is None:
            return None
        return self._conclusion().in_turn(self.study, self.turns, self.search)

    def _conclusion(self) -> Conclusion:
        from specexp.sweep.conclusion import Conclusion

        return Conclusion(self.trials, self.settings, self.config, self.output)

    def report(self, ended: Concluded | None) -> None:
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


def _line(study: optuna.Study, trial: FrozenTrial, objectives: list[str]) -> str:
    nodes = trial.user_attrs.get("attributes", {}).get("nodes")
    what = f"{name_of_trial(trial)}{'' if nodes is None else f', {nodes} nodes'}"
    state = state_of(trial)
    if state == "duplicate":
        original = study.get_trials(deepcopy=False)[trial.user_attrs["duplicate_of"]]
        return f"{what}: the same as {name_of_trial(original)}"
    if state in ("failed", "infeasible"):
        return f"{what}: {state}, {reason_of(trial)}"
    modelled = " modelled" if is_modelled(trial) else ""
    shown = ", ".join(
        f"{math.exp(value):.2f}x AR{modelled}"
        if name == "speedup"
        else f"{value:.2f} {name.replace('_', ' ')}"
        for name, value in zip(objectives, trial.values, strict=True)
    )
    pruned = f", pruned after {trial.user_attrs['pruned_at']} prompts" if state == "pruned" else ""
    return f"{what}: {shown}{pruned}"


def silence() -> None:
    """Quiet the libraries: a sweep shows its own lines, and one bar."""
    quiet_libraries()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
