"""The conclusion of a study: confirms the best trials, publishes and exports the result, and tracks it in W&B."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from optuna.trial import TrialState
from pydantic import TypeAdapter

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.kinds.compositions import CONFIRMED
from specexp.artifacts.store import BEST, BEST_TREE
from specexp.base.messages import counted
from specexp.bench.equality import divergence, proof_of
from specexp.bench.record import line_of
from specexp.bench.signatures import likely_causes
from specexp.bench.statistics import Speedup
from specexp.bench.verdict import SpeedVerdict, left_out_sentence, prompts_needed, verdict_of
from specexp.config.command import current_result
from specexp.config.next_step import (
    artifact_again,
    command_line,
    experiment_again,
    model_options,
    more_prompts,
    python_arguments,
    trust_options,
)
from specexp.config.sweep import Categorical, name_of
from specexp.core.parts import Parts
from specexp.drafters.token_drafter import drafts_from_tokens
from specexp.engines.settings import VllmSettings, engines_note
from specexp.report.comparison import category_table, failed_answers, first_token_sentence, kinds_sentence
from specexp.report.progress import StageBar
from specexp.report.publish import Attached, Report, publish, track, tracked_config
from specexp.report.sections import prompts_shown, texts_of
from specexp.sweep.confirmation import BASELINES, COMMON, Confirmation, answer, confirm, sentences, table
from specexp.sweep.output import Deployed, Exported, Exporter, by_load, confirmed_settings, packages_of, summary_of
from specexp.sweep.page import charts_of, pictures_of_winner, text_of
from specexp.sweep.plan import StudyPlan
from specexp.sweep.prepared import PreparedStudy, chosen, result_digest
from specexp.sweep.study_config import StudyError
from specexp.sweep.trials import Confirmed, distinct_finished, trial_row
from specexp.tracking.names import PLAIN, STUDY

CONFIRM = "confirm.jsonl"
LOADS = "loads.json"
CONCLUDED = "concluded"
"""Name of the attribute that holds the study's result."""


@dataclass(frozen=True)
class StudyResult:
    """The result of a study, stored with its trials so that a later process can read it."""

    of: str  # digest of the study, its confirmed trials, and the export settings
    text: str  # table and sentences, as they were printed
    gain: bool  # whether the interval shows that the deployed composition is faster than plain decoding
    answer: str
    deployed: Deployed | None  # None if nothing was exported
    worker: str  # empty if one process had the study to itself
    folder: str  # path of the worker's results on its machine
    limits: Sequence[str] = ()  # sentences that limit the answer
    next: str = ""  # the next command, which follows from the verdict

    @staticmethod
    def read(kept: Any) -> StudyResult | None:
        """Return a result that was stored as JSON; None if there is none."""
        return None if kept is None else TypeAdapter(StudyResult).validate_python(kept)


def conclude(
    study: PreparedStudy, check: Callable[[], None], store: Callable[[StudyResult], None], worker: str = ""
) -> StudyResult:
    """Confirm the best trials on other prompts, publish and export the result, and store it for later processes.

    Args:
        check: Called after the measurement and again before the export; raises an exception if another worker has
            taken over the confirmation.
        worker: Name of this process among the workers of the study.

    Raises:
        StudyError: No trial can be confirmed, or outputs differ from plain decoding's in float32, so nothing is
            exported. Also raised, after publishing, if prompts of the confirmation failed.
    """
    export = study.settings.export
    confirmation = _confirm(study)
    check()
    exporter = None if export is None else Exporter(export, confirmation, study.bench, study.command)
    best = None if exporter is None else exporter.best
    report = _publish(study, confirmation, best)
    check()  # the claim may have expired while pictures were drawn
    exported = Exported() if exporter is None else exporter.run()
    for sentence in exported.sentences:
        study.say(sentence)
    closing = [str(line) for part in report.whole() for line in part.closing()]
    gain = confirmation.winner.over_plain.is_faster
    result = StudyResult(
        of=result_digest(study.config.workload(), study.settings, study.trials),
        text=text_of(report.tables["confirm"], [*closing, *exported.sentences], study.console.width),
        gain=gain if exported.now is None else exported.now.trial is not None,
        answer=report.answer,
        deployed=exported.now,
        worker=worker,
        folder=str(study.config.folder.resolve()),
        limits=report.limits,
        next=next(iter(report.next_steps.values()), ""),
    )
    failed = failed_answers(confirmation.records)
    if failed is None:
        store(result)  # before the W&B upload, during which the process may die
    _track(study, report, exported, confirmation)
    if failed is not None:
        reasons = f"the reasons are in {study.config.folder / CONFIRM}"
        raise StudyError(f"{failed}; the confirmation uses the other answers, and {reasons}")
    current_result().summary = summary_of(confirmation.winner)
    return result


