"""One sweep from the loaded models, or a recording of them, to the exported winner: acceptance counts, reference,
search, confirmation, export.
"""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from socket import gethostname
from typing import TYPE_CHECKING, Any

import optuna
from optuna import Study
from optuna.trial import FrozenTrial

from specexp.bench.experiment import use_threads
from specexp.bench.progress import StageBar
from specexp.bench.publish import PAGE, sole_writer
from specexp.bench.report import busy_machine
from specexp.bench.trainer import quiet_libraries
from specexp.config import build_pair, save_resolved
from specexp.config.stages import STAGES
from specexp.config.sweep import Sweep
from specexp.config.told import told
from specexp.sweep.alone import conclude_alone
from specexp.sweep.backend import StudyBackend
from specexp.sweep.bench import StudyBench, record_acceptance_counts
from specexp.sweep.branches import composer, without_impossible
from specexp.sweep.concluded import CONCLUDED, Concluded
from specexp.sweep.conclusion import concluded
from specexp.sweep.database import locked
from specexp.sweep.goals import directions_of
from specexp.sweep.journal import repaired
from specexp.sweep.output import StudyOutput
from specexp.sweep.plots import save_plots
from specexp.sweep.shown import onward
from specexp.sweep.standing import Standing
from specexp.sweep.study import digest_of, open_study, run_study
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.tracked_trials import TrackedTrials, setting_of
from specexp.sweep.trials import (
    distinct_finished,
    is_modelled,
    name_of_trial,
    reason_of,
    state_of,
    write_trials,
)
from specexp.sweep.worker import known_waiting, others_running, resume

if TYPE_CHECKING:
    from specexp.models.pair import ModelPair


class Session:
    """A sweep over one experiment.

    Args:
        study_config: The experiment.
        settings: Its sweep section.
        output: Where the results go.
    """

    def __init__(self, study_config: StudyConfig, settings: Sweep, output: StudyOutput) -> None:
        self.study_config = study_config
        self.settings = settings
        self.output = output
        self._impossible: tuple[Mapping[str, Any], ...] = ()

    def run(self) -> bool:
        """Run what is left of the sweep; of one that has ended, say what came out.

        Returns:
            Whether something was found that is faster than plain decoding, by the interval; true where nothing was
            confirmed here.

        Raises:
            ValueError: Models, recording, prompts and parts do not go together.
            StudyError: The study cannot go on.
            FolderBusyError: Another process runs it.
            OSError: Something cannot be written.
        """
        alone = self.settings.storage is None
        folder, console = self.output.folder, self.output.console
        shares = "wait for it, or give --storage an RDB URL to let several workers share a study"
        lock: AbstractContextManager[None] = sole_writer(folder, shares) if alone else nullcontext()
        with lock:
            said = repaired(folder / "journal.log") if alone else ""
            if said:
                self.output.say(said)
            ended = self._ended()
            if ended is not None:
                self.output.console.print(ended.said, end="", markup=False, highlight=False, soft_wrap=True)
                self._tell(ended)
                self.output.say(
                    f"Study {self.study_config.name} has ended, so nothing was measured; --confirm-again confirms its "
                    f"best once more, and pools both."
                )
                return ended.gain
            use_threads(self.study_config.config)
            backend = self._backend()
            bench = StudyBench(backend, folder)
            check_prompts(self.study_config, backend)
            # Up to here nothing was written: a mistake in models or prompts leaves nothing behind.
            name = self.study_config.name
            study = open_study(name, self.settings, folder, self._study_digest(), self.study_config.clock)
            save_resolved(self.study_config.config, folder, shlex.split(self.output.command))
            with StageBar(console) as bar:
                bench.tick = bar.prompt
                preparation = f"{name}: preparation on {gethostname()}"
                with locked(self.settings.storage, preparation, wait=True):  # workers share the folder
                    self._record_acceptance_counts(backend, bar)
                    self._leave_out(backend)
                    self._greet(study, self._joined(study, backend, alone))  # enqueues only what can be built
                    if not bench.load_reference():
                        bar.stage("AR on every prompt", len(bench.prompts))
                        bench.measure_reference()
                    busy = busy_machine(bench.reference.seconds_per_token.values())
                    if busy and backend.latency is None:
                        self.output.say(busy)
            self._search(study, bench)
            if self.settings.confirm is not None:
                ended = conclude_alone(
                    study, self.settings, backend, self.output, lambda: self._search(study, bench)
                )
        if hint := self.output.tracker.sync_hint():
            self.output.say(f"W&B: {hint}")
        self._tell(ended)
        return ended is None or ended.gain

    def _tell(self, ended: Concluded | None) -> None:
        """What came out, for the command's last line and for machines."""
        found, folder = told(), self.output.folder
        answer = "" if ended is None else ended.answer
        found.answer, found.folder = answer, str(folder)
        if (folder / PAGE).exists():
            found.page = str(folder / PAGE)
        # without an end of its own another worker confirms and exports
        exports = self.settings.confirm is not None if ended is None else ended.deployed is not None
        if self.settings.export is not None and answer and exports:
            found.artifact = f"{self.settings.export.to}/best"
        found.next = next(iter(onward(self.settings, self.study_config).values()), "") if exports else ""

    def _ended(self) -> Concluded | None:
        """What a study that has ended keeps; None where there is something to do. No model is loaded for it."""
        folder, settings = self.output.folder, self.settings
        if not (folder / CONCLUDED).exists() or settings.confirm is None:
            return None
        study = open_study(
            self.study_config.name, settings, folder, self._study_digest(), self.study_config.clock
        )
        left = settings.n_trials > len(distinct_finished(study)) and not study.user_attrs.get("exhausted")
        if left or others_running(study) or known_waiting(study):
            return None
        return concluded(study, settings, self.study_config, self.output)

    def _backend(self) -> StudyBackend:
        """A recording that answers, or models that decode."""
        if self.study_config.replayed:
            return replayed_backend(self.study_config, self.settings)
        return live_backend(self.study_config, build_pair(self.study_config.config))

    def _study_digest(self) -> str:
        learned = [] if self.settings.learn is None else [asdict(self.settings.learn)]
        return digest_of([self.study_config.workload(), directions_of(self.settings), *learned])

    def _joined(self, study: Study, backend: StudyBackend, alone: bool) -> int:
        """Sign in; how many trials that had been cut off are repeated."""
        stated = {"device": self.study_config.clock, "placement": backend.device}
        return resume(study, self.settings, alone=alone, stated=stated)

    def _greet(self, study: Study, revived: int) -> None:
        done = len(distinct_finished(study))
        if done or revived:
            self.output.say(
                f"Going on with study {self.study_config.name}: {done} of {self.settings.n_trials} trials are finished"
                + (
                    f", {revived} had been cut off and {'is' if revived == 1 else 'are'} repeated."
                    if revived
                    else "."
                )
            )

    def _record_acceptance_counts(self, backend: StudyBackend, bar: StageBar) -> None:
        stage, path = self.settings.count_acceptances, self.study_config.acceptance_counts
        if stage is None or path is None:
            return
        made_of = digest_of(
            [
                self.study_config.workload(),
                self.study_config.resolved(self.study_config.config),
                asdict(stage),
            ]
        )
        mark = path.with_suffix(".digest")
        if path.exists() and mark.exists() and mark.read_text(encoding="utf-8") == made_of:
            return
        bar.stage("counting acceptances", len(backend.data("count_acceptances").prompts))
        record_acceptance_counts(backend, {"builder": stage.builder}, path, bar.prompt)
        mark.write_text(made_of, encoding="utf-8")

    def _leave_out(self, backend: StudyBackend) -> None:
        """Leave out of the search what cannot be built, now that the acceptance counts are there."""
        compose = composer(self.study_config, backend)
        possible = without_impossible(self.study_config, self.settings, compose)
        self.settings, self._impossible = possible.sweep, possible.pairs
        for name, why in possible.left_out.items():
            self.output.say(f"Left out, for it cannot be built: {name}: {why}.")

    def _search(self, study: Study, bench: StudyBench) -> None:
        """Measure what is left, and write all trials."""
        objectives, folder = list(self.settings.objectives), self.output.folder
        tracked = None
        if bench.backend.tracks_trials:
            tracked = TrackedTrials(self.output.tracker, setting_of(self.study_config.config), objectives)
        standing = Standing(objectives, self.settings.n_trials)

        def after(study: Study, trial: FrozenTrial) -> None:
            if tracked is not None:
                tracked.end(trial)
            standing.update(study)
            bar.trial(len(distinct_finished(study)), self._line(study, trial))

        with StageBar(self.output.console) as bar:
            bench.tick = bar.prompt
            done = len(distinct_finished(study))
            bar.stage("search", self.settings.n_trials, done=done, prompts=len(bench.prompts))
            standing.update(study)
            bar.show(standing)
            try:
                exhausted = run_study(study, self.settings, bench, after, tracked, self._impossible)
            finally:
                if tracked is not None:
                    tracked.interrupt()
        if exhausted:
            study.set_user_attr("exhausted", True)
            self.output.say(exhausted)
        write_trials(study, objectives, folder / "trials.csv")
        save_plots(study, objectives, folder / "plots")

    def _line(self, study: Study, trial: FrozenTrial) -> str:
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
            for name, value in zip(self.settings.objectives, trial.values, strict=True)
        )
        return f"{what}: {shown}" + (
            f", pruned after {trial.user_attrs['pruned_at']} prompts" if state == "pruned" else ""
        )


