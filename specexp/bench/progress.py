"""A progress bar: one line a stage, one line a finished trial above it."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Self

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from typing_extensions import override


class _Bars(Progress):
    above: RenderableType | None = None

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        if self.above is not None:
            yield self.above
        yield from super().get_renderables()


class StageBar:
    """A progress bar: one line a stage, one line a finished trial above it.

    If the console is no terminal, only finished trials are printed.
    """

    def __init__(self, console: Console) -> None:
        self._progress = _Bars(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._prompts: int | None = None
        self._seen = 0
        self._total = 0

    def stage(self, what: str, total: int, done: int = 0, prompts: int | None = None) -> None:
        """Begin a stage of ``total`` prompts, or of ``total`` trials of ``prompts`` prompts each."""
        if self._task is not None:
            self._progress.update(self._task, note="")
            self._progress.stop_task(self._task)
        self._task = self._progress.add_task(what, total=total, completed=done, note="")
        self._prompts = prompts
        self._seen, self._total = 0, total

    def show(self, standing: RenderableType) -> None:
        """Keep this above the bars; it is drawn again as it changes."""
        self._progress.above = standing

    def prompt(self) -> None:
        """Count a prompt."""
        if self._task is None:
            return
        if self._prompts is None:
            self._progress.advance(self._task)
        else:
            self._seen += 1
            self._progress.update(self._task, note=f"prompt {self._seen}/{self._prompts}")

    def trial(self, finished: int, line: str) -> None:
        """Print a finished trial; with other workers ``finished`` may exceed the total."""
        self._seen = 0
        if self._task is not None:
            self._progress.console.print(line, highlight=False, markup=False)
            self._progress.update(self._task, completed=min(finished, self._total), note="")

    def __enter__(self) -> Self:
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._progress.stop()