def _confirm(study: PreparedStudy) -> Confirmation:
    """Measure the best few trials on other prompts, and add predictions if the search was replayed."""
    settings = study.settings.confirm
    assert settings is not None
    bench = study.bench.confirming
    trials = chosen(study.settings, study.trials)
    if not trials:
        raise StudyError("no trial was measured on every prompt within the constraints, so none can be confirmed")
    prompts = len(bench.data("confirm").prompts)
    until = study.ends.confirmation
    planned = study.plan["confirmed"]
    least = planned if until is None else min(planned, COMMON)
    at_least = "at least " if until is not None and least < prompts else ""
    study.say(f"Confirming {counted(len(trials), 'candidate')} on {at_least}{counted(least, 'other prompt')}.")
    with StageBar(study.console) as bar:
        bar.stage(f"confirming {len(trials)} candidates on other prompts", prompts * bench.samples)
        found = confirm(trials, bench, settings, bar.prompt, least, until)
    predicted = [replace(one, predicted=study.bench.predict(one.attributes["resolved"])) for one in found.confirmed]
    return replace(found, confirmed=predicted)


def _publish(study: PreparedStudy, confirmation: Confirmation, best: Confirmed | None) -> Report:
    """Write and print the report; raises StudyError if outputs differ from plain decoding's in float32.

    ``best`` is the candidate that is exported with the alias ``best``; None if there is none.
    """
    config = study.config
    trials = study.trials
    bench = study.bench.confirming
    folder = study.config.folder
    confirmed, records, winner = confirmation.confirmed, confirmation.records, confirmation.winner
    atomic_write(folder / CONFIRM, "".join(map(line_of, records)))
    float32 = bench.in_float32(confirmed, records)
    title = config.question or f"{config.name}: confirmed on prompts the search did not see"
    shown = table(title, confirmation, study.bench.predict(None), float32)
    data = bench.data("confirm")
    kinds = category_table(records)
    texts = texts_of(data.prompts)
    preparation = data.workload.preparation
    settings = confirmed_settings(config.specs, confirmation)
    shown.notes += [engines_note({one.label: one.parts for one in settings})] * bool(settings)
    shown.notes += preparation.notes()
    titles = {**{one.name: one.label for one in confirmed}, PLAIN: BASELINES[PLAIN]}
    found = [*sentences(confirmation), *study.bench.sentences(winner)]
    found += (f"{titles.get(arm, arm)}: {cause}." for arm, cause in likely_causes(records).items())
    count, unmeasured = _methods(study)
    of_methods = f" Measured: {count - len(unmeasured)} of {counted(count, 'method')}." if count else ""
    limited = [*filter(None, [*(left_out_sentence(one.label, one.over_plain) for one in confirmed), study.too_few])]
    timed_out = trials.user_attrs.get("timed_out")
    if unmeasured:
        helps = timed_out and not all(one.endswith("(failed)") for one in unmeasured)
        more = "; more --minutes may measure more" if helps else ""
        limited.append(f"Not measured: {', '.join(unmeasured)}{more}.")
    setting = {part: spec for part, spec in winner.attributes["resolved"].items() if spec is not None}
    found.insert(0, f"The setting of {winner.label}: {name_of(setting)}.")
    least = config.least_gain
    if line := kinds_sentence(records, winner.name, winner.label, PLAIN, least, len(confirmed)):
        limited.append(line)
    limited += filter(None, (first_token_sentence(records, one.name, one.label) for one in confirmed))
    if timed_out:
        of = f"{len(distinct_finished(trials))} of {counted(study.settings.n_trials, 'trial')}"
        limited.append(f"The search measured {of} in its time; with more --minutes it may find a faster one.")
    if forms := by_load(config, confirmation):
        rows = forms["specexp"]["init_args"]["nodes"].items()
        lengths = ", ".join(f"{one} from {counted(first, 'request')}" for first, one in rows)
        found.append(f"Draft length by load: {lengths}. {LOADS} has it in the forms of engines.")
    report = Report(
        tables={"confirm": shown} | ({} if kinds is None else {"categories": kinds}),
        data={"confirm": shown},
        files={
            **preparation.files(),
            CONFIRMED: json.dumps([asdict(one) for one in settings], indent=1) + "\n",
            **({LOADS: json.dumps(forms, indent=1) + "\n"} if forms else {}),
        },
        sentences=found,
        answer=answer(confirmation, least) + of_methods,
        limits=limited,
        proof=proof_of(records, [one.name for one in confirmed], PLAIN),
        charts=charts_of(trials, study.settings, confirmation, texts),
        next_steps=_next_steps(study, confirmation, best),
        page="confirm",
        parts=[
            prompts_shown(texts, records, titles, bench.backend.tokenizer),
            pictures_of_winner(confirmation, study.bench.data("confirm").prompts),
        ],
    )
    publish(report, folder, console=study.console)
    wrong = divergence([*records, *(() if float32 is None else float32.records)])
    if wrong is not None:
        raise StudyError(f"{wrong}: this is not lossless, so nothing is exported")
    return report


