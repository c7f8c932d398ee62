"""The connection to W&B, which never makes a trial fail. A study is a group, and a trial is a run."""

from __future__ import annotations

import logging
import os
import re
import secrets
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

from specexp.base.messages import type_and_line
from specexp.tracking.mode import Mode, project_of, resolve_mode, take_over
from specexp.tracking.names import PARAMETERS, STATE, nest_parameters, table_columns, to_json

if TYPE_CHECKING:
    import wandb

log = logging.getLogger(__name__)
ONLINE_START_SECONDS = 20.0
FINISH_SECONDS = 30.0


class Guard:
    """Turns W&B's failures into warnings, one per failing operation, so that work continues."""

    def __init__(self) -> None:
        self.failures: dict[str, int] = {}

    @contextmanager
    def __call__(self, what: str) -> Iterator[None]:
        """Run the block. If it raises, warn once that ``what`` failed, and continue."""
        try:
            yield
        # Broad on purpose: wandb, sockets, disks, Pillow and a dead service process may raise errors of any type.
        # Records, journal and artifact are written by specexp itself, so nothing is lost.
        except Exception as error:
            self.failures[what] = self.failures.get(what, 0) + 1
            if self.failures[what] == 1:
                reason = type_and_line(error)
                log.warning("W&B could not %s (%s); the work goes on without it", what, reason)


@contextmanager
def staging_in(folder: Path) -> Iterator[None]:
    """Make W&B stage artifact files in ``folder`` while the block runs, so that ``wandb sync`` needs nothing else.

    If the user has set ``WANDB_DATA_DIR``, that folder is used instead.
    """
    chosen = "WANDB_DATA_DIR" in os.environ
    os.environ.setdefault("WANDB_DATA_DIR", str(folder.resolve()))  # wandb has no setting for it
    try:
        yield
    finally:
        if not chosen:
            del os.environ["WANDB_DATA_DIR"]


class TrackedRun(AbstractContextManager["TrackedRun"]):
    """A W&B run that never raises W&B's errors. It does nothing if it failed to start or if the mode is ``disabled``.

    At the end of a ``with`` block, the run finishes, and exceptions propagate. The summary's ``state`` is then
    ``complete``, or ``failed`` with the ``reason``, unless :meth:`summary` has set it. ``folder`` is the study's W&B
    folder. If the connection is lost before everything is sent, the run's own folder is added to ``unsent``.
    """

    def __init__(self, run: wandb.Run | None, guard: Guard, folder: Path, unsent: list[str]) -> None:
        self._run = run
        self._guard = guard
        self._folder = folder
        self._unsent = unsent
        self._state: str | None = None

    def _write(self, what: str, write: Callable[[wandb.Run, Any], object]) -> None:
        """Call ``write`` with the run and W&B's module, if there is a run."""
        if self._run is not None:
            import wandb

            with self._guard(what):
                write(self._run, wandb)

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Append values to the run's history, as the next step or as ``step``."""
        # Committed at once: a later step would be sent after the summary and overwrite it.
        self._write("log values", lambda run, _: run.log(to_json(values), step=step, commit=True))

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set values that describe the whole run, for comparison in tables and panels."""
        self._state = values.get(STATE, self._state)
        self._write("write a summary", lambda run, _: run.summary.update(to_json(values)))

    def table(self, key: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Log records, one mapping per row, as a ``wandb.Table``."""

        def write(run: wandb.Run, library: Any) -> None:
            columns, rows = table_columns(records)
            with staging_in(self._folder):  # a table is an artifact too
                run.log({key: library.Table(columns=columns, data=rows)})

        if records:
            self._write("write a table", write)

    def picture(self, key: str, file: Path) -> None:
        """Log an image file."""
        self._write("write a picture", lambda run, library: run.log({key: library.Image(str(file))}))

    def html(self, key: str, page: str) -> None:
        """Log a complete HTML page, which W&B shows as a panel."""
        how = {"inject": False, "data_is_not_path": True}
        self._write("write a page", lambda run, library: run.log({key: library.Html(page, **how)}))

    def artifact(self, folder: str | Path, name: str, kind: str, aliases: Sequence[str]) -> None:
        """Attach an exported artifact to the run. Its kind is W&B's ``type``.

        Characters in ``name`` that W&B does not allow become ``_``. W&B keeps a copy of the files until the run is
        synced, because the next study may replace the folder.
        """

        def write(run: wandb.Run, library: Any) -> None:
            allowed = re.sub(r"[^\w.-]", "_", name, flags=re.ASCII)
            artifact = library.Artifact(allowed, type=kind)
            with staging_in(self._folder):
                for file in sorted(Path(folder).rglob("*")):  # add_dir would print
                    if file.is_file():
                        artifact.add_file(str(file), str(file.relative_to(folder)), skip_cache=True)
            run.log_artifact(artifact, aliases=list(aliases))

        self._write("attach an artifact", write)

    def finish(self, exit_code: int = 0) -> None:
        """Close the run. Later calls do nothing."""
        run = self._run
        self._run = None
        if run is None:
            return
        with self._guard("finish a run"):
            run.finish(exit_code=exit_code)
            return
        if not run.offline:  # finishing failed, so not everything was sent
            with self._guard("find the folder of a run that waits to be synced"):
                self._unsent.append(os.path.relpath(Path(run.dir).parent))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state is None:
            self.summary({STATE: "complete"} if error is None else {STATE: "failed", "reason": repr(error)})
        self.finish(exit_code=1 if self._state == "failed" else 0)


