"""Raw text whose first tokens are the prompt, as DySpec and Sequoia measure (128, then 128 new ones)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import read_table

if TYPE_CHECKING:
    from datasets import Dataset


class RawText(PromptSet):
    """The first ``items`` texts of a source, of each the first ``prompt_tokens`` tokens.

    A shorter text is a prompt as a whole. Large sources are streamed: what is not needed is not downloaded. Rows have
    no name of their own, so the row number, from 0, is the prompt id.

    Args:
        path: a file (``.txt``: one text a line), its URL, or a hub data set.
        key: the column that holds the text; in a ``.txt`` file it is ``text``.
        category: the category of all rows.
        items: how many texts to read, from the first.
        prompt_tokens: how many tokens of each text are the prompt.
        subset: the subset of a hub data set; a file has none.
        split: the split of a hub data set; a file has none.

    Example::

        RawText("stories.txt", items=10, prompt_tokens=64).load()[0]["turns"]  # ["Once upon a time ..."]
    """

    def __init__(
        self,
        path: str,
        key: str = "text",
        category: str = "raw_text",
        items: Annotated[int, Field(ge=1)] = 1000,
        prompt_tokens: Annotated[int, Field(ge=1)] = 128,
        subset: str | None = None,
        split: str = "train",
    ) -> None:
        self.path = path
        self.key = key
        self.category = category
        self.items = items
        self.prompt_tokens = prompt_tokens
        self.subset = subset
        self.split = split

    @override
    def load(self) -> Dataset:
        # Whole texts: they are cut where they are tokenized.
        table = read_table(self.path, subset=self.subset, split=self.split, limit=self.items)
        rows = (
            PromptRow(str(row.number - 1), self.category, [row.text(self.key)])
            for row in table.rows(self.key)
        )
        return prompt_rows(rows, where=self.path)
