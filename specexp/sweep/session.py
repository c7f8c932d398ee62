"""One sweep from the loaded models, or a recording of them, to the exported winner: record hits, reference, search,
confirm, export.
"""

from __future__ import annotations

import math
import shlex
import sys
import warnings
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
import torch
from optuna import Study
from optuna.trial import FrozenTrial
from rich.console import Console

from specexp.artifacts.environment import device_name
from specexp.bench.experiment import check_prompts
from specexp.bench.progress import StageBar
from specexp.bench.trainer import quiet_libraries
from specexp.config import ConfigError, save_resolved
from specexp.config.stages import with_prompts_of
from specexp.config.sweep import Sweep
from specexp.replay.configured import check_models, open_recording, recorded_data, tokenizer_of
from specexp.replay.format.recording import Recording
from specexp.sweep.bench import CompositionBench, record_hits
from specexp.sweep.composition import Composition
from specexp.sweep.conclusion import Conclusion
from specexp.sweep.journal import study_lock
from specexp.sweep.live_bench import LiveBench
from specexp.sweep.objective import distinct_finished
from specexp.sweep.plots import save_plots
from specexp.sweep.replay_bench import ReplayBench
from specexp.sweep.study import digest_of, open_study, others_running, resume, run_study
from specexp.sweep.trial_table import (
    is_modelled,
    name_of_trial,
    speedups_of,
    state_of,
    trial_row,
    write_trials,
)
from specexp.tracking import Tracker

if TYPE_CHECKING:
    from specexp.data.prompts import PromptDataModule
    from specexp.pairs.pair import ModelPair


