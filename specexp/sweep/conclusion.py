"""The end of a sweep: the best few measured again on other prompts, held against what was known, and exported."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from optuna import Study

from specexp.bench.failures import failed_answers
from specexp.bench.progress import StageBar
from specexp.bench.publish import Attached, Report, publish, track
from specexp.config.sweep import Sweep
from specexp.sweep.backend import StudyBackend
from specexp.sweep.confirm import Confirmation, confirm, select
from specexp.sweep.confirmation_table import sentences, table
from specexp.sweep.error import StudyError
from specexp.sweep.export import export_best
from specexp.sweep.output import StudyOutput
from specexp.sweep.tracked_trials import setting_of, summary_of
from specexp.sweep.trials import confirmable, speedups_of, trial_row
from specexp.sweep.winner import pictures_of_winner


def conclude(study: Study, settings: Sweep, backend: StudyBackend, output: StudyOutput) -> None:
    """Confirm the best trials of a searched study, export the winner, and publish both.

    Args:
        study: The study, searched.
        settings: Its sweep section, with a confirmation.
        backend: Who answered the search.
        output: Where the results go.

    Raises:
        StudyError: No trial can be confirmed; or, once all is published, prompts of the confirmation failed.
        OSError: Something cannot be written.
    """
    confirmation = _confirm(study, settings, backend, output)
    study_config = backend.study_config
    shown = table(
        study_config.name,
        study_config.question,
        confirmation.confirmed,
        confirmation.records,
        backend.predict(None),
    )
    preparation = backend.confirming.data("confirm").workload.preparation
    shown.notes += preparation.notes()
    said = [
        *sentences(confirmation.confirmed, confirmation.records),
        *backend.sentences(confirmation.winner),
    ]
    report = Report(
        tables={"confirm": shown},
        data={"confirm": shown},
        files=preparation.files(),
        sentences=said,
        page="confirm",
        parts=[
            pictures_of_winner(confirmation, backend.data("confirm").prompts),
            *_yardstick(study, confirmation, backend),
        ],
    )
    publish(report, output.folder, console=output.console)
    artifacts = []
    if settings.export is not None:
        folder = export_best(settings.export, confirmation, backend, output)
        if folder is not None:
            artifacts.append(Attached(folder, study_config.name, settings.export.kind))
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    setting = {**study_config.config.to_dict(), **setting_of(study_config.config)}
    with output.tracker.study(config=setting) as run:
        run.table("trials", [{**row, **speedups_of(row)} for row in rows])
        for part in report.whole():
            track(part, run)
        for path in sorted((output.folder / "plots").glob("*.png")):
            run.picture(path.stem, path)
        track(Report(artifacts=artifacts, summary=summary_of(confirmation.winner)), run)
    failed = failed_answers(confirmation.records)
    if failed is not None:
        raise StudyError(
            f"{failed}; the confirmation is of the others, and {records_of(output)} says why for each"
        )


def records_of(output: StudyOutput) -> Path:
    """File of the confirmation's records."""
    return output.folder / "confirm.jsonl"


def _confirm(study: Study, settings: Sweep, backend: StudyBackend, output: StudyOutput) -> Confirmation:
    stage = settings.confirm
    assert stage is not None
    trials = select(study, stage.best, stage.of_each)
    if not trials:
        raise StudyError(
            "no trial was measured on every prompt within the constraints, so none can be confirmed"
        )
    confirming = backend.confirming
    with StageBar(output.console) as bar:
        prompts = len(confirming.data("confirm").prompts)
        bar.stage(f"confirming {len(trials)} candidates on other prompts", prompts * confirming.samples)
        found = confirm(trials, confirming, records_of(output), bar.prompt, stage.of_each)
    searched = {trial.number: trial.user_attrs["metrics"] for trial in trials}
    predicted = [
        replace(one, predicted=backend.predicted(one.attributes["resolved"], searched[one.trial]))
        for one in found.confirmed
    ]
    return replace(found, confirmed=predicted)


def _yardstick(study: Study, confirmation: Confirmation, backend: StudyBackend) -> list[Report]:
    """How near the winner comes to the best that is known without a search."""
    goodputs = {
        trial.number: float(trial.user_attrs["metrics"]["modelled_tokens_per_second"])
        for trial in confirmable(study)
        if "modelled_tokens_per_second" in trial.user_attrs["metrics"]
    }
    found = backend.yardstick(confirmation.winner, goodputs)
    if found is None:
        return []
    said, picture = found
    return [Report(sentences=said, page="yardstick", figures={"goodput_budget": picture})]
