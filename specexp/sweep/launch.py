"""A study's workers on a cluster."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from rich.console import Console
from sqlalchemy import make_url

from specexp.cluster.launch import run_workers
from specexp.cluster.options import ClusterOptions
from specexp.config import ConfigError
from specexp.config.sweep import Sweep
from specexp.sweep.study_config import StudyConfig


def run_study_workers(
    study_config: StudyConfig,
    settings: Sweep,
    options: ClusterOptions,
    typed: Sequence[str],
    console: Console,
) -> tuple[int, bool]:
    """Run a study by workers on a cluster, and print its conclusion.

    Returns:
        The exit code, 1 if a worker failed; and whether the study found something faster than plain decoding, true if
        nothing was confirmed in its folder.

    Raises:
        ConfigError: The cluster does not exist or refuses the workers, or no database is set that all workers reach.
        StudyError: The conclusion cannot be read.
    """
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
        why = "an SQLite file serves one machine alone" if local_file else "all workers must reach the study"
        raise ConfigError(
            f"command line: --on {options.on} needs a database, for {why}: --storage postgresql://user@host/name"
        )
    return storage
