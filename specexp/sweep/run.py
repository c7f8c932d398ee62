"""One sweep in one process, from top to bottom: preparation, search, and conclusion."""

from __future__ import annotations

import shlex
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from time import time

import optuna
from optuna.exceptions import StorageInternalError
from optuna.trial import FrozenTrial
from rich.console import Console
from rich.text import Text
from sqlalchemy.exc import SQLAlchemyError

from specexp.base.messages import counted, first_line
from specexp.base.start import masked
from specexp.bench.experiment import use_threads, warn_of_load
from specexp.bench.trainer import quiet_libraries
from specexp.config import ConfigError
from specexp.config.command import current_result
from specexp.config.sweep import Sweep
from specexp.report.comparison import busy_machine
from specexp.report.progress import StageBar
from specexp.report.publish import PAGE, tracked_config, tracker_of
from specexp.sweep.acceptance_counts import count_acceptances
from specexp.sweep.conclusion import StudyResult
from specexp.sweep.one_process import OneProcess
from specexp.sweep.output import track_trial
from specexp.sweep.plan import PLAN, TOO_FEW, fit_plan
from specexp.sweep.preparation import check_stages, left_out_lines, open_bench, without_impossible
from specexp.sweep.prepared import PreparedStudy
from specexp.sweep.sampler import check_sampler
from specexp.sweep.study_config import StudyConfig, StudyError
from specexp.sweep.trials import best_line, distinct_finished, trial_line, write_trials
from specexp.tracking.tracker import Tracker

WIDTH = 120
"""Width of tables in redirected output. At 80 columns their lines would wrap."""


def run_sweep(config: StudyConfig, settings: Sweep, command: str) -> StudyResult | None:
    """Run or resume a study, or print the result of one that has ended.

    Returns the result, or None if another worker is confirming the study or confirmation is off. Raises StudyError
    if the study cannot continue, and ConfigError for a mistake in its settings.
    """
    started = time()
    console = Console(highlight=False, force_jupyter=False, emoji=False)
    if not console.is_terminal:
        console.width = WIDTH
    say = partial(console.print, highlight=False, soft_wrap=True)
    with _errors_in_one_sentence(settings):
        check_sampler(settings, config.checker)
        tracker = tracker_of(config.tracking, config.pair, config.name, config.folder)
        process = OneProcess(config, settings)
        if settings.storage is not None:
            from specexp.sweep.workers import Workers

            process = Workers(config, settings)
        with process.opened() as damage:
            if damage:
                say(damage)
            trials = process.find()  # before models are loaded, so that another study of this name is refused at once
            result = None if trials is None else process.result(trials)
            if result is not None:
                console.print(result.text, end="", markup=False, highlight=False, soft_wrap=True)
                say(f"Study {config.name} has ended, so nothing was measured.")
            else:
                study = prepare(process, trials, started, tracker, console, command)
                search(process, study)
                if settings.confirm is None:
                    say(
                        "Nothing is confirmed or exported, because the file has no sweep.confirm: with it, the best "
                        "trials are measured again on other prompts."
                    )
                else:
                    result = process.conclude(study, partial(search, process, study))
                if hint := tracker.sync_hint():
                    say(f"W&B: {hint}")
            _report(config, settings, result)
            return result


@contextmanager
def _errors_in_one_sentence(settings: Sweep) -> Iterator[None]:
    """Silence libraries, and convert errors of the storage to StudyErrors, and other user errors to ConfigErrors."""
    quiet_libraries()
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    if not sys.warnoptions:
        warnings.simplefilter("ignore")
    try:
        yield
    except (StorageInternalError, SQLAlchemyError) as error:
        why = first_line(error.__cause__ or error)
        raise StudyError(f"storage {masked(str(settings.storage))!r} failed: {why}") from error
    except ValueError as error:
        raise ConfigError(str(error)) from error


