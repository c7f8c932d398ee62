"""The end of a sweep: the best few measured again on other prompts, held against what was known, and exported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from io import StringIO
from typing import TYPE_CHECKING

from optuna import Study
from optuna.trial import FrozenTrial
from rich.console import Console

from specexp.bench.equality import divergence
from specexp.bench.page.sections import prompts_shown, texts_of
from specexp.bench.progress import StageBar
from specexp.bench.publish import Attached, Report, publish, track
from specexp.bench.report import failed_answers
from specexp.config.sweep import Confirm, Sweep
from specexp.config.told import told
from specexp.sweep.backend import StudyBackend
from specexp.sweep.concluded import CONCLUDED_BY, CONFIRM, Concluded, earlier_records, keep_records
from specexp.sweep.confirm import Confirmation, confirm, select
from specexp.sweep.confirmation_table import answer, sentences, table
from specexp.sweep.error import StudyError
from specexp.sweep.export import BEST_TREE, Exported, Exporter
from specexp.sweep.output import StudyOutput
from specexp.sweep.shown import charts_of, onward, titles_of, tokenizer_of
from specexp.sweep.study import digest_of
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.tracked_trials import method_of, setting_of, summary_of
from specexp.sweep.trials import confirmable, trial_row
from specexp.sweep.winner import pictures_of_winner
from specexp.sweep.worker import worker

if TYPE_CHECKING:
    from specexp.bench.record import PromptRecord
    from specexp.bench.table import Table


def concluded(
    study: Study, settings: Sweep, study_config: StudyConfig, output: StudyOutput
) -> Concluded | None:
    """The end of a study that came to one, where nothing has changed since; None where there is something to measure.

    Args:
        study: The study, as it lies in its storage.
        settings: Its sweep section.
        study_config: The experiment.
        output: Where its results are.

    Raises:
        StudyError: What it keeps cannot be read.
    """
    kept = Concluded.load(output.folder)
    same = kept is not None and kept.of == digest_of_end(study, settings, study_config)
    return kept if same and settings.confirm is not None and not settings.confirm.again else None


def conclude(
    study: Study,
    settings: Sweep,
    backend: StudyBackend,
    output: StudyOutput,
    check_mine: Callable[[], None] = lambda: None,
) -> Concluded:
    """Confirm the best trials of a searched study, export the winner, publish both, and keep what was said.

    What was confirmed before on the same prompts is pooled with it.

    Args:
        study: The study, searched.
        settings: Its sweep section, with a confirmation.
        backend: Who answered the search.
        output: Where the results go.
        check_mine: Called once all is measured, before anything is written, and again before the export; what it
            raises is raised here.

    Raises:
        StudyError: No trial can be confirmed; outputs differ from plain decoding's in float32, and nothing is exported;
            or, once all is published, prompts of the confirmation failed.
        OSError: Something cannot be written.
    """
    kept = Concluded.load(output.folder)
    measured_on = _measured_on(study, settings, backend.study_config)
    earlier = earlier_records(output.folder, kept, measured_on, backend.confirming.samples)
    pooled = None if kept is None or kept.measured_on != measured_on else kept
    confirmation = _confirm(study, settings, backend, output, pooled, earlier)
    check_mine()
    keep_records(output.folder, kept, measured_on, confirmation.records)
    study_config = backend.study_config
    float32 = backend.confirming.in_float32(confirmation.confirmed, confirmation.records)
    shown = table(
        study_config.name,
        study_config.question,
        confirmation.confirmed,
        confirmation.records,
        backend.predict(None),
        confirmations=confirmation.confirmations,
        warm=any(arm.parts.keeps_learning for arm in confirmation.arms.values()),
        float32=float32,
    )
    texts = texts_of(backend.confirming.data("confirm").prompts)
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
        answer=answer(confirmation.confirmed, confirmation.records),
        charts=charts_of(study, settings, confirmation, texts),
        onward=onward(settings, study_config),
        page="confirm",
        parts=[
            prompts_shown(texts, confirmation.records, titles_of(confirmation), tokenizer_of(backend)),
            pictures_of_winner(confirmation, backend.data("confirm").prompts),
        ],
    )
    publish(report, output.folder, console=output.console)
    wrong = divergence([*confirmation.records, *(() if float32 is None else float32.records)])
    if wrong is not None:
        raise StudyError(f"{wrong}: this is not lossless, so nothing is exported")
    check_mine()  # pictures took a while
    exported = Exported((), confirmation.winner.over_ar.is_faster)
    if settings.export is not None:
        exporter = Exporter(settings.export, study, confirmation, backend, output)
        exported = exporter.run(None if pooled is None else pooled.deployed)
    for sentence in exported.said:
        output.say(sentence)
    failed = failed_answers(confirmation.records)
    found = Concluded(
        digest_of_end(study, settings, study_config),
        measured_on,
        confirmation.confirmations,
        _text(shown, [*said, *exported.said], output.console.width),
        exported.gain,
        report.answer,
        exported.deployed,
    )
    if failed is None:  # at once: who dies while it is tracked has exported
        where = {"of": found.of, "worker": worker(), "folder": str(output.folder.resolve())}
        study.set_user_attr(CONCLUDED_BY, where)
        found.save(output.folder)
    _track(study, settings, report, exported, confirmation, backend, output)
    if failed is not None:
        raise StudyError(
            f"{failed}; the confirmation is of the others, and {output.folder / CONFIRM} says why for each"
        )
    told().summary = summary_of(confirmation.winner)
    return found


def digest_of_end(study: Study, settings: Sweep, study_config: StudyConfig) -> str:
    """Digest of what the end of a study depends on: what was measured, and what is done with it."""
    assert settings.confirm is not None
    trials = select(study, settings.confirm.best, settings.confirm.of_each)
    export = None if settings.export is None else asdict(settings.export)
    return digest_of(
        [
            _measured_on(study, settings, study_config),
            [trial.user_attrs.get("digest") for trial in trials],
            export,
        ]
    )


def _measured_on(study: Study, settings: Sweep, study_config: StudyConfig) -> str:
    """Digest of what confirmations share that can be pooled; a study that started over has trials of its own."""
    assert settings.confirm is not None
    learn = None if settings.learn is None else asdict(settings.learn)
    begun = study.get_trials(deepcopy=False)[0].datetime_start
    return digest_of([study_config.workload(), settings.confirm.data, learn, str(begun)])


def _text(shown: Table, said: Sequence[object], width: int) -> str:
    """The table and the sentences as they are printed, without colours."""
    console = Console(file=StringIO(), width=width, highlight=False, force_jupyter=False)
    console.print(shown.to_rich())
    for sentence in said:
        console.print(str(sentence), markup=False, soft_wrap=True)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def _confirm(
    study: Study,
    settings: Sweep,
    backend: StudyBackend,
    output: StudyOutput,
    kept: Concluded | None,
    earlier: Sequence[PromptRecord],
) -> Confirmation:
    stage = settings.confirm
    assert stage is not None
    trials = _trials(study, stage, kept)
    confirming = backend.confirming
    confirmations = 1 if kept is None or not earlier else kept.confirmations + 1
    with StageBar(output.console) as bar:
        prompts = len(confirming.data("confirm").prompts)
        bar.stage(f"confirming {len(trials)} candidates on other prompts", prompts * confirming.samples)
        found = confirm(
            trials,
            confirming,
            bar.prompt,
            stage.of_each,
            earlier=earlier,
            confirmations=confirmations,
        )
    predicted = [
        replace(one, predicted=backend.predict(one.attributes["resolved"])) for one in found.confirmed
    ]
    return replace(found, confirmed=predicted)


def _trials(study: Study, stage: Confirm, kept: Concluded | None) -> list[FrozenTrial]:
    """What is confirmed: the best of the search, and what is deployed already."""
    trials = select(study, stage.best, stage.of_each)
    if not trials:
        raise StudyError(
            "no trial was measured on every prompt within the constraints, so none can be confirmed"
        )
    deployed = () if kept is None or kept.deployed is None else (kept.deployed.trial, kept.deployed.tree)
    chosen = {trial.number for trial in trials}
    return [
        *trials,
        *(trial for trial in confirmable(study) if trial.number in deployed and trial.number not in chosen),
    ]


def _track(
    study: Study,
    settings: Sweep,
    report: Report,
    exported: Exported,
    confirmation: Confirmation,
    backend: StudyBackend,
    output: StudyOutput,
) -> None:
    name, config = backend.study_config.name, backend.study_config.config
    winner = confirmation.winner
    rows = [trial_row(trial, list(settings.objectives)) for trial in study.get_trials(deepcopy=False)]
    artifacts = [
        Attached(one.folder, name if number == 0 else f"{name}-{BEST_TREE}", one.kind)
        for number, one in enumerate(exported.written)
    ]
    with output.tracker.study(
        config={**config.to_dict(), **setting_of(config), "method": method_of(config, winner)}
    ) as run:
        run.table("trials", rows)
        for part in report.whole():
            track(part, output.folder, run)
        for path in sorted((output.folder / "plots").glob("*.png")):
            run.picture(path.stem, path)
        track(Report(artifacts=artifacts, summary=summary_of(winner)), output.folder, run)
