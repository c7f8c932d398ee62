"""``python -m specexp.sweep EXPERIMENT.yaml``: an Optuna study, its confirmation, and the exported winner."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from rich.console import Console

from specexp.artifacts import ArtifactError, read_artifact
from specexp.bench.publish import FolderBusyError, check_study_folder, remove_unused
from specexp.cluster.launch import USAGE as CLUSTER_USAGE, ClusterOptions, take_options
from specexp.config import Config, ConfigError, build_sweep
from specexp.config.command import GOES_ON, check_here, fail, run_command
from specexp.config.sweep import Sweep
from specexp.core.messages import first_line
from specexp.core.start import masked
from specexp.sweep.space import Space, check_goals, directions_of
from specexp.sweep.storage import check_storage
from specexp.sweep.study_config import StudyConfig, StudyError

USAGE = """usage: python -m specexp.sweep EXPERIMENT.yaml [--dry-run] [--n-trials N] [--storage URL] [--key value ...]

Searches the space of an experiment's sweep: section with Optuna, measures the best few again on prompts the search did
not see, and exports the winner; the same command goes on where it stopped, and of a study that has ended it prints the
result.
--dry-run checks the file and shows what would be searched; --n-trials N ends with that many finished, distinct trials;
--storage URL names a database, so that several workers share the study; --confirm-again confirms the best of a study
that has ended once more and pools the measurements; --cold exports the winner without what it learned;
--require-gain ends with 3 where nothing is faster than plain decoding; any other --dotted.key overrides the file,
e.g. --data.max_prompts 8 --sweep.confirm.best 5 --tracking.mode disabled."""

FLAGS = {
    "--confirm-again": "sweep.confirm.again",
    "--cold": "sweep.export.cold",
    "--require-gain": "sweep.require_gain",
}
"""Options without a value, by the key that they set to true."""

SHORT = {"n-trials": "sweep.n_trials", "storage": "sweep.storage"}

NO_GAIN = 3
"""Exit code of ``--require-gain`` if nothing is faster than plain decoding."""

WIDTH = 120
"""Width of tables in a redirected output, because 80 columns would break them up."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command.

    Returns:
        The exit code: 1 for a study that cannot go on, 2 for a mistake, 3 for a study without a required gain.
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        cluster, arguments = take_options(arguments)
    except ConfigError as error:
        return fail(error)
    command = shlex.join(["python", "-m", "specexp.sweep", *arguments])
    given = [f"--{FLAGS[one]}=true" if one in FLAGS else one for one in arguments]
    short = SHORT | {flag.removeprefix("--"): key for flag, key in FLAGS.items()}
    act = partial(_act, command=command, cluster=cluster, typed=arguments)
    return run_command(f"{USAGE}\n{CLUSTER_USAGE}", given, act, short, GOES_ON)