def _methods(study: PreparedStudy) -> tuple[int, list[str]]:
    """Return the number of methods in the space, and those that no trial measured."""
    settings, trials = study.settings, study.trials
    key = "" if settings.confirm is None else settings.confirm.of_each or ""
    entry = settings.space.get(key)
    if not isinstance(entry, Categorical):
        return 0, []
    measured = {trial.params.get(key) for trial in distinct_finished(trials)}
    failed = {one.params.get(key) for one in trials.trials if one.state is TrialState.FAIL}
    left = [label for label in entry.by_label if label not in measured]
    return len(entry.by_label), [f"{one} (failed)" if one in failed else str(one) for one in left]


def _next_steps(study: PreparedStudy, confirmation: Confirmation, best: Confirmed | None) -> dict[str, str]:
    """Return commands to suggest after a verdict, keyed by purpose. ``best`` is as in :func:`_publish`."""
    config, export, speedup = study.config, study.settings.export, confirmation.winner.over_plain
    verdict = verdict_of(speedup, config.least_gain)
    if verdict is SpeedVerdict.CANNOT_TELL:
        return _more_prompts(study, speedup)
    if verdict is SpeedVerdict.NOT_FASTER and not config.of_engine:
        return {"see why it is not faster": command_line("doctor", why="costs of passes on this machine")}
    if export is None or best is None:
        return {}
    folder = f"{export.to}/{BEST}"
    if config.of_engine:
        form = config.engine.exported_as
        return {"write the engine's own settings": command_line("export", folder, "--to", form)}
    packages = packages_of(config.specs, best.attributes)
    trusted = f", trust={packages!r}" if packages else ""
    again = experiment_again(config.invocation, artifact_again(folder, packages))
    return {
        "prove that its output is unchanged": command_line("verify", *again),
        "serve it": command_line(
            "serve", folder, *model_options(config.pair), *trust_options(packages), "--port", 8000
        ),
        "use it in Python": (
            f"pair = specexp.load_pair({python_arguments(config.pair)}); "
            f"decoder = specexp.load_artifact({folder!r}{trusted}).decoder(pair.target, pair.draft)"
        ),
        "carry it to an engine": command_line("verify", folder, "--for", "vllm", why="or another engine")
        if _runs_in_vllm(confirmation.arms[best.name].parts)
        else command_line("export", "--help", why="lists the engines"),
    }


def _runs_in_vllm(parts: Parts) -> bool:
    """Return whether vLLM decodes with the parts, or with the best chain of their tree."""
    if parts.drafter is None or parts.builder is None or parts.builder.rank_paths is None:
        return False
    return drafts_from_tokens(parts.drafter) or type(parts.drafter).__name__ in VllmSettings.drafters


def _more_prompts(study: PreparedStudy, speedup: Speedup) -> dict[str, str]:
    """Return the command that measures more prompts, and allows the time for them."""
    config, settings = study.config, study.settings
    key = "sweep.confirm.data.max_prompts"
    needed = prompts_needed(speedup, config.least_gain)
    seconds = study.bench.reference.per_prompt
    # within a time limit, fewer prompts may have been confirmed than the set has
    data = study.bench.confirming.data("confirm")
    workload, taken = data.workload, data.workload.preparation.taken
    cut = len(data.prompts) < taken
    most = needed
    if needed and (cut or not workload.exhausted):
        available = workload.available()
        needed = min(needed, available)
        most = min(max(needed, workload.max_prompts or 0), available)  # the file's number may only have lacked time
    longer = dict[str, float]()
    if settings.minutes is not None and needed and seconds:
        plan = StudyPlan.of(settings, study.bench, 0)
        longer = {"sweep.minutes": max(settings.minutes, plan.minutes_for(needed, seconds))}
    exhausted = workload.exhausted and not cut
    return more_prompts(config.invocation, "sweep", key, most, exhausted=exhausted, changed=longer)


def method_of(specs: Mapping[str, Any], winner: Confirmed) -> str:
    """Return the method by which W&B groups studies: the winner's choice, or else its class of drafter or engine."""
    part = specs["drafter"] or specs["engine"] or {"class_path": "plain"}
    return winner.choice or str(part["class_path"]).rpartition(".")[2]


def _track(study: PreparedStudy, report: Report, exported: Exported, confirmation: Confirmation) -> None:
    name, config, winner = study.config.name, study.config, confirmation.winner
    faster = exported.now is not None and exported.now.trial is not None
    title, aliases = (name, ("latest", "best")) if faster else (f"{name}-{BEST_TREE}", ("latest",))
    artifacts = [Attached(one.folder, title, one.kind, aliases) for one in exported.written]
    setting = {**tracked_config(config.values), "method": method_of(config.specs, winner)}
    with study.tracker.run(name, job_type=STUDY, config=setting) as run:
        objectives = list(study.settings.objectives)
        run.table("trials", [trial_row(one, objectives) for one in study.trials.get_trials(deepcopy=False)])
        for part in report.whole():
            track(part, config.folder, run)
        track(Report(artifacts=artifacts, summary=summary_of(winner)), config.folder, run)