class Session:
    """A sweep over one experiment.

    Args:
        composition: what candidates are overrides of.
        settings: the sweep section.
        folder: of the study; exists and can be written.
        console: where progress and tables go.
        command: as typed, for provenance.

    Attributes:
        pair: the models; None where a replayed study does without.
        recording: that a replayed study searches; None of a live one.
        replay: its bench.
        no_models: why they could not be loaded.
    """

    def __init__(
        self, composition: Composition, settings: Sweep, folder: Path, console: Console, command: str
    ) -> None:
        self.composition = composition
        self.settings = settings
        self.folder = folder
        self.console = console
        self.command = command
        self.name = composition.name
        self.tracker = Tracker(self.name, folder, **composition.config.get("tracking"))
        self.pair: ModelPair | None = None
        self.recording: Recording | None = None
        self.replay: ReplayBench | None = None
        self.no_models = ""

    def run(self) -> None:
        """Run what is left of the sweep.

        Raises:
            ValueError: models, recording, prompts and parts do not go together.
            StudyError: the study cannot go on.
            StudyBusyError: another process runs it.
            OSError: something cannot be written.
        """
        alone = self.settings.storage is None
        lock: AbstractContextManager[None] = study_lock(self.folder) if alone else nullcontext()
        with lock:
            threads = self.composition.generation().threads
            if threads is not None:
                torch.set_num_threads(threads)
            bench = self._replay_bench() if self.composition.replayed else self._live_bench()
            others = self._other_prompts(bench)
            if "learn" in others:
                bench.lessons = others["learn"].prompts
            # Up to here nothing was written: a mistake in models or prompts leaves nothing behind.
            study = open_study(
                self.name, self.settings, self.folder, self._study_digest(), self._clock_of(bench)
            )
            save_resolved(self.composition.config, self.folder, shlex.split(self.command))
            self._greet(study, resume(study, self.settings, alone=alone))
            with StageBar(self.console) as bar:
                bench.tick = bar.prompt
                self._record_hits(bench, bar, others.get("record_hits"))
                self._measure_reference(bench, bar)
                exhausted = self._search(study, bench, bar)
            if exhausted:
                self.console.print(exhausted, highlight=False, soft_wrap=True)
            write_trials(study, list(self.settings.directions), self.folder / "trials.csv")
            save_plots(study, list(self.settings.directions), self.folder / "plots")
            if others_running(study):
                self.console.print(
                    "Other workers are still measuring; the last one confirms the best trials."
                )
            elif self.settings.confirm is not None:
                Conclusion(self, study, bench, others["confirm"]).reach()
        if hint := self.tracker.sync_hint():
            self.console.print(f"W&B: {hint}", soft_wrap=True, highlight=False)

    def _live_bench(self) -> CompositionBench:
        """Models that decode."""
        self.pair = self.composition.load_pair()
        data = self.composition.data(self.pair.tokenizer)
        return LiveBench(self.composition, self.pair, data, self.folder, self.composition.latency())

    def _replay_bench(self) -> CompositionBench:
        """A recording that answers; the models are loaded to confirm its winner, if they are at hand.

        Raises:
            ConfigError: there is no recording, or it is of something else.
        """
        config = self.composition.config
        latency = self.composition.latency()
        assert latency is not None, "a replay without latency is refused with the file"
        self.recording = open_recording(config)
        if self.settings.confirm is not None:
            try:
                self.pair = self.composition.load_pair()
            except ConfigError as error:
                self.no_models = str(error)
        if self.pair is not None:
            check_models(config, self.recording, self.pair)
        self.replay = ReplayBench(self.composition, self.recording, self._data(None), self.folder, latency)
        return self.replay

    def _data(self, stage: str | None) -> PromptDataModule:
        """Prompts of a stage; to confirm live they need not be recorded."""
        tokenizer = self.pair.tokenizer if self.pair is not None else None
        if tokenizer is not None and (self.recording is None or stage == "confirm"):
            return self.composition.data(tokenizer, stage)
        assert self.recording is not None
        tokenizer = tokenizer or tokenizer_of(self.composition.config)
        return recorded_data(with_prompts_of(self.composition.config, stage), self.recording, tokenizer)

    @property
    def device(self) -> str:
        """Where trials, or the recording, ran."""
        if self.pair is not None:
            return str(self.pair.target.device)
        assert self.recording is not None
        return str(self.recording.manifest.made_of["pair"]["device"])

    def _clock_of(self, bench: CompositionBench) -> str:
        """Device whose seconds a study compares."""
        if isinstance(bench, ReplayBench):
            return "a recording"
        return device_name(self.composition.config.get("pair.device"))

    def _study_digest(self) -> str:
        learned = [] if self.settings.learn is None else [asdict(self.settings.learn)]
        return digest_of([self.composition.workload(), dict(self.settings.directions), *learned])

    def _greet(self, study: Study, revived: int) -> None:
        done = len(distinct_finished(study))
        if done:
            self.console.print(
                f"Going on with study {self.name}: {done} of {self.settings.n_trials} trials are finished"
                + (
                    f", {revived} had been cut off and {'is' if revived == 1 else 'are'} repeated."
                    if revived
                    else "."
                )
            )

    def _other_prompts(self, bench: CompositionBench) -> dict[str, PromptDataModule]:
        """Prompts of the other stages, all checked before the first is decoded.

        Raises:
            ValueError: one does not fit the context, or the confirmation's are among the search's.
        """
        stages = {
            "confirm": self.settings.confirm,
            "record_hits": self.settings.record_hits,
            "learn": self.settings.learn,
        }
        found = {name: self._data(name) for name, stage in stages.items() if stage is not None}
        if self.pair is not None:
            for data in (bench.data, *found.values()):
                check_prompts(self.composition.config, data.prompts, self.pair)
        searched = {prompt.token_ids for prompt in bench.prompts}
        for prompt in found["confirm"].prompts if "confirm" in found else ():
            if prompt.token_ids in searched:
                raise ValueError(
                    f"sweep.confirm.data: prompt {prompt.prompt_id!r} is one of the search's, so it cannot "
                    "confirm what "
                    "the search found: give an offset of at least data.offset + data.max_prompts, or other "
                    "prompts"
                )
        return found

    def _record_hits(self, bench: CompositionBench, bar: StageBar, data: PromptDataModule | None) -> None:
        stage, path = self.settings.record_hits, self.composition.hits
        if stage is None or path is None or data is None:
            return
        made_of = digest_of([self.composition.workload(), self.composition.resolved({}), asdict(stage)])
        mark = path.with_suffix(".digest")
        if path.exists() and mark.exists() and mark.read_text(encoding="utf-8") == made_of:
            return
        bar.stage("recording hits", len(data.prompts))
        record_hits(bench, {"builder": stage.builder}, data.prompts, path)
        mark.write_text(made_of, encoding="utf-8")

    def _measure_reference(self, bench: CompositionBench, bar: StageBar) -> None:
        if not bench.load_reference():
            bar.stage("AR on every prompt", len(bench.prompts))
            bench.measure_reference()

    def _search(self, study: Study, bench: CompositionBench, bar: StageBar) -> str:
        bar.stage(
            "search", self.settings.n_trials, done=len(distinct_finished(study)), prompts=len(bench.prompts)
        )

        def after(study: Study, trial: FrozenTrial) -> None:
            self._track(trial)
            bar.trial(len(distinct_finished(study)), self._line(study, trial))

        return run_study(study, self.settings, bench, after)

    def _line(self, study: Study, trial: FrozenTrial) -> str:
        nodes = trial.user_attrs.get("attributes", {}).get("nodes")
        what = f"{name_of_trial(trial)}{'' if nodes is None else f', {nodes} nodes'}"
        state = state_of(trial)
        if state == "duplicate":
            original = study.get_trials(deepcopy=False)[trial.user_attrs["duplicate_of"]]
            return f"{what}: the same as {name_of_trial(original)}"
        if state in ("failed", "infeasible"):
            return f"{what}: {state}, {trial.user_attrs.get('reason') or trial.user_attrs.get('infeasible')}"
        modelled = " modelled" if is_modelled(trial) else ""
        shown = ", ".join(
            f"{math.exp(value):.2f}x AR{modelled}"
            if name == "speedup"
            else f"{value:.2f} {name.replace('_', ' ')}"
            for name, value in zip(self.settings.directions, trial.values, strict=True)
        )
        return f"{what}: {shown}" + (
            f", pruned after {trial.user_attrs['pruned_at']} prompts" if state == "pruned" else ""
        )

    def _track(self, trial: FrozenTrial) -> None:
        if self.replay is not None:
            return  # a run of W&B takes a thousand times as long: replayed trials are rows of the study's own
        row = trial_row(trial, list(self.settings.directions))
        resolved = trial.user_attrs.get("attributes", {}).get("resolved", {})
        with self.tracker.trial(trial.number, trial.params, config=resolved) as run:
            for prompt, log_speedup in trial.intermediate_values.items():
                name = "modelled_speedup" if is_modelled(trial) else "speedup"
                run.log({name: math.exp(log_speedup)}, step=prompt)
            run.summary({**_filled(row), **speedups_of(row)})


def _filled(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def silence() -> None:
    """Quiet the libraries: a sweep shows its own lines, and one bar."""
    quiet_libraries()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