class Tracker:
    """Writes the W&B runs of one study or one ``specexp.run``.

    No method raises: a failure is reported once, and work continues. In mode ``disabled``, wandb is not imported.

    ``name`` is the study's, and the group of its runs, which are written to ``<folder>/wandb``. Without a ``project``,
    it is ``WANDB_PROJECT`` or ``specexp``. For ``mode``, see :func:`~specexp.tracking.mode.resolve_mode`.

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
        project: str | None = None,
        mode: str | None = None,
        entity: str | None = None,
        tags: Sequence[str] = (),
    ) -> None:
        self.name = name
        self.folder = Path(folder)
        self.tags = tuple(tags)
        self.mode: Mode = resolve_mode(mode)
        self.project = project_of(project)
        self.entity = entity
        if self.mode != "disabled":
            take_over(project)
        self._guard = Guard()
        self._offline_runs = 0
        self._unsent: list[str] = []  # folders of online runs that lost their connection
        self._url: str | None = None
        self.failures: Mapping[str, int] = self._guard.failures  # how often each operation failed

    def trial(
        self, number: int, params: Mapping[str, Any], config: Mapping[str, Any] | None = None, what: str = ""
    ) -> TrackedRun:
        """Start the run of one trial, as a context manager. ``params`` maps dotted keys to the searched values.

        ``what`` is the part of the run's name that describes the trial, e.g. ``chain of 2, 2 nodes``.
        """
        whole = {**(config or {}), "trial": number, PARAMETERS: nest_parameters(params)}
        name = f"{self.name}-{number:03d}"
        return self.run(f"{name}: {what}" if what else name, job_type="trial", config=whole)

    def run(self, name: str, job_type: str = "run", config: Mapping[str, Any] | None = None) -> TrackedRun:
        """Start another run of the group, such as that of a whole study, or that for the arms of ``specexp.run``."""
        run = None
        if self.mode == "online":
            self.mode = "offline"  # remains offline if the server cannot be reached
            with self._guard("reach its server, so runs are written offline"):
                run = self._start(name, job_type, config, "online")
                self.mode = "online"
                self._url = run.url
        if self.mode == "offline":
            with self._guard("start a run"):
                run = self._start(name, job_type, config, "offline")
                self._offline_runs += 1
        return TrackedRun(run, self._guard, self.folder / "wandb", self._unsent)

    def _start(self, name: str, job_type: str, config: Mapping[str, Any] | None, mode: Mode) -> Any:
        # wandb reads this variable on import and has no setting for it
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
        import wandb

        self.folder.mkdir(parents=True, exist_ok=True)
        # Listing the installed packages alone takes 0.1 s per run, and environment.json already has them.
        # Monitoring the machine, git and the console would run while a trial is measured.
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
            finish_timeout_raises=True,  # otherwise, data left unsent on disk would go unnoticed
        )
        wandb.setup(wandb.Settings(silent=True))  # login prints before a run's own settings apply
        return wandb.init(
            project=self.project,
            entity=self.entity,
            group=self.name,
            name=name,
            job_type=job_type,
            id=secrets.token_hex(4),
            tags=self.tags,
            config=to_json(config or {}),
            dir=self.folder.absolute(),  # absolute, since wandb's service keeps its first working directory
            mode=mode,
            reinit="create_new",
            settings=settings,
        )

    def sync_hint(self) -> str:
        """Return the command that syncs offline runs, or else the URL of an online run; empty if there are no runs."""
        waiting = [f"{shlex.quote(str(self.folder / 'wandb'))}/offline-run-*"] if self._offline_runs else []
        waiting += [shlex.quote(folder) for folder in self._unsent]
        return f"wandb sync {' '.join(waiting)}" if waiting else self._url or ""
