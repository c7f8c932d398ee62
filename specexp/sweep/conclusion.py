"""The conclusion of a sweep: the best few are confirmed on other prompts by one worker, published, and exported."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path

import optuna
from optuna.trial import FrozenTrial
from pydantic import TypeAdapter
from rich.console import Console

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.equality import divergence
from specexp.bench.page.sections import prompts_shown, texts_of
from specexp.bench.progress import StageBar
from specexp.bench.publish import Attached, Report, publish, track
from specexp.bench.record import PromptRecord, line_of, read_records
from specexp.bench.report import failed_answers
from specexp.bench.table import Table
from specexp.config.command import current_result
from specexp.config.sweep import Sweep
from specexp.sweep.confirmation import AR, BASELINES, Confirmation, answer, confirm, select, sentences, table
from specexp.sweep.export import Deployed, Exported, Exporter
from specexp.sweep.output import BEST_TREE, StudyOutput, method_of, next_steps, setting_of, summary_of
from specexp.sweep.pictures import charts_of, pictures_of_winner
from specexp.sweep.study import Study
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import confirmable, trial_row
from specexp.sweep.workers import (
    CONCLUDED,
    Claim,
    TakenOverError,
    claim_confirmation,
    known_waiting,
    others_running,
    worker,
)

CONFIRM = "confirm.jsonl"
POLL_SECONDS = 2.0
"""Pause between two checks whether other workers still measure."""


@dataclass(frozen=True)
class Concluded:
    """The conclusion of a study, as the claim of its confirmation keeps it for all workers."""

    of: str  # digest of the study, its confirmed trials, and the settings of the export
    measured_on: str  # digest of what confirmations must share to be pooled
    confirmations: int
    said: str  # table and sentences, as they were printed
    gain: bool  # whether the deployed composition is faster than plain decoding, by the interval
    answer: str
    deployed: Deployed | None  # None if nothing was exported
    worker: str
    folder: str  # the worker's results, on its machine

    @staticmethod
    def last(confirmations: optuna.Study) -> Concluded | None:
        """The last conclusion of a study; None if it has not ended yet."""
        ends = [one.user_attrs.get(CONCLUDED) for one in confirmations.get_trials(deepcopy=False)]
        kept = next(filter(None, reversed(ends)), None)
        return None if kept is None else TypeAdapter(Concluded).validate_python(kept)


def earlier_records(
    folder: Path, kept: Concluded | None, measured_on: str, samples: int
) -> list[PromptRecord]:
    """Records of the confirmations that a new one is pooled with; each took ``samples`` further ones of a prompt."""
    path = folder / CONFIRM
    if kept is None or kept.measured_on != measured_on or not path.exists():
        return []
    return [record for record in read_records(path) if record.sample < kept.confirmations * samples]


def keep_records(
    folder: Path, kept: Concluded | None, measured_on: str, records: Iterable[PromptRecord]
) -> None:
    """Write the records of all pooled confirmations to ``confirm.jsonl``, whole or not at all.

    An earlier file with records of other prompts, models or lengths is renamed, to ``confirm.1.jsonl``.
    """
    path = folder / CONFIRM
    if kept is not None and kept.measured_on != measured_on and path.exists():
        number = 1
        while (aside := folder / f"confirm.{number}.jsonl").exists():
            number += 1
        path.rename(aside)
    atomic_write(path, "".join(map(line_of, records)))


class Conclusion:
    """The conclusion of a study by one of its workers."""

    def __init__(
        self,
        trials: optuna.Study,
        confirmations: optuna.Study,
        settings: Sweep,
        config: StudyConfig,
        output: StudyOutput,
    ) -> None:
        assert settings.confirm is not None
        self.trials, self.confirmations, self.settings = trials, confirmations, settings
        self.config, self.output, self._stage = config, output, settings.confirm

    def unchanged(self) -> Concluded | None:
        """The kept conclusion if nothing has changed since; None if there is something to measure."""
        kept = Concluded.last(self.confirmations)
        return kept if kept is not None and kept.of == self._digest() and not self._stage.again else None

    def in_turn(self, study: Study, search: Callable[[], None]) -> Concluded | None:
        """Conclude a searched study, unless another worker does (None) or did.

        A worker that dies over it leaves the claim to the next one. A worker that lost its claim, because it was
        stopped for too long, writes nothing.

        Args:
            search: Measures the known configurations of workers that died meanwhile.
        """
        shared, say = self.settings.storage is not None, self.output.say

        def claimed(claim: Claim) -> Concluded:
            if shared and others_running(self.trials):
                say("The best trials are confirmed once the other workers have measured their last.")
            while shared and (others_running(self.trials) or known_waiting(self.trials)):
                while others_running(self.trials):
                    time.sleep(POLL_SECONDS)
                search()  # even if nothing is left: trials.csv then has the last trials of the other workers
            found = self.unchanged() if shared else None
            if found is None:
                return self.conclude(study, claim)
            say(f"The best trials were confirmed by {found.worker}, in {found.folder}.")
            return found

        try:
            return claim_confirmation(self.confirmations, claimed, alone=not shared)
        except TakenOverError:
            say("Another worker confirms the best trials.")
            return None

    def conclude(self, study: Study, claim: Claim) -> Concluded:
        """Confirm the best trials, export the winner, publish both, and keep what was printed.

        Earlier confirmations on the same prompts are pooled with this one. The worker must still hold its claim once
        all is measured and again before the export.

        Raises:
            StudyError: No trial can be confirmed; outputs differ from plain decoding's in float32, so nothing is
                exported; or, once all is published, prompts of the confirmation failed.
        """
        folder, confirming = self.output.folder, study.confirming
        kept, measured_on = Concluded.last(self.confirmations), self._measured_on()
        earlier = earlier_records(folder, kept, measured_on, confirming.samples)
        pooled = None if kept is None or kept.measured_on != measured_on else kept
        confirmation = self._confirm(study, pooled, earlier)
        confirmed, records, winner = confirmation.confirmed, confirmation.records, confirmation.winner
        claim.check()
        keep_records(folder, kept, measured_on, records)
        float32 = confirming.in_float32(confirmed, records)
        shown = table(self.config.name, self.config.question, confirmation, study.predict(None), float32)
        data = confirming.data("confirm")
        texts, preparation = texts_of(data.prompts), data.workload.preparation
        shown.notes += preparation.notes()
        titles = {**{one.name: one.label for one in confirmed}, AR: BASELINES[AR]}
        said = [*sentences(confirmed, records), *study.sentences(winner)]
        report = Report(
            tables={"confirm": shown},
            data={"confirm": shown},
            files=preparation.files(),
            sentences=said,
            answer=answer(confirmed, records),
            charts=charts_of(self.trials, self.settings, confirmation, texts),
            next_steps=next_steps(self.settings, self.config),
            page="confirm",
            parts=[
                prompts_shown(texts, records, titles, confirming.backend.tokenizer),
                pictures_of_winner(confirmation, study.data("confirm").prompts),
            ],
        )
        publish(report, folder, console=self.output.console)
        wrong = divergence([*records, *(() if float32 is None else float32.records)])
        if wrong is not None:
            raise StudyError(f"{wrong}: this is not lossless, so nothing is exported")
        claim.check()  # pictures took a while
        exported = Exported((), winner.over_ar.is_faster)
        if self.settings.export is not None:
            exporter = Exporter(self.settings.export, confirmation, study, self.output)
            exported = exporter.run(None if pooled is None else pooled.deployed)
        for sentence in exported.said:
            self.output.say(sentence)
        found = Concluded(
            self._digest(),
            measured_on,
            confirmation.confirmations,
            _text(shown, [*said, *exported.said], self.output.console.width),
            exported.gain,
            report.answer,
            exported.deployed,
            worker(),
            str(folder.resolve()),
        )
        failed = failed_answers(records)
        if failed is None:
            claim.sign(CONCLUDED, asdict(found))  # before W&B: a worker that dies meanwhile has exported
        self._track(report, exported, confirmation)
        if failed is not None:
            why = f"{folder / CONFIRM} says why for each"
            raise StudyError(f"{failed}; the confirmation is of the others, and {why}")
        current_result().summary = summary_of(winner)
        return found

    def _confirm(self, study: Study, kept: Concluded | None, earlier: Sequence[PromptRecord]) -> Confirmation:
        trials, confirming = self._selected(kept), study.confirming
        confirmations = 1 if kept is None or not earlier else kept.confirmations + 1
        with StageBar(self.output.console) as bar:
            prompts = len(confirming.data("confirm").prompts)
            bar.stage(f"confirming {len(trials)} candidates on other prompts", prompts * confirming.samples)
            found = confirm(trials, confirming, bar.prompt, self._stage.of_each, earlier, confirmations)
        predicted = [
            replace(one, predicted=study.predict(one.attributes["resolved"])) for one in found.confirmed
        ]
        return replace(found, confirmed=predicted)

    def _selected(self, kept: Concluded | None) -> list[FrozenTrial]:
        trials = select(self.trials, self._stage.best, self._stage.of_each)
        if not trials:
            raise StudyError(
                "no trial was measured on every prompt within the constraints, so none can be confirmed"
            )
        deployed = kept.deployed if kept is not None else None
        numbers = set() if deployed is None else {deployed.trial, deployed.tree}
        numbers -= {trial.number for trial in trials}
        return [*trials, *(trial for trial in confirmable(self.trials) if trial.number in numbers)]

    def _digest(self) -> str:
        trials = select(self.trials, self._stage.best, self._stage.of_each)
        export = None if self.settings.export is None else self.settings.export.model_dump()
        return digest_of([self._measured_on(), [trial.user_attrs.get("digest") for trial in trials], export])

    def _measured_on(self) -> str:
        learn = None if self.settings.learn is None else self.settings.learn.model_dump()
        return digest_of([self.config.workload(), self._stage.data, learn])

    def _track(self, report: Report, exported: Exported, confirmation: Confirmation) -> None:
        name, config, folder = self.config.name, self.config.config, self.output.folder
        winner, objectives = confirmation.winner, list(self.settings.objectives)
        artifacts = [
            Attached(one.folder, name if number == 0 else f"{name}-{BEST_TREE}", one.kind)
            for number, one in enumerate(exported.written)
        ]
        setting = {**config.to_dict(), **setting_of(config), "method": method_of(config, winner)}
        with self.output.tracker.study(config=setting) as run:
            run.table(
                "trials", [trial_row(one, objectives) for one in self.trials.get_trials(deepcopy=False)]
            )
            for part in report.whole():
                track(part, folder, run)
            for path in sorted((folder / "plots").glob("*.png")):
                run.picture(path.stem, path)
            track(Report(artifacts=artifacts, summary=summary_of(winner)), folder, run)


def _text(shown: Table, said: Sequence[str], width: int) -> str:
    file = StringIO()
    console = Console(file=file, width=width, highlight=False, force_jupyter=False)
    console.print(shown.to_rich())
    for sentence in said:
        console.print(sentence, markup=False, soft_wrap=True)
    return file.getvalue()
