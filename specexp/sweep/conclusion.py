"""The conclusion of a sweep: the best few are confirmed on other prompts by one worker, published, and exported."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial
from pydantic import ConfigDict, TypeAdapter, ValidationError
from rich.console import Console

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.equality import divergence
from specexp.bench.page.sections import prompts_shown, texts_of
from specexp.bench.progress import StageBar
from specexp.bench.publish import Attached, Report, publish, track
from specexp.bench.record import PromptRecord, line_of, read_records
from specexp.bench.report import failed_answers
from specexp.config.command import current_result
from specexp.config.sweep import Sweep
from specexp.sweep.confirmation import AR, BASELINES, Confirmation, answer, confirm, select, sentences, table
from specexp.sweep.export import Deployed, Exported, Exporter
from specexp.sweep.output import (
    BEST_TREE,
    StudyOutput,
    method_of,
    next_steps,
    setting_of,
    summary_of,
)
from specexp.sweep.pictures import charts_of, pictures_of_winner
from specexp.sweep.study import Study
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import confirmable, trial_row
from specexp.sweep.workers import CONFIRMATION, Turn, in_turn, known_waiting, others_running, worker

if TYPE_CHECKING:
    from specexp.bench.table import Table

CONCLUDED = "concluded.json"
CONFIRM = "confirm.jsonl"
POLL_SECONDS = 2.0
"""Pause between two checks whether other workers still measure."""


@dataclass(frozen=True)
class Concluded:
    """The conclusion of a study, as ``concluded.json`` keeps it."""

    __pydantic_config__ = ConfigDict(extra="forbid")

    of: str  # digest of the study, its confirmed trials, and the settings of the export
    measured_on: str  # digest of what confirmations must share to be pooled
    confirmations: int
    said: str  # table and sentences, as they were printed
    gain: bool  # whether the deployed composition is faster than plain decoding, by the interval
    answer: str = ""
    deployed: Deployed | None = None  # None if nothing was exported

    @staticmethod
    def load(folder: Path) -> Concluded | None:
        """The conclusion of the study in a folder; None if it has not ended yet.

        Raises:
            StudyError: The file holds something else.
        """
        path = folder / CONCLUDED
        try:
            return TypeAdapter(Concluded).validate_json(path.read_bytes(), strict=True)
        except FileNotFoundError:
            return None
        except (OSError, ValidationError) as error:
            raise StudyError(
                f"{path} is not what a finished study keeps: remove it, and the best trials are confirmed anew"
            ) from error

    def save(self, folder: Path) -> None:
        """Write the file, whole or not at all."""
        atomic_write(folder / CONCLUDED, json.dumps(asdict(self), indent=2) + "\n")


def earlier_records(
    folder: Path, kept: Concluded | None, measured_on: str, samples: int
) -> list[PromptRecord]:
    """Records of the confirmations that a new one is pooled with.

    Args:
        samples: Continuations of every prompt in one confirmation; their numbers go on from one to the next.
    """
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


class _TakenOverError(Exception):
    """Another worker confirms, or confirmed, what this one has just measured."""


class Conclusion:
    """The conclusion of a study by one of its workers."""

    def __init__(
        self, trials: optuna.Study, settings: Sweep, config: StudyConfig, output: StudyOutput
    ) -> None:
        assert settings.confirm is not None
        self.trials, self.settings, self.config, self.output = trials, settings, config, output
        self._stage = settings.confirm

    def unchanged(self) -> Concluded | None:
        """The kept conclusion if nothing has changed since; None if there is something to measure.

        Raises:
            StudyError: It cannot be read.
        """
        kept = Concluded.load(self.output.folder)
        same = kept is not None and kept.of == self._digest()
        return kept if same and not self._stage.again else None

    def in_turn(self, study: Study, turns: optuna.Study, search: Callable[[], None]) -> Concluded | None:
        """Conclude a searched study; None if another worker does, or did.

        A worker that dies over it gives its turn back to the next one. A worker that lost its turn, because it was
        stopped for too long, writes nothing.

        Args:
            search: Measures the known configurations of workers that died meanwhile.

        Raises:
            StudyError: As :meth:`conclude`.
        """
        found: Concluded | None = None
        shared, say = self.settings.storage is not None, self.output.say

        def work(turn: Turn) -> None:
            nonlocal found
            if shared and others_running(self.trials):
                say("The best trials are confirmed once the other workers have measured their last.")
            while shared and (others_running(self.trials) or known_waiting(self.trials)):
                while others_running(self.trials):
                    time.sleep(POLL_SECONDS)
                search()  # even if nothing is left: trials.csv then has the last trials of the other workers
            found = self.unchanged() if shared else None
            if found is not None:
                return
            # A worker on another machine has no ``concluded.json``.
            ends = [one.user_attrs.get("concluded") for one in turns.get_trials(deepcopy=False)]
            earlier: dict[str, Any] = next(filter(None, reversed(ends)), {})
            if shared and earlier.get("of") == self._digest() and not self._stage.again:
                say(f"The best trials were confirmed by {earlier['worker']}, in {earlier['folder']}.")
                return
            try:
                found = self.conclude(study, turn)
            except _TakenOverError:
                say("Another worker took the confirmation over and exports; this one writes nothing.")

        if not in_turn(turns, CONFIRMATION, work, alone=not shared):
            say("Another worker confirms the best trials.")
        return found

    def conclude(self, study: Study, turn: Turn) -> Concluded:
        """Confirm the best trials, export the winner, publish both, and keep what was printed.

        Earlier confirmations on the same prompts are pooled with this one.

        Args:
            turn: The worker's turn, which it must still hold once all is measured and again before the export.

        Raises:
            StudyError: No trial can be confirmed; outputs differ from plain decoding's in float32, so nothing is
                exported; or, once all is published, prompts of the confirmation failed.
        """
        folder, confirming = self.output.folder, study.confirming
        kept, measured_on = Concluded.load(folder), self._measured_on()
        earlier = earlier_records(folder, kept, measured_on, confirming.samples)
        pooled = None if kept is None or kept.measured_on != measured_on else kept
        confirmation = self._confirm(study, pooled, earlier)
        confirmed, records, winner = confirmation.confirmed, confirmation.records, confirmation.winner
        _check(turn)
        keep_records(folder, kept, measured_on, records)
        float32 = confirming.in_float32(confirmed, records)
        shown = table(
            self.config.name,
            self.config.question,
            confirmed,
            records,
            study.predict(None),
            confirmations=confirmation.confirmations,
            warm=any(arm.parts.keeps_learning for arm in confirmation.arms.values()),
            float32=float32,
        )
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
        _check(turn)  # pictures took a while
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
        )
        failed = failed_answers(records)
        if failed is None:
            # Before W&B is written: a worker that dies meanwhile has exported.
            where = {"of": found.of, "worker": worker(), "folder": str(folder.resolve())}
            turn.sign("concluded", where)
            found.save(folder)
        self._track(report, exported, confirmation)
        if failed is not None:
            raise StudyError(
                f"{failed}; the confirmation is of the others, and {folder / CONFIRM} says why for each"
            )
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
        # A study that started over has trials of its own.
        begun = self.trials.get_trials(deepcopy=False)[0].datetime_start
        return digest_of([self.config.workload(), self._stage.data, learn, str(begun)])

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
                "trials", [trial_row(trial, objectives) for trial in self.trials.get_trials(deepcopy=False)]
            )
            for part in report.whole():
                track(part, folder, run)
            for path in sorted((folder / "plots").glob("*.png")):
                run.picture(path.stem, path)
            track(Report(artifacts=artifacts, summary=summary_of(winner)), folder, run)


def _check(turn: Turn) -> None:
    if not turn.is_mine():
        raise _TakenOverError


def _text(shown: Table, said: Sequence[object], width: int) -> str:
    console = Console(file=StringIO(), width=width, highlight=False, force_jupyter=False)
    console.print(shown.to_rich())
    for sentence in said:
        console.print(str(sentence), markup=False, soft_wrap=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()
