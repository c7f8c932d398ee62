"""Items of reasoning tasks as prompts, to be searched by trees of thought."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows
from specexp.data.tasks.task import Item, Task

if TYPE_CHECKING:
    from datasets import Dataset


class Problem(NamedTuple):
    """An item and its task."""

    task: Task
    item: Item


class TaskItems(PromptSet):
    """The items of one or several tasks; the task is the category, and the text of an item is the only turn.

    Args:
        tasks: at least one, with different names.
        items: number of items of each task, from the first; None for all.
    """

    def __init__(self, tasks: list[Task], items: Annotated[int, Field(ge=1)] | None = None) -> None:
        if not tasks:
            raise ValueError("TaskItems was given no task; at least one is needed")
        names = [task.name for task in tasks]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise ValueError(f"TaskItems was given the task {twice[0]} twice; list every task once")
        self.tasks = tasks
        self.items = items

    @cached_property
    def problems(self) -> dict[str, Problem]:
        """Every item with its task, by prompt id; raises PromptSetError if a file cannot be read."""
        try:
            return {
                f"{task.name}/{item.item_id}": Problem(task, item)
                for task in self.tasks
                for item in task.load()[: self.items]
            }
        except PromptSetError as error:
            raise PromptSetError(str(error), ("prompts", "init_args", "tasks")) from error

    @override
    def load(self) -> Dataset:
        rows = (
            PromptRow(prompt_id, problem.task.name, [problem.item.problem])
            for prompt_id, problem in self.problems.items()
        )
        return prompt_rows(rows, where="TaskItems")
