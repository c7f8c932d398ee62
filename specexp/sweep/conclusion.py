"""The conclusion of a sweep: one worker confirms the best few trials on other prompts, publishes and exports them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from io import StringIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import optuna
from optuna.trial import FrozenTrial, TrialState
from pydantic import TypeAdapter
from rich.console import Console

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.equality import divergence, proof_of
from specexp.bench.page.sections import (
    folding_tree,
    importances_chart,
    prompts_shown,
    ratios_chart,
    search_chart,
    texts_of,
)
from specexp.bench.pictures import draw_time_line, draw_tree, tree_lines
from specexp.bench.progress import StageBar
from specexp.bench.publish import Attached, Report, publish, track, tracked_config
from specexp.bench.record import PromptRecord, line_of, read_records
from specexp.bench.report import failed_answers
from specexp.bench.signatures import likely_causes
from specexp.bench.table import Table
from specexp.config.command import current_result
from specexp.config.sweep import Sweep
from specexp.core.messages import counted
from specexp.core.tree import RankPath, TreeShape
from specexp.sweep.confirmation import BASELINES, Confirmation, answer, confirm, select, sentences, table
from specexp.sweep.output import (
    BEST_TREE,
    Deployed,
    Exported,
    Exporter,
    StudyOutput,
    method_of,
    next_steps,
    summary_of,
)
from specexp.sweep.plan import PLAN
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
from specexp.tracking.names import PLAIN

if TYPE_CHECKING:
    from specexp.data import Prompt

CONFIRM = "confirm.jsonl"
POLL_SECONDS = 2.0
"""Pause between two checks whether other workers still measure."""
SECONDS_SHOWN = 0.5
"""Seconds that a picture of a time line shows, so that single passes are visible. The Perfetto file has all."""


@dataclass(frozen=True)
class Concluded:
    """The conclusion of a study, stored with the claim to its confirmation so that all workers can read it."""

    of: str  # digest of the study, its confirmed trials, and the settings of the export
    measured_on: str  # digest of everything that pooled confirmations must share
    confirmations: int
    text: str  # table and sentences, as they were printed
    gain: bool  # whether the deployed composition is faster than plain decoding, by the interval
    answer: str
    deployed: Deployed | None  # None if nothing was exported
    worker: str
    folder: str  # the worker's results, on its machine

    @staticmethod
    def last(confirmations: optuna.Study) -> Concluded | None:
        """Return the last conclusion of a study; None if it has not ended yet."""
        ends = [one.user_attrs.get(CONCLUDED) for one in confirmations.get_trials(deepcopy=False)]
        kept = next(filter(None, reversed(ends)), None)
        return None if kept is None else TypeAdapter(Concluded).validate_python(kept)


def earlier_records(folder: Path, pooled: Concluded | None, samples: int) -> list[PromptRecord]:
    """Return the records of the confirmations that a new one is pooled with.

    Each confirmation decoded ``samples`` further samples of every prompt. Samples of one that was killed have higher
    numbers and are left out.
    """
    if pooled is None or not (folder / CONFIRM).exists():
        return []
    return [one for one in read_records(folder / CONFIRM) if one.sample < pooled.confirmations * samples]


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
        """Return the kept conclusion if nothing has changed since; None if there is something to measure."""
        kept = Concluded.last(self.confirmations)
        return kept if kept is not None and kept.of == self._digest() and not self._stage.again else None

    def in_turn(self, study: Study, search: Callable[[], None]) -> Concluded | None:
        """Conclude a searched study, or return the conclusion of another worker; None if another is working on it.

        If this worker dies, its claim goes to the next one. A worker that was stopped for so long that it lost its
        claim writes nothing.

        Args:
            search: Measures the known configurations of workers that died meanwhile.
        """
        shared, say = self.settings.storage is not None, self.output.say

        def claimed(claim: Claim) -> Concluded:
            if shared and others_running(self.trials):
                say("Waiting for the last trials of the other workers before the best trials are confirmed.")
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
            return claim_confirmation(self.confirmations, claimed, exclusive=not shared)
        except TakenOverError:
            say("Another worker confirms the best trials.")
            return None

    def conclude(self, study: Study, claim: Claim) -> Concluded:
        """Confirm the best trials, publish the result, export the winner, and store the printed text for all workers.

        Earlier confirmations on the same prompts are pooled with this one. The claim is checked after the
        measurement and again before the export.

        Raises:
            StudyError: No trial can be confirmed; outputs differ from plain decoding's in float32, so nothing is
                exported; or, once all is published, prompts of the confirmation failed.
        """
        folder, confirming = self.output.folder, study.confirming
        kept, measured_on = Concluded.last(self.confirmations), self._measured_on()
        pooled = kept if kept is not None and kept.measured_on == measured_on else None
        confirmation = self._confirm(study, pooled)
        confirmed, records, winner = confirmation.confirmed, confirmation.records, confirmation.winner
        claim.check()
        atomic_write(folder / CONFIRM, "".join(map(line_of, records)))
        float32 = confirming.in_float32(confirmed, records)
        shown = table(self.config.name, self.config.question, confirmation, study.predict(None), float32)
        data = confirming.data("confirm")
        texts, preparation = texts_of(data.prompts), data.workload.preparation
        shown.notes += preparation.notes()
        titles = {**{one.name: one.label for one in confirmed}, PLAIN: BASELINES[PLAIN]}
        found = [*sentences(confirmed, records), *study.sentences(winner)]
        found += (f"{titles.get(arm, arm)}: {cause}." for arm, cause in likely_causes(records).items())
        report = Report(
            tables={"confirm": shown},
            data={"confirm": shown},
            files=preparation.files(),
            sentences=found,
            answer=answer(confirmed, records),
            proof=proof_of(records, [one.name for one in confirmed], PLAIN),
            charts=charts_of(self.trials, self.settings, confirmation, texts),
            next_steps=next_steps(self.settings, self.config),
            page="confirm",
            parts=[
                prompts_shown(texts, records, titles, confirming.backend.tokenizer),
                pictures_of_winner(confirmation, study.data("confirm").prompts),
            ],
        )
        publish(report, folder, console=self.output.console)
        closing = [str(line) for part in report.whole() for line in part.closing()]
        wrong = divergence([*records, *(() if float32 is None else float32.records)])
        if wrong is not None:
            raise StudyError(f"{wrong}: this is not lossless, so nothing is exported")
        claim.check()  # it may have expired while pictures were drawn
        exported = Exported((), winner.over_plain.is_faster)
        if self.settings.export is not None:
            exporter = Exporter(self.settings.export, confirmation, study, self.output)
            exported = exporter.run(None if pooled is None else pooled.deployed)
        for sentence in exported.sentences:
            self.output.say(sentence)
        concluded = Concluded(
            self._digest(),
            measured_on,
            confirmation.confirmations,
            _text(shown, [*closing, *exported.sentences], self.output.console.width),
            exported.gain,
            report.answer,
            exported.deployed,
            worker(),
            str(folder.resolve()),
        )
        failed = failed_answers(records)
        if failed is None:
            claim.sign(CONCLUDED, asdict(concluded))  # before W&B, where it may die
        self._track(report, exported, confirmation)
        if failed is not None:
            reasons = f"the reasons are in {folder / CONFIRM}"
            raise StudyError(f"{failed}; the confirmation uses the other answers, and {reasons}")
        current_result().summary = summary_of(winner)
        return concluded

    def _confirm(self, study: Study, pooled: Concluded | None) -> Confirmation:
        trials, confirming = self._selected(pooled), study.confirming
        earlier = earlier_records(self.output.folder, pooled, confirming.samples)
        confirmations = 1 if pooled is None or not earlier else pooled.confirmations + 1
        prompts, candidates = len(confirming.data("confirm").prompts), counted(len(trials), "candidate")
        self.output.say(f"Confirming {candidates} on {counted(prompts, 'other prompt')}.")
        with StageBar(self.output.console) as bar:
            bar.stage(f"confirming {len(trials)} candidates on other prompts", prompts * confirming.samples)
            found = confirm(trials, confirming, bar.prompt, self._stage.of_each, earlier, confirmations)
        predicted = [
            replace(one, predicted=study.predict(one.attributes["resolved"])) for one in found.confirmed
        ]
        return replace(found, confirmed=predicted)

    def _selected(self, pooled: Concluded | None) -> list[FrozenTrial]:
        """Return the trials to confirm, with those that are deployed already."""
        trials = self._chosen()
        if not trials:
            why = "no trial was measured on every prompt within the constraints, so none can be confirmed"
            raise StudyError(why)
        deployed = None if pooled is None else pooled.deployed
        numbers = set() if deployed is None else {deployed.trial, deployed.tree}
        numbers -= {trial.number for trial in trials}
        return [*trials, *(trial for trial in confirmable(self.trials) if trial.number in numbers)]

    def _chosen(self) -> list[FrozenTrial]:
        most = self.trials.user_attrs.get(PLAN, {}).get("candidates")
        return select(self.trials, self._stage.best, self._stage.of_each)[:most]

    def _digest(self) -> str:
        trials = self._chosen()
        export = None if self.settings.export is None else self.settings.export.model_dump()
        return digest_of([self._measured_on(), [trial.user_attrs.get("digest") for trial in trials], export])

    def _measured_on(self) -> str:
        learn = None if self.settings.learn is None else self.settings.learn.model_dump()
        prompts = self.trials.user_attrs.get(PLAN, {}).get("confirmed")
        return digest_of([self.config.workload(), self._stage.data, learn, prompts])

    def _track(self, report: Report, exported: Exported, confirmation: Confirmation) -> None:
        name, config, folder = self.config.name, self.config, self.output.folder
        winner, objectives = confirmation.winner, list(self.settings.objectives)
        artifacts = [
            Attached(one.folder, name if number == 0 else f"{name}-{BEST_TREE}", one.kind)
            for number, one in enumerate(exported.written)
        ]
        setting = {**tracked_config(config), "method": method_of(config, winner)}
        with self.output.tracker.study(config=setting) as run:
            rows = [trial_row(one, objectives) for one in self.trials.get_trials(deepcopy=False)]
            run.table("trials", rows)
            for part in report.whole():
                track(part, folder, run)
            track(Report(artifacts=artifacts, summary=summary_of(winner)), folder, run)


def _text(shown: Table, sentences: Sequence[str], width: int) -> str:
    file = StringIO()
    console = Console(file=file, width=width, highlight=False, force_jupyter=False)
    console.print(shown.to_rich())
    for sentence in sentences:
        console.print(sentence, markup=False, soft_wrap=True)
    return file.getvalue()


def charts_of(
    study: optuna.Study, settings: Sweep, confirmation: Confirmation, texts: Mapping[str, str]
) -> dict[str, Mapping[str, Any]]:
    """Return the charts of a study's page: the confirmation prompt by prompt, and the search."""
    titles = {one.name: one.label for one in confirmation.confirmed}
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    choice = None if settings.confirm is None else settings.confirm.of_each
    searched = optuna.create_study(directions=study.directions)
    complete = study.get_trials(states=(TrialState.COMPLETE,))
    # Known configurations outside the space have no parameters.
    searched.add_trials([one for one in complete if one.params and "duplicate_of" not in one.user_attrs])
    try:
        shares = optuna.importance.get_param_importances(searched, target=lambda trial: trial.values[0])
    except (ValueError, RuntimeError, ZeroDivisionError):  # too few trials
        shares = {}
    found = {
        "confirmation": ratios_chart(confirmation.records, PLAIN, titles, texts),
        "search": search_chart(rows, choice),
        "importances": importances_chart(shares, len(searched.get_trials(deepcopy=False))),
    }
    return {name: chart for name, chart in found.items() if chart is not None}