def live_backend(study_config: StudyConfig, pair: ModelPair) -> StudyBackend:
    """Models that decode, in our loop or in somebody else's engine."""
    if study_config.of_engine:
        from specexp.sweep.engine_study import EngineStudyBackend

        return EngineStudyBackend(study_config, pair)
    from specexp.sweep.live import LiveStudyBackend

    return LiveStudyBackend(study_config, pair, study_config.latency())


def replayed_backend(study_config: StudyConfig, settings: Sweep) -> StudyBackend:
    """A recording that answers in a study."""
    from specexp.sweep.replayed import ReplayedStudyBackend

    latency = study_config.latency()
    assert latency is not None, "a replay without latency is refused with the file"
    return ReplayedStudyBackend(study_config, latency, confirms=settings.confirm is not None)


def check_prompts(study_config: StudyConfig, backend: StudyBackend) -> None:
    """Read the prompts of all stages before the first is decoded.

    Raises:
        ValueError: One does not fit the context, or the confirmation's are among the search's.
    """
    found = {
        stage: backend.data(stage)
        for stage in STAGES
        if study_config.config.get(f"sweep.{stage}", None) is not None
    }
    searched = {prompt.token_ids for prompt in backend.data().prompts}
    for prompt in found["confirm"].prompts if "confirm" in found else ():
        if prompt.token_ids in searched:
            raise ValueError(
                f"sweep.confirm.data: prompt {prompt.prompt_id!r} is one of the search's, so it cannot confirm "
                "what the search found: give an offset of at least data.offset + data.max_prompts, or other prompts"
            )


def silence() -> None:
    """Quiet the libraries: a sweep shows its own lines, and one bar."""
    quiet_libraries()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
