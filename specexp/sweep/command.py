"""``python -m specexp.sweep EXPERIMENT.yaml``: runs an Optuna study, confirms the best trials, exports the winner."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Sequence
from functools import partial

from rich.console import Console
from rich.table import Table

from specexp.artifacts import ArtifactError, read_artifact
from specexp.base.messages import counted
from specexp.base.start import masked
from specexp.bench.experiment import few_tokens
from specexp.bench.statistics import FEWEST_PROMPTS
from specexp.cluster.launch import USAGE as CLUSTER_USAGE, ClusterOptions, take_options
from specexp.config import Config, ConfigError, missing_engine
from specexp.config.command import GOES_ON, check_here, current_result, fail, run_command
from specexp.config.layers import COMMAND_LINE
from specexp.config.load import check_typed_parts, with_prompts_of
from specexp.config.sweep import FUNCTION, Sweep, name_of
from specexp.report.publish import check_study_folder
from specexp.sweep.space import Space, check_goals, directions_of
from specexp.sweep.study_config import StudyConfig

USAGE = """usage: python -m specexp.sweep EXPERIMENT.yaml [--dry-run] [--minutes N] [--n-trials N] [--storage URL]
    [--key value ...]

Searches the space of an experiment's sweep: section with Optuna, measures the best few again on prompts the search did
not see, and exports the winner. The same command continues a study that was interrupted, and prints the result of one
that has ended.
--dry-run checks the file and shows the space. --minutes N cuts prompts, trials and confirmation to N minutes.
--n-trials N ends with that many finished, distinct trials. --storage URL names a database, so that several workers
share the study. --cold exports the winner without its learned state. --require-gain exits with 3 unless the winner is
faster than plain decoding. Any other --dotted.key overrides the file, e.g. --data.max_prompts 8
--sweep.confirm.best 5 --tracking.mode disabled."""

FLAGS = {
    "--cold": "sweep.export.cold",
    "--require-gain": "sweep.require_gain",
}
"""Options without a value, mapped to the keys that they set to true."""

SHORT = {"n-trials": "sweep.n_trials", "minutes": "sweep.minutes", "storage": "sweep.storage"}

NO_GAIN = 3
"""Exit code of ``--require-gain`` if no candidate is faster than plain decoding."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command. Return 1 if the study cannot continue, 2 for a user error, 3 if a required gain is missing."""
    try:
        cluster, arguments = take_options(sys.argv[1:] if argv is None else argv)
    except ConfigError as error:
        return fail(error)
    given = [f"--{FLAGS[one]}=true" if one in FLAGS else one for one in arguments]
    short = SHORT | {flag.removeprefix("--"): key for flag, key in FLAGS.items()}
    act = partial(_act, cluster=cluster, typed=arguments)
    return run_command(f"{USAGE}\n{CLUSTER_USAGE}", given, act, short, f"{GOES_ON} (a confirmation starts over)")


def _act(experiment: Config, dry_run: bool, cluster: ClusterOptions | None, typed: Sequence[str]) -> int:
    config = read_sweep(experiment)
    settings = config.sweep
    console = Console(highlight=False, soft_wrap=True, force_jupyter=False, emoji=False)
    check_here(experiment, "sweep.export.to")
    _check_folders(config)
    remarks = [] if config.replayed else config.check_rows()
    if settings.storage is not None:
        from specexp.sweep.storage import check_storage

        check_storage(settings.storage, config.checker.error(("sweep", "storage"), ""))
    if FUNCTION in settings.space:
        list(config.drawn())
    if dry_run:
        from specexp.sweep.one_process import OneProcess
        from specexp.sweep.preparation import left_out_lines, rehearse

        possible, impossible = rehearse(config)
        if settings.storage is None and (damage := OneProcess(config, settings).rehearse()):
            console.print(damage, markup=False)
        show(config, possible, console)
        result = current_result()
        result.limits = [*left_out_lines(impossible)]
        for sentence in result.limits:
            console.print(sentence, markup=False)
        if impossible:
            left = counted(len(impossible), "setting")
            result.next = f"the same command without --dry-run, which leaves out {left} (Not measured)"
    missing = missing_engine(experiment)
    for sentence in (*remarks, *_size_remarks(experiment, settings), *_remarks(config, settings)):
        console.print(sentence, markup=False)
    if missing:
        raise ConfigError(missing)
    if dry_run:
        return 0
    if cluster is not None:
        kept = [one for one in typed if FLAGS.get(one) != "sweep.require_gain"]
        from specexp.sweep.workers import run_study_workers

        status, ended = run_study_workers(config, cluster, kept, console)
    else:
        from specexp.sweep.run import run_sweep

        command = shlex.join(["python", "-m", "specexp.sweep", *typed])
        status, ended = 0, run_sweep(config, settings, command)
    no_gain = settings.require_gain and ended is not None and not ended.gain
    return status or (NO_GAIN if no_gain else 0)


