"""Alpaca (Taori et al. 2023): instructions, some with an input to work on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import Row, read_table

if TYPE_CHECKING:
    from datasets import Dataset


class Alpaca(PromptSet):
    """``alpaca_data.json``, ``instruction, input, output``: the instruction, a blank line, the input.

    Rows have no name of their own, so the row number, from 0, is the prompt id.

    Args:
        path: The file, its URL, or the hub data set.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

    Example::

        Alpaca("alpaca_data.json").load()[0]["turns"]  # ["Sort these numbers.\\n\\n3, 1, 2"]
    """

    def __init__(
        self, path: str = "tatsu-lab/alpaca", subset: str | None = None, split: str = "train"
    ) -> None:
        self.path = path
        self.subset = subset
        self.split = split

    def load(self) -> Dataset:
        """The instructions, in the file's order."""
        table = read_table(self.path, subset=self.subset, split=self.split)
        return prompt_rows(
            (
                PromptRow(str(row.number - 1), "instruction", [_prompt(row)])
                for row in table.rows("instruction", "input")
            ),
            where=self.path,
        )


def _prompt(row: Row) -> str:
    instruction = row.text("instruction")
    # Most rows have no input, written as an empty text.
    return f"{instruction}\n\n{row.text('input')}" if row.values["input"] else instruction