def pictures_of_winner(confirmation: Confirmation, prompts: Sequence[Prompt]) -> Report:
    """Draw the winner's tree and its time line in the confirmation.

    If several sequences were decoded together, acceptances were not counted, so the winner decodes ``prompts`` again.
    """
    winner = confirmation.winner
    figures, fragments, files, drawing = dict[str, Any](), dict[str, str](), dict[str, str](), ""
    if "rank_paths" in winner.attributes:
        shape = TreeShape.from_rank_paths(winner.attributes["rank_paths"])
        rates = _acceptance_rates(confirmation, shape, prompts)
        figures["tree"] = draw_tree(
            shape, rates, title=f"{winner.label}: {winner.over_plain} over plain decoding"
        )
        drawing = tree_lines(shape, rates, f"The tree of {winner.label}")
        fragments["tree"] = folding_tree(shape.rank_paths[1:], rates, f"The tree of {winner.label}")
    if lines := confirmation.watch.time_lines:
        from specexp.scheduling.timeline import chrome_trace

        shown = {BASELINES[PLAIN]: lines[PLAIN], winner.label: lines[winner.name]}
        title = f"prompt {prompts[0].prompt_id}: {winner.over_plain} over plain decoding"
        figures["time_line"] = draw_time_line(shown, title, SECONDS_SHOWN)
        files["time_line.json"] = chrome_trace(shown)
    return Report(figures=figures, files=files, fragments=fragments, drawing=drawing)


def _acceptance_rates(
    confirmation: Confirmation, shape: TreeShape, prompts: Sequence[Prompt]
) -> dict[RankPath, float]:
    winner = confirmation.winner
    counter = confirmation.watch.acceptance_counts.get(winner.name)
    if counter is None:
        return {}
    if not counter.steps:
        for prompt in prompts:
            confirmation.arms[winner.name].decode_observed(prompt, 0, counter.observe)
    return {path: counter.counts[path] / counter.steps for path in shape.rank_paths[1:]}
