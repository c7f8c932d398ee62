"""MBPP (Austin et al. 2021, "Program Synthesis with Large Language Models"): short Python tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.row import Row
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts


@dataclass(frozen=True)
class MBPP(TablePrompts):
    """MBPP in either of its two forms, told apart by their keys.

    - ``question_id, category, turns``: the Spec-Bench form that Token Recycling measures on; its turns are used as they
      stand.
    - ``task_id, text, test_list``: the original. The prompt is the task and its first test as a docstring, which is how
      the other form is written too, but for a line break at its end.

    Example::

        MBPP("mbpp/question.jsonl").load()[0]["prompt_id"]  # "2"
    """

    path: str = "google-research-datasets/mbpp"
    subset: str | None = "full"
    split: str = "test"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        if table.has("turns"):
            for row in table.rows("question_id", "category", "turns"):
                yield PromptRow(row.label("question_id"), row.text("category"), row.texts("turns"))
        else:
            for row in table.rows("task_id", "text", "test_list"):
                yield PromptRow(row.label("task_id"), "code", [as_docstring(row)])


def as_docstring(row: Row) -> str:
    """A task of the original form as the prompt of the other one."""
    task, first_test = row.text("text"), row.texts("test_list")[0]
    return f'Create a Python script for this problem:\n```python\n"""\n{task}\n{first_test}\n"""\n\n```\n'
