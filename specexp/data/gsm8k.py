"""GSM8K (Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems")."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import read_table

if TYPE_CHECKING:
    from datasets import Dataset


class GSM8K(PromptSet):
    """``test.jsonl`` or ``train.jsonl`` of GSM8K, ``question, answer``: the question is the prompt.

    Rows have no name of their own, so the row number, from 0, is the prompt id.

    Args:
        path: One of the files, its URL, or the hub data set.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

    Example::

        GSM8K("gsm8k/test.jsonl").load()[0]["category"]  # "math_reasoning"
    """

    def __init__(self, path: str = "openai/gsm8k", subset: str | None = "main", split: str = "test") -> None:
        self.path = path
        self.subset = subset
        self.split = split

    def load(self) -> Dataset:
        """The questions, in the file's order."""
        table = read_table(self.path, subset=self.subset, split=self.split)
        return prompt_rows(
            (
                PromptRow(str(row.number - 1), "math_reasoning", [row.text("question")])
                for row in table.rows("question")
            ),
            where=self.path,
        )
