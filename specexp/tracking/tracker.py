"""The bridge to W&B: a study is a group, a trial is a run."""

from __future__ import annotations

import os
import secrets
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from specexp.tracking.guard import Guard
from specexp.tracking.mode import Mode, resolve_mode
from specexp.tracking.names import PARAMETERS, STUDY, nest_parameters, plain
from specexp.tracking.tracked_run import TrackedRun

ONLINE_START_SECONDS = 20.0
FINISH_SECONDS = 30.0


class Tracker:
    """Writes the W&B runs of one study or one ``specexp.run``.

    No method raises: what fails is reported once and the work goes on. Mode ``disabled`` does not import
    wandb.

    Args:
        name: The study: the group of its runs.
        folder: ``<output>/<name>``; runs are written to ``<folder>/wandb``.
        project: W&B project.
        mode: ``online``, ``offline``, ``disabled``, or None: see :func:`~specexp.tracking.mode.resolve_mode`.
        entity: W&B entity; the account's default if None.
        tags: Tags of every run.

    Raises:
        ValueError: the mode is not known (the only error: a typing mistake, found before the first trial).

    Example:
        >>> tracker = Tracker("tree_shape", "runs/tree_shape", mode="disabled")
        >>> with tracker.trial(0, {"builder.init_args.nodes": 16}) as run:
        ...     run.log({"speedup": 1.4})
        ...     run.summary({"speedup": 1.4, "nodes": 16, "seconds/draft": 0.1})
    """

    def __init__(
        self,
        name: str,
        folder: str | Path,
        project: str = "specexp",
        mode: str | None = None,
        entity: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.folder = Path(folder)
        self.project = project
        self.entity = entity
        self.mode: Mode = resolve_mode(mode)
        self.tags = tuple(tags)
        self._guard = Guard()
        self._offline_runs = 0
        self._unsent: list[str] = []  # folders of online runs whose connection was lost
        self._url: str | None = None

    @property
    def failures(self) -> Mapping[str, int]:
        """How often which kind of thing failed."""
        return self._guard.failures

    def trial(
        self, number: int, params: Mapping[str, Any], config: Mapping[str, Any] | None = None
    ) -> TrackedRun:
        """Start the run of one trial, to be used as a context manager.

        Args:
            number: The trial's number in the study.
            params: Searched values by dotted key; they stand under ``params`` in the run's configuration.
            config: Resolved configuration of the trial.
        """
        whole = {**(config or {}), "trial": number, PARAMETERS: nest_parameters(params)}
        return self.run(f"{self.name}-{number:03d}", job_type="trial", config=whole)

    def study(self, config: Mapping[str, Any] | None = None) -> TrackedRun:
        """Start the run of the study as a whole: trial table, pictures, exported artifact."""
        return self.run(self.name, job_type=STUDY, config=config)

    def run(self, name: str, job_type: str = "run", config: Mapping[str, Any] | None = None) -> TrackedRun:
        """Start any other run of the group, e.g. the arms of ``specexp.run``."""
        run = None
        if self.mode == "online":
            with self._guard("reach its server, so runs are written offline"):
                run = self._start(name, job_type, config, "online")
                self._url = run.url if run is not None else None
            if run is None:
                self.mode = "offline"
        if self.mode == "offline":
            with self._guard("start a run"):
                run = self._start(name, job_type, config, "offline")
                self._offline_runs += 1
        return TrackedRun(run, self._guard, self.folder / "wandb", self._unsent)

    def _start(self, name: str, job_type: str, config: Mapping[str, Any] | None, mode: Mode) -> Any:
        os.environ.setdefault(
            "WANDB_ERROR_REPORTING", "false"
        )  # read when wandb is imported; it has no setting
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        # Listing the installed packages alone takes 0.1 s a run; environment.json holds them once. Watching
        # the machine, git and the console would run beside the clock that a trial is measured by.
        settings = wandb.Settings(
            silent=True,
            console="off",
            save_code=False,
            disable_code=True,
            disable_git=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=ONLINE_START_SECONDS,
            finish_timeout=FINISH_SECONDS,
            finish_timeout_raises=True,  # or nobody would hear that a run still waits on the disk
        )
        wandb.setup(wandb.Settings(silent=True))  # login speaks before a run's own settings count
        return wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.name,
            name=name,
            job_type=job_type,
            id=secrets.token_hex(4),
            tags=self.tags,
            config=plain(config or {}),
            dir=self.folder.absolute(),  # the service that writes keeps the working directory it began in
            mode=mode,
            reinit="create_new",
            settings=settings,
        )

    def sync_hint(self) -> str:
        """What to type, or where to look: one line for the end of a command, empty where there is nothing."""
        waiting = [f"{shlex.quote(str(self.folder / 'wandb'))}/offline-run-*"] if self._offline_runs else []
        waiting += [shlex.quote(folder) for folder in self._unsent]
        return f"wandb sync {' '.join(waiting)}" if waiting else self._url or ""
