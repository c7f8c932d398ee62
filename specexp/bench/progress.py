"""A progress bar: one line a stage, one line a finished trial above it."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from typing_extensions import override


class StageBar(Progress):
    """A progress bar: one line a stage, one line a finished trial above it.

    If the console is no terminal, only finished trials are printed.
    """

    _above: RenderableType | None = None

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._task: TaskID | None = None
        self._prompts: int | None = None
        self._decoded = 0
        self._total = 0

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        if self._above is not None:
            yield self._above
        yield from super().get_renderables()

    def stage(self, what: str, total: int, done: int = 0, prompts: int | None = None) -> None:
        """Begin a stage of ``total`` prompts, or of ``total`` trials of ``prompts`` prompts each."""
        if self._task is not None:
            self.update(self._task, note="")
            self.stop_task(self._task)
        self._task = self.add_task(what, total=total, completed=done, note="")
        self._prompts = prompts
        self._decoded, self._total = 0, total

    def show(self, above: RenderableType) -> None:
        """Keep this above the bars; it is drawn again as it changes."""
        self._above = above

    def prompt(self) -> None:
        """Count a prompt."""
        if self._task is None:
            return
        if self._prompts is None:
            self.advance(self._task)
        else:
            self._decoded += 1
            self.update(self._task, note=f"prompt {self._decoded}/{self._prompts}")

    def trial(self, finished: int, line: str) -> None:
        """Print a finished trial; with other workers ``finished`` may exceed the total."""
        self._decoded = 0
        if self._task is not None:
            self.console.print(line, highlight=False, markup=False)
            self.update(self._task, completed=min(finished, self._total), note="")