def prepare(
    process: OneProcess,
    trials: optuna.Study | None,
    started: float,
    tracker: Tracker,
    console: Console,
    command: str,
) -> PreparedStudy:
    """Load the models or the recording, open the study, and measure plain decoding.

    Args:
        trials: The study, if an earlier process made it.
        started: When this start of the study began, in seconds since the epoch.
    """
    config = process.config
    say = partial(console.print, highlight=False, soft_wrap=True)
    warn_of_load(config.profile)
    use_threads(config.generation.threads)
    bench = open_bench(config)
    check_stages(bench)
    possible, impossible = without_impossible(bench)
    # Nothing has been written so far, so a mistake in models, prompts or parts leaves nothing behind.
    trials = trials or process.open()
    bench.check_rendered(trials)
    config.save(shlex.split(command))
    with StageBar(console) as bar:
        bench.tick = bar.prompt
        for sentence in left_out_lines(impossible):
            say(sentence)
        again = process.join(trials, possible)
        done = len(distinct_finished(trials))
        if done or again:
            of = f"{done} of {possible.n_trials} trials are finished"
            repeated = f"; {counted(again, 'interrupted trial')} will be repeated" if again else ""
            say(f"Continuing study {config.name}: {of}{repeated}.")
        if kept := trials.user_attrs.get(PLAN):
            bench.cut(kept["prompts"])
        known = bench.load_reference()
        if not known:
            bar.stage("plain decoding of every prompt", len(bench.data().prompts))
            bench.time_first_prompts()
        ends, forecast = fit_plan(possible, bench, trials, started, done, process.deadline)
        if forecast:
            say(forecast)
        if not known:
            bench.measure_reference()
        if possible.count_acceptances is not None and (path := config.acceptance_counts):
            begin = partial(bar.stage, "counting acceptances")
            count_acceptances(bench, possible.count_acceptances, path, config.resolved, begin)
        busy = busy_machine(bench.reference.seconds_per_token.values())
        if busy and bench.latency is None:
            say(busy)
    too_few = forecast if TOO_FEW in forecast else ""
    return PreparedStudy(config, possible, bench, trials, ends, too_few, tracker, console, command)


def search(process: OneProcess, study: PreparedStudy) -> None:
    """Run the remaining trials, and write all trials to ``trials.csv``."""
    trials = study.trials
    bench = study.bench
    settings = study.settings
    objectives = list(settings.objectives)
    setting = tracked_config(study.config.values)

    def after(trial: FrozenTrial) -> None:
        if bench.tracks_trials:
            track_trial(study.tracker, trial, setting, objectives)
        bar.show(Text(best_line(trials, objectives[0])))
        line = "" if "duplicate_of" in trial.user_attrs else trial_line(trial, objectives)
        bar.trial(len(distinct_finished(trials)), line)

    with StageBar(study.console) as bar:
        bench.tick = bar.prompt
        done = len(distinct_finished(trials))
        bar.stage("search", settings.n_trials, done=done, prompts=len(bench.data().prompts))
        bar.show(Text(best_line(trials, objectives[0])))
        exhausted = process.search(study, after)
    done = len(distinct_finished(trials))
    limited = not exhausted and done < settings.n_trials
    trials.set_user_attr("timed_out", settings.minutes if limited else 0)
    if exhausted:
        trials.set_user_attr("exhausted", True)
        study.say(exhausted)
    elif limited:
        of = f"{done} of {settings.n_trials} trials"
        study.say(f"The {settings.minutes:g} minutes allow {of}, and now the confirmation.")
    write_trials(trials, objectives, study.config.folder / "trials.csv")


def _report(config: StudyConfig, settings: Sweep, ended: StudyResult | None) -> None:
    """Fill in the command's result, which is printed as the last line or as JSON."""
    result = current_result()
    folder = config.folder
    export = settings.export
    result.answer = "" if ended is None else ended.answer
    result.folder = str(folder)
    if (folder / PAGE).exists():
        result.page = str(folder / PAGE)
    if ended is None:
        return  # another worker will conclude the study
    result.limits = list(ended.limits)
    result.next = ended.next
    if export is not None and ended.deployed is not None and ended.deployed.trial is not None:
        result.artifact = f"{export.to}/best"
