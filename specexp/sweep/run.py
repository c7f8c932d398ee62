"""One sweep in one process: plain decoding, acceptance counts, search, confirmation and export."""

from __future__ import annotations

import json
import shlex
import sys
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from time import time

import optuna
from optuna import get_all_study_names
from optuna.exceptions import StorageInternalError
from optuna.storages import BaseStorage
from optuna.trial import FrozenTrial, TrialState
from pydantic import TypeAdapter
from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from specexp.artifacts.atomic_write import atomic_write
from specexp.artifacts.kinds.compositions import CONFIRMED
from specexp.base.messages import counted, first_line
from specexp.base.start import masked
from specexp.bench.equality import divergence, proof_of
from specexp.bench.experiment import use_threads, warn_of_load
from specexp.bench.record import line_of
from specexp.bench.signatures import likely_causes
from specexp.bench.statistics import Speedup
from specexp.bench.trainer import quiet_libraries
from specexp.bench.verdict import prompts_needed, verdict_of
from specexp.config import ConfigError, save_resolved
from specexp.config.command import current_result
from specexp.config.next_step import more_prompts
from specexp.config.sweep import Categorical, Sweep, name_of
from specexp.engines.settings import engines_note
from specexp.report.comparison import busy_machine, category_table, failed_answers, kinds_sentence
from specexp.report.progress import StageBar
from specexp.report.publish import (
    PAGE,
    Attached,
    Report,
    publish,
    sole_writer,
    track,
    tracked_config,
    tracker_of,
)
from specexp.report.sections import prompts_shown, texts_of
from specexp.sweep.confirmation import (
    BASELINES,
    Confirmation,
    answer,
    confirm,
    limits,
    select,
    sentences,
    table,
)
from specexp.sweep.output import (
    BEST_TREE,
    Deployed,
    Exported,
    Exporter,
    by_load,
    confirmed_settings,
    method_of,
    next_steps,
    summary_of,
    track_trial,
)
from specexp.sweep.page import charts_of, pictures_of_winner, text_of
from specexp.sweep.plan import AFTER_SECONDS, PLAN, SEARCHING, TOO_FEW, StudyPlan
from specexp.sweep.preparation import check_prompts, left_out_lines, open_models, without_impossible
from specexp.sweep.sampler import check_sampler
from specexp.sweep.search import StudySearch, open_study
from specexp.sweep.space import directions_of
from specexp.sweep.storage import check_journal, open_storage, retry_lost
from specexp.sweep.study_config import StudyConfig, StudyError, digest_of
from specexp.sweep.trials import best_line, distinct_finished, trial_line, trial_row, write_trials
from specexp.sweep.workers import (
    CONCLUDED,
    Claim,
    known_waiting,
    open_confirmations,
    others_running,
    requeue,
    sign_in,
    worker,
)
from specexp.tracking.names import PLAIN

CONFIRM, LOADS = "confirm.jsonl", "loads.json"
WIDTH = 120
"""Width of tables in redirected output. At 80 columns their lines would wrap."""


@dataclass(frozen=True)
class StudyResult:
    """The result of a study, stored with the claim to its confirmation so that all workers can read it."""

    of: str  # digest of the study, its confirmed trials, and the export settings
    text: str  # table and sentences, as they were printed
    gain: bool  # whether the interval shows that the deployed composition is faster than plain decoding
    answer: str
    deployed: Deployed | None  # None if nothing was exported
    worker: str
    folder: str  # path of the worker's results on its machine
    limits: Sequence[str] = ()  # sentences that limit the answer
    next: str = ""  # the next command, which follows from the verdict

    @staticmethod
    def last(confirmations: optuna.Study) -> StudyResult | None:
        """Return the last result of a study; None if the study has not ended."""
        ends = [one.user_attrs.get(CONCLUDED) for one in confirmations.get_trials(deepcopy=False)]
        kept = next(filter(None, reversed(ends)), None)
        return None if kept is None else TypeAdapter(StudyResult).validate_python(kept)


