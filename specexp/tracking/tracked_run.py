"""One W&B run, seen from the work it watches."""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from specexp.tracking.guard import Guard
from specexp.tracking.names import STATE, plain, table_columns

if TYPE_CHECKING:
    import wandb
    from matplotlib.figure import Figure


@contextmanager
def staging_in(folder: Path) -> Iterator[None]:
    """Have W&B stage the bytes of artifacts below ``folder`` while the block runs, not in the home folder.

    Then the study's folder is all that a later ``wandb sync`` needs. A folder that the user chose stays.
    """
    if "WANDB_DATA_DIR" in os.environ:
        yield
        return
    os.environ["WANDB_DATA_DIR"] = str(folder.resolve())
    try:
        yield
    finally:
        del os.environ["WANDB_DATA_DIR"]


class TrackedRun:
    """A run of W&B that may be missing, and whose failures never reach the caller.

    As a context manager it finishes itself and lets the caller's exceptions pass; ``state`` in the summary
    then says ``complete``, or ``failed`` with the ``reason``, unless :meth:`summary` has set it (a pruned
    trial).

    Args:
        run: The run, or None where there is none (mode ``disabled``, or W&B failed to start it).
        guard: Counts and reports failures.
        folder: W&B's folder of the study, for what waits to be synced.
        unsent: Takes the run's own folder if its connection is lost before all was sent.

    Example:
        >>> with TrackedRun(None, Guard(), Path("runs")) as run:
        ...     run.log({"speedup": 1.2})
    """

    def __init__(
        self, run: wandb.Run | None, guard: Guard, folder: Path, unsent: list[str] | None = None
    ) -> None:
        self._run = run
        self._guard = guard
        self._folder = folder
        self._unsent = unsent
        self._state: str | None = None

    @property
    def url(self) -> str | None:
        """Address of an online run, None offline."""
        return self._run.url if self._run is not None else None

    def log(self, values: Mapping[str, Any], step: int | None = None) -> None:
        """Append values to the run's history, as the next step or as ``step``."""
        if self._run is not None:
            with self._guard("log values"):
                # At once: a step that waits is sent after the summary, and its values take the place of that.
                self._run.log(plain(values), step=step, commit=True)

    def summary(self, values: Mapping[str, Any]) -> None:
        """Set values of the run as a whole: what tables and panels compare."""
        self._state = values.get(STATE, self._state)
        if self._run is not None:
            with self._guard("write a summary"):
                self._run.summary.update(plain(values))

    def table(self, key: str, records: Sequence[Mapping[str, Any]]) -> None:
        """Show records (one mapping a row) as a ``wandb.Table``."""
        if self._run is not None and records:
            with self._guard("write a table"):
                import wandb

                columns, rows = table_columns(records)
                with staging_in(self._folder):  # a table is an artifact too
                    self._run.log({key: wandb.Table(columns=columns, data=rows)})

    def picture(self, key: str, picture: Figure | str | Path, caption: str | None = None) -> None:
        """Show a matplotlib figure or an image file."""
        if self._run is not None:
            with self._guard("write a picture"):
                import wandb
                from PIL import Image

                if isinstance(picture, (str, Path)):
                    source: Any = str(picture)
                else:
                    png = io.BytesIO()
                    picture.savefig(png, format="png")
                    source = Image.open(png)
                self._run.log({key: wandb.Image(source, caption=caption)})

    def html(self, key: str, page: str) -> None:
        """Show a page of HTML as a panel.

        Args:
            key: Name of the panel.
            page: The whole page.
        """
        if self._run is not None:
            with self._guard("write a page"):
                import wandb

                self._run.log({key: wandb.Html(page, inject=False, data_is_not_path=True)})

    def artifact(
        self,
        folder: str | Path,
        name: str,
        kind: str,
        aliases: Sequence[str] = ("latest", "best"),
        metadata: Mapping[str, Any] | None = None,
    ) -> None:
        """Attach an exported artifact to the run.

        W&B keeps a copy beside the runs until they are synced: the next study may replace the folder
        before that.

        Args:
            folder: The artifact's folder; it stays the canonical copy.
            name: Name of the artifact in W&B.
            kind: Artifact kind, W&B's ``type``.
            aliases: Names of this version.
            metadata: Shown beside it.
        """
        if self._run is not None:
            with self._guard("attach an artifact"):
                import wandb

                artifact = wandb.Artifact(name, type=kind, metadata=plain(metadata or {}))
                with staging_in(self._folder):
                    for file in sorted(Path(folder).rglob("*")):  # add_dir would print
                        if file.is_file():
                            artifact.add_file(str(file), str(file.relative_to(folder)), skip_cache=True)
                self._run.log_artifact(artifact, aliases=list(aliases))

    def finish(self, exit_code: int = 0) -> None:
        """Close the run; further calls do nothing."""
        run, self._run = self._run, None
        if run is not None:
            sent = False
            with self._guard("finish a run"):
                run.finish(exit_code=exit_code)
                sent = True
            if not sent and self._unsent is not None and not run.offline:
                with self._guard("tell where a run waits to be synced"):
                    self._unsent.append(os.path.relpath(Path(run.dir).parent))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._state is None:
            self.summary({STATE: "complete"} if error is None else {STATE: "failed", "reason": repr(error)})
        self.finish(exit_code=1 if self._state == "failed" else 0)