def _act(
    config: Config, dry_run: bool, command: str, cluster: ClusterOptions | None, typed: Sequence[str]
) -> int:
    study_config, settings = read_sweep(config)
    console = Console(highlight=False, soft_wrap=True, force_jupyter=False)
    check_here(config, "sweep.export.to")
    check_study_folder(config, study_config.folder)
    if settings.export is not None:
        check_exported(config, Path(settings.export.to))
    if settings.storage is not None:
        check_storage(settings.storage, config.checker.error(("sweep", "storage"), ""))
    if dry_run:
        from specexp.sweep.dry_run import rehearse

        possible, impossible = rehearse(study_config, settings)
        show(study_config, possible, console)
        for name, why in impossible.items():
            console.print(f"Cannot be built, so it is not measured: {name}: {why}", markup=False)
    made: list[Path] = []
    for sentence in _remarks(config, study_config, settings):
        console.print(sentence, markup=False)
    if dry_run:
        return 0
    try:
        if cluster is not None:
            kept = [one for one in typed if FLAGS.get(one) != "sweep.require_gain"]
            status, gain = run_study_workers(study_config, settings, cluster, kept, console)
            return status or (NO_GAIN if settings.require_gain and not gain else 0)
        made = _make_folders(study_config, settings)
        from specexp.bench.publish import tracker_of
        from specexp.sweep.output import StudyOutput
        from specexp.sweep.sampler import check_sampler
        from specexp.sweep.session import Session, silence

        silence()
        console = Console(highlight=False, force_jupyter=False)
        if not console.is_terminal:
            console.width = WIDTH
        check_sampler(settings, config.checker)
        tracker = tracker_of(config, study_config.name, study_config.folder)
        output = StudyOutput(study_config.folder, console, tracker, command)
        session = Session(study_config, settings, output)
        with session.lock():
            ended = session.ended()
            if ended is not None:
                console.print(ended.said, end="", markup=False, highlight=False, soft_wrap=True)
                output.say(
                    f"Study {study_config.name} has ended, so nothing was measured; --confirm-again confirms its best "
                    "once more, and pools both."
                )
            else:
                session.prepare()
                session.search()
                ended = session.conclude()
                if hint := tracker.sync_hint():
                    output.say(f"W&B: {hint}")
            session.report(ended)
    except Exception as problem:
        if isinstance(problem, ValueError):
            remove_unused(study_config.folder, made)
        return _failed(problem, settings, study_config.folder)
    return NO_GAIN if settings.require_gain and ended is not None and not ended.gain else 0


def _failed(problem: Exception, settings: Sweep, folder: Path) -> int:
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import SQLAlchemyError

    if isinstance(problem, StudyError | FolderBusyError):
        return fail(problem, 1)
    if isinstance(problem, StorageInternalError | SQLAlchemyError):
        why = first_line(problem.__cause__ or problem)
        return fail(f"storage {masked(str(settings.storage))!r} failed: {why}", 1)
    if isinstance(problem, OSError):
        return fail(
            f"{problem.filename or folder} cannot be written ({problem.strerror or problem}): nothing that was "
            "finished is lost, and the same command goes on once it can",
            1,
        )
    if isinstance(problem, ValueError):
        return fail(problem)
    raise problem


def _remarks(config: Config, study_config: StudyConfig, settings: Sweep) -> Iterator[str]:
    if settings.enqueue[settings.n_trials :]:
        names = ", ".join(known.name for known in settings.known[settings.n_trials :])
        yield f"Not measured, because sweep.n_trials is {settings.n_trials}: {names}."
    space = Space(settings)
    for known in settings.known:
        for at, value in space.beyond(known.overrides).items():
            yield (
                f"{known.name}: {at} is {value}, outside the space ({space.entries[at]}), so it is measured and "
                "compared only."
            )
    again = settings.confirm is not None and settings.confirm.again
    if again and settings.storage is None and not (study_config.folder / "journal.log").exists():
        raise ConfigError(
            f"--confirm-again: there is no study in {study_config.folder}, so there is nothing to confirm again"
        )
    if config.get("arms"):
        yield f"The section arms: is used by python -m specexp.run {config.file} only."


def _make_folders(study_config: StudyConfig, settings: Sweep) -> list[Path]:
    """Check that the folders of results and artifact can be written, now rather than at the end.

    Returns:
        The folders that were made for the results, the innermost first.
    """
    folders = {"output": study_config.folder}
    if settings.export is not None:
        folders = {"sweep.export.to": Path(settings.export.to), **folders}
    made: list[Path] = []
    for key, folder in folders.items():
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder) as file:
                file.write(bytes(4096))  # an empty file can be made on a full disk
        except OSError as error:
            remove_unused(folder, made)
            raise ConfigError(
                f"{key}: {folder} cannot be written ({error.strerror or error}): set --{key} to a folder that can"
            ) from error
        if key != "output":
            remove_unused(folder, made)
    return made


