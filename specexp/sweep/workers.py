"""A study's workers on a cluster: started together, shown in one table, and what came out of them."""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Sequence

import optuna
from optuna import Study
from optuna.trial import TrialState
from rich.console import Console
from rich.table import Table
from sqlalchemy import make_url

from specexp.cluster.fleet import Work
from specexp.cluster.lead import lead
from specexp.cluster.options import ClusterOptions
from specexp.config import ConfigError
from specexp.config.command import fail
from specexp.config.sweep import Sweep
from specexp.sweep.concluded import CONCLUDED_BY, Concluded
from specexp.sweep.database import Database
from specexp.sweep.error import StudyError
from specexp.sweep.study_config import StudyConfig
from specexp.sweep.trials import FINISHED, distinct_finished, name_of_trial
from specexp.sweep.worker import WORKER

PASSWORD = "PGPASSWORD"
"""libpq's variable: workers get the password by it, so that it stands in no command and in no file of a job."""


def lead_study(
    study_config: StudyConfig,
    settings: Sweep,
    options: ClusterOptions,
    typed: Sequence[str],
    console: Console,
) -> bool:
    """Run a study by workers on a cluster.

    Args:
        study_config: The experiment.
        settings: Its sweep section.
        options: Where the workers are, and how many.
        typed: The command's arguments, those of the cluster left out.
        console: Where progress and results go.

    Returns:
        Whether something was found that is faster than plain decoding; true where no confirmation tells.

    Raises:
        ConfigError: There is no such cluster, or no database that all workers reach.
        StudyError: All workers failed, or what the study keeps cannot be read.
    """
    storage = checked_storage(settings.storage, options)
    command = [sys.executable, "-m", "specexp.sweep", *_without_password(typed, storage)]
    works = [Work(f"{study_config.name} {number}", tuple(command)) for number in range(options.workers)]
    study: Study | None = None

    def progress() -> Table | None:
        nonlocal study
        study = study or _existing(study_config.name, storage)
        return None if study is None else table_of(study, settings.n_trials)

    statuses = lead(
        options,
        works,
        study_config.folder / "workers",
        gpus=options.gpus_on(study_config.config.get("pair.device")),
        threads=study_config.generation.threads,
        progress=progress,
        console=console,
    )
    failed = [one for one in statuses if one.state == "failed"]
    for one in failed:
        fail(f"{one.name} ended: {one.said or 'it was killed'}", 1)
    if len(failed) == len(statuses):
        raise StudyError(f"all workers of study {study_config.name} failed")
    study = study or _existing(study_config.name, storage)
    done = 0 if study is None else len(distinct_finished(study))
    kept = Concluded.load(study_config.folder)
    if kept is not None:
        console.print(kept.said, end="", markup=False, highlight=False, soft_wrap=True)
    elif study is not None and CONCLUDED_BY in study.user_attrs:
        where = study.user_attrs[CONCLUDED_BY]
        console.print(f"The best trials were confirmed by {where['worker']}, in {where['folder']}.")
    else:
        console.print(
            f"{done} of {settings.n_trials} trials are finished; the same command goes on with them.",
            soft_wrap=True,
        )
    return kept is None or kept.gain


def checked_storage(storage: str | None, options: ClusterOptions) -> str:
    """The database that all workers reach.

    Raises:
        ConfigError: There is none, or it is a file that other machines' workers do not share.
    """
    if storage is None:
        raise ConfigError(
            f"command line: --on {options.on} needs a database that all workers reach: --storage "
            "postgresql://user@host/name"
        )
    if storage.startswith("sqlite") and options.on != "local":
        raise ConfigError(
            f"command line: --on {options.on} starts workers on other machines, and an SQLite file serves one alone: "
            "--storage postgresql://user@host/name"
        )
    return storage


def table_of(study: Study, target: int) -> Table:
    """A study's workers: what each has measured, and what it is at."""
    trials = study.get_trials(deepcopy=False)
    finished = Counter(t.user_attrs.get("worker") for t in trials if t.state in FINISHED)
    at = {t.user_attrs.get("worker"): name_of_trial(t) for t in trials if t.state is TrialState.RUNNING}
    table = Table("worker", "on", "finished", "measures", title_justify="left")
    table.title = f"study {study.study_name}: {len(distinct_finished(study))} of {target} trials are finished"
    for name in sorted(name for name in study.user_attrs if name.startswith(WORKER)):
        stated, worker = study.user_attrs[name], name.removeprefix(WORKER)
        on = ", ".join(dict.fromkeys(str(value) for value in stated.values() if value))
        table.add_row(worker, on, str(finished[worker]), at.get(worker, ""))
    return table


def _without_password(typed: Sequence[str], storage: str) -> list[str]:
    """The arguments with the storage's password taken out of them and into the environment."""
    url = make_url(storage)
    if url.password is None:
        return list(typed)
    os.environ[PASSWORD] = str(url.password)
    bare = url._replace(password=None).render_as_string()
    return [one.replace(storage, bare) for one in typed]


def _existing(name: str, storage: str) -> Study | None:
    try:
        return optuna.load_study(study_name=name, storage=Database(storage))
    except KeyError:
        return None
