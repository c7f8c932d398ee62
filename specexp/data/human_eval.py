"""HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"): functions to complete."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import read_table

if TYPE_CHECKING:
    from datasets import Dataset


class HumanEval(PromptSet):
    """``HumanEval.jsonl.gz``, ``task_id, prompt, ...``: the prompt is a signature and docstring to continue.

    Args:
        path: The file (compressed or not), its URL, or the hub data set.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

    Example::

        HumanEval("humaneval/HumanEval.jsonl.gz").load()[0]["prompt_id"]  # "HumanEval/0"
    """

    def __init__(
        self, path: str = "openai/openai_humaneval", subset: str | None = None, split: str = "test"
    ) -> None:
        self.path = path
        self.subset = subset
        self.split = split

    def load(self) -> Dataset:
        """The functions to complete, in the file's order."""
        table = read_table(self.path, subset=self.subset, split=self.split)
        return prompt_rows(
            (
                PromptRow(row.label("task_id"), "code", [row.text("prompt")])
                for row in table.rows("task_id", "prompt")
            ),
            where=self.path,
        )