def read_sweep(config: Config) -> tuple[StudyConfig, Sweep]:
    """Read an experiment's study and sweep section.

    Raises:
        ConfigError: The file has no sweep section.
    """
    sweep = build_sweep(config)
    if sweep is None:
        command = "specexp.what_if" if config.get("what_if") is not None else "specexp.run"
        raise ConfigError(
            f"{config.file} has no sweep: section, so nothing is searched; run it with python -m {command} "
            f"{config.file}"
        )
    check_goals(sweep, config.checker)
    return StudyConfig(config), sweep


def show(study_config: StudyConfig, settings: Sweep, console: Console) -> None:
    """Print what a sweep would do."""
    from rich.table import Table

    console.print(f"study {study_config.name}: {settings.n_trials} trials, known configurations included")
    console.print(
        f"objectives: {', '.join(f'{name} ({way})' for name, way in directions_of(settings).items())}"
    )
    table = Table("key", "values", title="space", title_justify="left")
    product = Space(settings)
    for key, entry in product.entries.items():
        table.add_row(key, str(entry))
    console.print(table)
    for known in settings.known:
        shown = product.params_of(known.overrides) or dict(known.overrides)
        console.print(f"measured first: {known.name}: {shown}", markup=False)
    for name, limit in settings.constraints.items():
        console.print(f"constraint: {name} {limit:g}")
    console.print(f"storage: {masked(settings.storage or str(study_config.folder / 'journal.log'))}")


def check_exported(config: Config, folder: Path) -> None:
    """Raise ConfigError if the export into this folder would take the alias ``best`` from another study."""
    try:
        best = read_artifact(folder / "best")
    except ArtifactError:
        return  # there is none, or no readable one
    if best.name != config.get("name"):
        raise config.checker.error(
            ("sweep", "export", "to"),
            f": {folder}/best is the artifact of {best.name!r}, another study: choose another folder "
            f"(--sweep.export.to artifacts/{config.get('name')})",
        )


def run_study_workers(
    study_config: StudyConfig,
    settings: Sweep,
    options: ClusterOptions,
    typed: Sequence[str],
    console: Console,
) -> tuple[int, bool]:
    """Run a study by workers on a cluster, and print its conclusion.

    Returns:
        The exit code, 1 if a worker failed; and whether the study has a gain, true if it is not known here.

    Raises:
        ConfigError: The cluster refuses the workers, or no database is set that all workers reach.
        StudyError: The conclusion cannot be read.
    """
    from sqlalchemy import make_url

    from specexp.cluster.launch import run_workers
    from specexp.sweep.conclusion import Concluded

    storage = checked_storage(settings.storage, options)
    password = make_url(storage).password
    if password is not None:
        # By libpq's variable: no command and no file of a job contains it.
        os.environ["PGPASSWORD"] = str(password)
        bare = make_url(storage)._replace(password=None).render_as_string()
        typed = [one.replace(storage, bare) for one in typed]
    command = (sys.executable, "-m", "specexp.sweep", *typed)
    folder = study_config.folder / "workers"
    status = run_workers(
        options,
        {f"{study_config.name} {number}": command for number in range(options.workers)},
        folder,
        gpus=options.gpus_on(study_config.config.get("pair.device")),
        threads=study_config.generation.threads or 1,
    )
    kept = Concluded.load(study_config.folder)
    if kept is None:
        console.print(f"The results are in the folder that the workers' logs name: {folder}", markup=False)
        return status, True
    console.print(kept.said, end="", markup=False, highlight=False, soft_wrap=True)
    return status, kept.gain


def checked_storage(storage: str | None, options: ClusterOptions) -> str:
    """Return the database that all workers reach.

    Raises:
        ConfigError: It is unset, or a file that workers on other machines do not share.
    """
    local_file = storage is not None and storage.startswith("sqlite") and options.on != "local"
    if storage is None or local_file:
        why = "an SQLite file serves one machine only" if local_file else "all workers must reach the study"
        raise ConfigError(
            f"command line: --on {options.on} needs a database, because {why}: --storage postgresql://user@host/name"
        )
    return storage
