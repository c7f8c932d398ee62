"""Prompt sets of reasoning problems to be solved by a tree-of-thoughts search."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field
from typing_extensions import override

from specexp.base.messages import restated
from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.tasks.task import Item, Task

if TYPE_CHECKING:
    from datasets import Dataset


class Problem(NamedTuple):
    """An item together with its task."""

    task: Task
    item: Item


class TaskItems(PromptSet):
    """The items of one or more tasks. The category is the task's name, and the only turn is the item's text.

    Args:
        tasks: one or more tasks with different names.
        items: number of items per task, starting with the first; None for all.
    """

    continued = True  # a task's prompts end where its answer begins

    def __init__(self, tasks: list[Task], items: Annotated[int, Field(ge=1)] | None = None) -> None:
        if not tasks:
            raise ValueError("TaskItems: tasks must hold at least one task, got none")
        names = [task.name for task in tasks]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"TaskItems: tasks must have different names, got {twice[0]!r} twice")
        self.tasks = tasks
        self.items = items

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """All items with their tasks, keyed by prompt id. Raises PromptSetError if a file cannot be read."""
        with restated(PromptSetError, lambda error: PromptSetError(str(error), ("prompts", "init_args", "tasks"))):
            return {
                f"{task.name}/{item.item_id}": Problem(task, item)
                for task in self.tasks
                for item in task.load()[: self.items]
            }

    @override
    def load(self) -> Dataset:
        rows = (
            PromptRow(prompt_id, problem.task.name, [problem.item.problem])
            for prompt_id, problem in self.problems.items()
        )
        return prompt_rows(rows, where="TaskItems")
