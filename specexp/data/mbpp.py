"""MBPP (Austin et al. 2021, "Program Synthesis with Large Language Models"): short Python tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import Row, Table, read_table

if TYPE_CHECKING:
    from datasets import Dataset


class MBPP(PromptSet):
    """MBPP in either of its two forms, told apart by their keys.

    - ``question_id, category, turns``: the Spec-Bench form that Token Recycling measures on; its turns are
      used as they stand.
    - ``task_id, text, test_list``: the original. The prompt is the task and its first test as a docstring,
      which is how the other form is written too.

    Args:
        path: A file in one of the forms, its URL, or a hub data set with these columns.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

    Example::

        MBPP("mbpp/question.jsonl").load()[0]["prompt_id"]  # "2"
    """

    def __init__(
        self, path: str = "google-research-datasets/mbpp", subset: str | None = "full", split: str = "test"
    ) -> None:
        self.path = path
        self.subset = subset
        self.split = split

    def load(self) -> Dataset:
        """The tasks, in the file's order."""
        table = read_table(self.path, subset=self.subset, split=self.split)
        return prompt_rows(
            _spec_bench_form(table) if table.has("turns") else _original_form(table), where=self.path
        )


def _spec_bench_form(table: Table) -> list[PromptRow]:
    return [
        PromptRow(row.label("question_id"), row.text("category"), row.texts("turns"))
        for row in table.rows("question_id", "category", "turns")
    ]


def _original_form(table: Table) -> list[PromptRow]:
    return [
        PromptRow(row.label("task_id"), "code", [_as_docstring(row)])
        for row in table.rows("task_id", "text", "test_list")
    ]


def _as_docstring(row: Row) -> str:
    task, first_test = row.text("text"), row.texts("test_list")[0]
    return f'Create a Python script for this problem:\n```python\n"""\n{task}\n{first_test}\n"""\n\n```'
