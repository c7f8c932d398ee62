"""Prompt sets that turn each row of one table into a prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import SourceTable, read_table

if TYPE_CHECKING:
    from datasets import Dataset


@dataclass(frozen=True)
class TablePrompts(PromptSet):
    """A table in its original format; an implementation says which columns make a prompt.

    Args:
        path: a file in its original format, its URL, or a hub data set.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set; a file has none.

    Example::

        @dataclass(frozen=True)
        class Riddles(TablePrompts):
            path: str = "somebody/riddles"

            def rows(self, table):
                return (PromptRow(row.label("id"), "riddle", [row.text("text")]) for row in table.rows("id", "text"))
    """

    path: str
    subset: str | None = None
    split: str = "train"

    @property
    def limit(self) -> int | None:
        """How many rows are read, from the first; None reads all of them."""
        return None

    @abstractmethod
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        """The prompts of a table, in its order.

        Raises:
            PromptSetError: a column is missing, or a row does not hold what it should.
        """

    @override
    def load(self) -> Dataset:
        table = read_table(self.path, subset=self.subset, split=self.split, limit=self.limit)
        return prompt_rows(self.rows(table), where=self.path)
