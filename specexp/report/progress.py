"""A progress bar with one line per stage, and above it one line per finished trial."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from time import time

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from typing_extensions import override


class StageBar(Progress):
    """A progress bar with one line per stage, and above it one line per finished trial.

    Without a terminal, finished trials are printed, and in other stages a line at most once a minute.
    """

    _above: Sequence[RenderableType] = ()  # a class attribute, since the base class's constructor already draws

    def __init__(self, console: Console) -> None:
        super().__init__(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
            TimeElapsedColumn(),
            console=console,
        )
        self._trial_prompts: int | None = None  # prompts per trial; None if the stage counts prompts
        self._decoded = 0  # prompts decoded in the current trial
        self._printed = time()  # when a line was last printed for prompts

    @override
    def get_renderables(self) -> Iterable[RenderableType]:
        yield from self._above
        yield from super().get_renderables()

    def stage(self, what: str, total: int, done: int = 0, prompts: int | None = None) -> None:
        """Begin a stage of ``total`` prompts, or of ``total`` trials with ``prompts`` prompts each."""
        for task in self.tasks[-1:]:
            self.update(task.id, note="")
            self.stop_task(task.id)
        self.add_task(what, total=total, completed=done, note="")
        self._trial_prompts = prompts
        self._decoded = 0

    def show(self, above: RenderableType) -> None:
        """Show ``above`` above the bars from now on, and redraw it whenever it changes."""
        self._above = [above]

    def prompt(self) -> None:
        """Count a decoded prompt."""
        self._decoded += 1
        for task in self.tasks[-1:]:
            if self._trial_prompts is None:
                self.advance(task.id)
                if not self.console.is_terminal and time() - self._printed > 60:  # seconds
                    self._printed = time()
                    self.console.print(f"{task.description}: {task.completed:g} of {task.total:g}", highlight=False)
            else:
                self.update(task.id, note=f"prompt {self._decoded}/{self._trial_prompts}")

    def trial(self, finished: int, line: str) -> None:
        """Print a finished trial, unless its line is empty. With other workers ``finished`` may exceed the total."""
        self._decoded = 0
        for task in self.tasks[-1:]:
            if line:
                self.console.print(line, highlight=False, markup=False)
            self.update(task.id, completed=min(finished, task.total or 0), note="")