class SweepRun:
    """A sweep in one process. Without a database, the study belongs to this process alone (``exclusive``)."""

    def __init__(self, config: StudyConfig, settings: Sweep, command: str) -> None:
        self.config, self.settings, self.command = config, settings, command
        self.console = Console(highlight=False, force_jupyter=False)
        if not self.console.is_terminal:
            self.console.width = WIDTH
        self.exclusive = settings.storage is None
        self._started = time()
        self._too_few = ""  # the forecast, if the study takes longer than its time limit
        self._until: float | None = None  # when the search ends, in seconds since the epoch

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        self.console.print(sentence, highlight=False, soft_wrap=True)

    def run(self) -> StudyResult | None:
        """Run or resume the study, or print the result of one that has ended.

        Returns the result, or None if another worker is confirming the study or confirmation is off. Raises StudyError
        if the study cannot continue, and ConfigError for a mistake in its settings.
        """
        with self._opened():
            ended = self._ended()
            if ended is not None:
                self.console.print(ended.text, end="", markup=False, highlight=False, soft_wrap=True)
                self.say(f"Study {self.config.name} has ended, so nothing was measured.")
            else:
                self._prepare()
                self._search()
                if self.settings.confirm is None:
                    self.say(
                        "Nothing is confirmed or exported, because the file has no sweep.confirm: with it, the best "
                        "trials are measured again on other prompts."
                    )
                else:
                    ended = self._conclude_alone() if self.exclusive else self._conclude_in_turn()
                if hint := self.tracker.sync_hint():
                    self.say(f"W&B: {hint}")
            self._report(ended)
            return ended

    @contextmanager
    def _opened(self) -> Iterator[None]:
        """Lock the study's folder if there is no database, and convert storage errors to StudyErrors."""
        quiet_libraries()
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        if not sys.warnoptions:
            warnings.simplefilter("ignore")
        try:
            check_sampler(self.settings, self.config.checker)
            self.tracker = tracker_of(self.config, self.config.name, self.config.folder)
            shares = "wait for it, or give --storage the URL of a database, which several workers can share"
            with sole_writer(self.config.folder, shares) if self.exclusive else nullcontext():
                yield
        except (StorageInternalError, SQLAlchemyError) as error:
            why = first_line(error.__cause__ or error)
            raise StudyError(f"storage {masked(str(self.settings.storage))!r} failed: {why}") from error
        except ValueError as error:
            raise ConfigError(str(error)) from error

    def _ended(self) -> StudyResult | None:
        """Return the result of a study that has ended, or None if a stage is incomplete. No models are loaded."""
        journal = self.config.folder / "journal.log"
        if self.exclusive and (damage := check_journal(journal)):
            self.say(damage)
        if self.settings.confirm is None or (self.exclusive and not journal.exists()):
            return None
        try:
            names = retry_lost(lambda: get_all_study_names(self._storage))
        except (StorageInternalError, SQLAlchemyError):
            return None  # the tables of another program, which ``open_study`` reports
        if self.config.name not in names:
            return None
        self._open()  # before models are loaded, so that another study of this name is refused at once
        done = self.trials.user_attrs.get("exhausted") or (
            len(distinct_finished(self.trials)) >= self.settings.n_trials
            or self.trials.user_attrs.get("timed_out", 0) == self.settings.minutes
        )
        if not done or others_running(self.trials) or known_waiting(self.trials):
            return None
        return self._unchanged()

    @cached_property
    def _storage(self) -> BaseStorage:
        return open_storage(self.settings.storage, self.config.folder, requeue)

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
        # Nothing has been written so far, so a mistake in models, prompts or parts leaves nothing behind.
        if not hasattr(self, "trials"):
            self._open()
        study.check_rendered(self.trials)
        self.settings = possible  # only now, because the whole space identifies the study
        save_resolved(self.config, self.config.folder, shlex.split(self.command))
        with StageBar(self.console) as bar:
            study.tick = bar.prompt
            for sentence in left_out_lines(impossible):
                self.say(sentence)
            stated = {"device": self.config.clock, "placement": study.device}
            again = sign_in(self.trials, self.settings, exclusive=self.exclusive, stated=stated)
            done = len(distinct_finished(self.trials))
            if done or again:
                of = f"{done} of {self.settings.n_trials} trials are finished"
                repeated = f"; {counted(again, 'interrupted trial')} will be repeated" if again else ""
                self.say(f"Continuing study {self.config.name}: {of}{repeated}.")
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
                self.say(busy)

    def _plan(self, seconds: float | None, done: int) -> None:
        """Fit the study into ``sweep.minutes``, print its expected duration, and store the plan for other processes.

        Args:
            seconds: Plain decoding's seconds per prompt. If None, they are modelled, and only the search is limited.
            done: Number of finished trials; if there are any, the prompts of a trial are not reduced.
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
            forecast = plan.forecast(seconds, minutes)
            self.say(forecast)
            self._too_few = forecast if TOO_FEW in forecast else ""

    def _search(self) -> None:
        """Run the remaining trials, and write all trials to ``trials.csv``."""
        trials, study, objectives = self.trials, self.study, list(self.settings.objectives)
        setting = tracked_config(self.config)

        def after(trial: FrozenTrial) -> None:
            if study.tracks_trials:
                track_trial(self.tracker, trial, setting, objectives)
            bar.show(Text(best_line(trials, objectives[0])))
            bar.trial(len(distinct_finished(trials)), trial_line(trials, trial, objectives))

        with StageBar(self.console) as bar:
            study.tick = bar.prompt
            done, prompts = len(distinct_finished(trials)), len(study.data().prompts)
            bar.stage("search", self.settings.n_trials, done=done, prompts=prompts)
            bar.show(Text(best_line(trials, objectives[0])))
            exhausted = StudySearch(trials, self.settings, study, after, self._until).run()
        done = len(distinct_finished(trials))
        limited = not exhausted and done < self.settings.n_trials
        trials.set_user_attr("timed_out", self.settings.minutes if limited else 0)
        if exhausted:
            trials.set_user_attr("exhausted", True)
            self.say(exhausted)
        elif limited:
            of = f"{done} of {self.settings.n_trials} trials"
            self.say(f"The {self.settings.minutes:g} minutes allow {of}, and now the confirmation.")
        write_trials(trials, objectives, self.config.folder / "trials.csv")

    def _unchanged(self) -> StudyResult | None:
        """Return the stored result if nothing has changed since it was stored; None if something is left to measure."""
        kept = StudyResult.last(self.confirmations)
        return kept if kept is not None and kept.of == self._digest() else None

    def _conclude_alone(self) -> StudyResult:
        trial = self.confirmations.ask()
        try:
            found = self._conclude(Claim(self.confirmations, trial))
        except Exception:
            self.confirmations.tell(trial, state=TrialState.FAIL)
            raise
        self.confirmations.tell(trial, 0.0)
        return found

    def _conclude_in_turn(self) -> StudyResult | None:
        from specexp.sweep.workers import in_turn

        def kept() -> StudyResult | None:
            if found := self._unchanged():
                self.say(f"The best trials were confirmed by {found.worker}, in {found.folder}.")
            return found

        return in_turn(self.trials, self.confirmations, self._search, kept, self._conclude, self.say)

    def _conclude(self, claim: Claim) -> StudyResult:
        """Confirm the best trials on other prompts, publish and export the result, and store it for all workers.

        The claim is checked after the measurement and again before the export.

        Raises:
            StudyError: No trial can be confirmed, or outputs differ from plain decoding's in float32, so nothing is
                exported. Also raised, after publishing, if prompts of the confirmation failed.
        """
        confirmation = self._confirm()
        claim.check()
        exporter, export = None, self.settings.export
        if export is not None:
            exporter = Exporter(export, confirmation, self.study, self.command)
        deploys = exporter is not None and exporter.best is not None
        report = self._publish(confirmation, deploys)
        claim.check()  # the claim may have expired while pictures were drawn
        exported = Exported() if exporter is None else exporter.run()
        for sentence in exported.sentences:
            self.say(sentence)
        closing = [str(line) for part in report.whole() for line in part.closing()]
        result = StudyResult(
            self._digest(),
            text_of(report.tables["confirm"], [*closing, *exported.sentences], self.console.width),
            confirmation.winner.over_plain.is_faster
            if exported.now is None
            else exported.now.trial is not None,
            report.answer,
            exported.now,
            worker(),
            str(self.config.folder.resolve()),
            report.limits,
            next(iter(report.next_steps.values()), ""),
        )
        failed = failed_answers(confirmation.records)
        if failed is None:
            claim.sign(CONCLUDED, asdict(result))  # before the W&B upload, during which the process may die
        self._track(report, exported, confirmation)
        if failed is not None:
            reasons = f"the reasons are in {self.config.folder / CONFIRM}"
            raise StudyError(f"{failed}; the confirmation uses the other answers, and {reasons}")
        current_result().summary = summary_of(confirmation.winner)
        return result

    def _confirm(self) -> Confirmation:
        """Measure the best few trials on other prompts, and add predictions if the search was replayed."""
        assert self.settings.confirm is not None
        study, confirming, trials = self.study, self.study.confirming, self._chosen()
        if not trials:
            why = "no trial was measured on every prompt within the constraints, so none can be confirmed"
            raise StudyError(why)
        prompts, candidates = len(confirming.data("confirm").prompts), counted(len(trials), "candidate")
        self.say(f"Confirming {candidates} on {counted(prompts, 'other prompt')}.")
        with StageBar(self.console) as bar:
            bar.stage(f"confirming {len(trials)} candidates on other prompts", prompts * confirming.samples)
            of_each = self.settings.confirm.of_each
            found = confirm(trials, confirming, bar.prompt, of_each)
        predicted = [
            replace(one, predicted=study.predict(one.attributes["resolved"])) for one in found.confirmed
        ]
        return replace(found, confirmed=predicted)

    def _publish(self, confirmation: Confirmation, deploys: bool) -> Report:
        """Write and print the report; raises StudyError if outputs differ from plain decoding's in float32."""
        study, confirming, folder = self.study, self.study.confirming, self.config.folder
        confirmed, records, winner = confirmation.confirmed, confirmation.records, confirmation.winner
        atomic_write(folder / CONFIRM, "".join(map(line_of, records)))
        float32 = confirming.in_float32(confirmed, records)
        shown = table(self.config.name, self.config.question, confirmation, study.predict(None), float32)
        data, kinds = confirming.data("confirm"), category_table(records)
        texts, preparation = texts_of(data.prompts), data.workload.preparation
        settings = confirmed_settings(self.config, confirmation)
        shown.notes += [engines_note({one.label: one.parts for one in settings})] * bool(settings)
        shown.notes += preparation.notes()
        titles = {**{one.name: one.label for one in confirmed}, PLAIN: BASELINES[PLAIN]}
        found = [*sentences(confirmed, records), *study.sentences(winner)]
        found += (f"{titles.get(arm, arm)}: {cause}." for arm, cause in likely_causes(records).items())
        count, unmeasured = self._methods()
        of_methods = f" Measured: {count - len(unmeasured)} of {counted(count, 'method')}." if count else ""
        limited = [*limits(confirmed), *filter(None, [self._too_few])]
        timed_out = self.trials.user_attrs.get("timed_out")
        if unmeasured:
            helps = timed_out and not all(one.endswith("(failed)") for one in unmeasured)
            more = "; more --minutes may measure more" if helps else ""
            limited.append(f"Not measured: {', '.join(unmeasured)}{more}.")
        setting = {part: spec for part, spec in winner.attributes["resolved"].items() if spec is not None}
        found.insert(0, f"The setting of {winner.label}: {name_of(setting)}.")
        least = self.config.least_gain
        if line := kinds_sentence(records, winner.name, winner.label, PLAIN, least, len(confirmed)):
            limited.append(line)
        if timed_out:
            of = f"{len(distinct_finished(self.trials))} of {counted(self.settings.n_trials, 'trial')}"
            limited.append(
                f"The search measured {of} in its time; with more --minutes it may find a faster one."
            )
        if forms := by_load(self.config, confirmation):
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
            answer=answer(confirmed, records, least) + of_methods,
            limits=limited,
            proof=proof_of(records, [one.name for one in confirmed], PLAIN),
            charts=charts_of(self.trials, self.settings, confirmation, texts),
            next_steps=self._next_steps(winner.over_plain, deploys),
            page="confirm",
            parts=[
                prompts_shown(texts, records, titles, confirming.backend.tokenizer),
                pictures_of_winner(confirmation, study.data("confirm").prompts),
            ],
        )
        publish(report, folder, console=self.console)
        wrong = divergence([*records, *(() if float32 is None else float32.records)])
        if wrong is not None:
            raise StudyError(f"{wrong}: this is not lossless, so nothing is exported")
        return report

    def _methods(self) -> tuple[int, list[str]]:
        """Return the number of methods in the space, and those that no trial measured."""
        key = "" if self.settings.confirm is None else self.settings.confirm.of_each or ""
        entry = self.settings.space.get(key)
        if not isinstance(entry, Categorical):
            return 0, []
        measured = {trial.params.get(key) for trial in distinct_finished(self.trials)}
        failed = {one.params.get(key) for one in self.trials.trials if one.state is TrialState.FAIL}
        left = [label for label in entry.by_label if label not in measured]
        return len(entry.by_label), [f"{one} (failed)" if one in failed else str(one) for one in left]

    def _next_steps(self, speedup: Speedup, deploys: bool) -> dict[str, str]:
        """Return the next steps. A command that measures more prompts also allows the time for them."""
        least, key = self.config.least_gain, "sweep.confirm.data.max_prompts"
        needed, seconds = prompts_needed(speedup, least), self.study.reference.per_prompt
        minutes, longer = self.settings.minutes, dict[str, float]()
        if minutes is not None and needed and seconds:
            plan = StudyPlan.of(self.settings, self.study, 0)
            longer = {"sweep.minutes": max(minutes, plan.minutes_for(needed, seconds))}
        # within a time limit, fewer prompts may have been confirmed than the set has
        workload = self.study.confirming.data("confirm").workload
        cut = self.trials.user_attrs[PLAN]["confirmed"] < workload.preparation.taken
        exhausted = workload.exhausted and not cut
        more = more_prompts(self.config, "sweep", key, needed, exhausted=exhausted, changed=longer)
        return next_steps(self.settings, self.config, verdict_of(speedup, least), more, deploys)

    def _chosen(self) -> list[FrozenTrial]:
        most = self.trials.user_attrs.get(PLAN, {}).get("candidates")
        assert self.settings.confirm is not None
        return select(self.trials, self.settings.confirm.best, self.settings.confirm.of_each)[:most]

    def _digest(self) -> str:
        """Return a digest of everything on which the study's result depends."""
        export, learn = (
            None if section is None else section.model_dump()
            for section in (self.settings.export, self.settings.learn)
        )
        assert self.settings.confirm is not None
        prompts = self.trials.user_attrs.get(PLAN, {}).get("confirmed")
        trials = [trial.user_attrs.get("digest") for trial in self._chosen()]
        return digest_of([self.config.workload(), self.settings.confirm.data, learn, prompts, trials, export])

    def _track(self, report: Report, exported: Exported, confirmation: Confirmation) -> None:
        name, config, folder = self.config.name, self.config, self.config.folder
        winner, objectives = confirmation.winner, list(self.settings.objectives)
        faster = exported.now is not None and exported.now.trial is not None
        title, aliases = (name, ("latest", "best")) if faster else (f"{name}-{BEST_TREE}", ("latest",))
        artifacts = [Attached(one.folder, title, one.kind, aliases) for one in exported.written]
        setting = {**tracked_config(config), "method": method_of(config, winner)}
        with self.tracker.study(config=setting) as run:
            rows = [trial_row(one, objectives) for one in self.trials.get_trials(deepcopy=False)]
            run.table("trials", rows)
            for part in report.whole():
                track(part, folder, run)
            track(Report(artifacts=artifacts, summary=summary_of(winner)), folder, run)

    def _report(self, ended: StudyResult | None) -> None:
        """Fill in the command's result, which is printed as the last line or as JSON."""
        result, folder, export = current_result(), self.config.folder, self.settings.export
        result.answer = "" if ended is None else ended.answer
        result.folder = str(folder)
        if (folder / PAGE).exists():
            result.page = str(folder / PAGE)
        if ended is None:
            return  # another worker will conclude the study
        result.limits, result.next = list(ended.limits), ended.next
        if export is not None and ended.deployed is not None and ended.deployed.trial is not None:
            result.artifact = f"{export.to}/best"