def read_sweep(config: Config) -> StudyConfig:
    """Return an experiment's study configuration; raises ConfigError if it has no sweep section."""
    sweep = config.sweep
    if sweep is None and config.artifact:
        raise ConfigError(
            f"{COMMAND_LINE}: --artifact names one setting, so nothing is searched: leave it out to search, or use "
            f"python -m specexp.run {config.file} --artifact {config.artifact}"
        )
    if sweep is None:
        command = "specexp.what_if" if config.get("what_if") is not None else "specexp.run"
        raise ConfigError(
            f"{config.file} has no sweep: section, so nothing is searched; run it with python -m {command} "
            f"{config.file}"
        )
    check_goals(sweep, config.checker)
    check_typed_parts(config, sweep)
    return StudyConfig(config)


def _check_folders(config: StudyConfig) -> None:
    """Raise ConfigError if a folder holds the results or the alias ``best`` of another study."""
    check_study_folder(config.folder, config.checker)
    if config.sweep.export is None:
        return
    folder = config.sweep.export.to
    try:
        best = read_artifact(f"{folder}/best")
    except ArtifactError:
        return  # missing or unreadable
    if best.name != config.name:
        why = (
            f": {folder}/best is the artifact of {best.name!r}, another study: choose another folder "
            f"(--sweep.export.to artifacts/{config.name})"
        )
        raise config.checker.error(("sweep", "export", "to"), why)


def _size_remarks(experiment: Config, settings: Sweep) -> Iterator[str]:
    """Yield remarks on prompts, tokens and minutes that are too few for a verdict."""
    from specexp.sweep.plan import AFTER_SECONDS  # imports optuna and torch

    yield from few_tokens(experiment)
    if settings.confirm is not None:
        most = with_prompts_of(experiment, "confirm").get("data.max_prompts")
        if most is not None and most < FEWEST_PROMPTS:
            own = experiment.has("sweep.confirm.data.max_prompts")
            key = "sweep.confirm.data.max_prompts" if own else "data.max_prompts"
            source = experiment.source_of(tuple(key.split(".")))
            yield f"{source}: {key} is {most}, but a verdict needs at least {FEWEST_PROMPTS} prompts."
    if settings.minutes is not None and 60 * settings.minutes <= AFTER_SECONDS:
        at = f"{experiment.source_of(('sweep', 'minutes'))}: sweep.minutes"
        yield f"{at} is {settings.minutes:g}, but the end of a study alone may take {AFTER_SECONDS:.0f} s."


def _remarks(config: StudyConfig, settings: Sweep) -> Iterator[str]:
    if left := settings.known[settings.n_trials :]:
        names = ", ".join(known.name for known in left)
        yield f"Not measured, because sweep.n_trials is {settings.n_trials}: {names}."
    space = Space(settings)
    for known in settings.known:
        for at, value in space.beyond(known.overrides).items():
            where = f"outside the space ({space.entries[at]})"
            yield f"{known.name}: {at} is {value}, {where}, so it is measured and compared only."
    for section in ("arms", "trainer"):
        if config.values[section]:
            yield f"The section {section}: is used by python -m specexp.run {config.invocation.file} only."


def show(config: StudyConfig, settings: Sweep, console: Console) -> None:
    """Print what a study would search and measure."""
    console.print(f"study {config.name}: {settings.n_trials} trials, including known configurations")
    goals = [f"{name} ({way})" for name, way in directions_of(settings).items()]
    console.print(f"objectives: {', '.join(goals)}")
    table = Table("key", "values", title="space", title_justify="left")
    space = Space(settings)
    for key, entry in space.entries.items():
        table.add_row(key, str(entry))
    console.print(table)
    for known in settings.known:
        shown = name_of(space.params_of(known.overrides) or known.overrides)
        console.print(f"measured first: {known.name}" + f": {shown}" * (shown != known.name), markup=False)
    for name, limit in settings.constraints.items():
        console.print(f"constraint: {name} {limit:g}")
    console.print(f"storage: {masked(settings.storage or str(config.folder / 'journal.log'))}")
