"""Raw text whose first tokens are the prompt, as DySpec and Sequoia measure (128, then 128 new ones)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts


@dataclass(frozen=True)
class RawText(TablePrompts):
    """The first ``items`` texts of a source, of each the first ``prompt_tokens`` tokens.

    A shorter text is a prompt as a whole. Large sources are streamed: what is not needed is not downloaded. Rows have
    no name of their own, so the row number, from 0, is the prompt id.

    Args:
        path: a file (``.txt``: one text a line), its URL, or a hub data set.
        key: the column that holds the text; in a ``.txt`` file it is ``text``.
        category: the category of all rows.
        items: how many texts to read, from the first.
        prompt_tokens: how many tokens of each text are the prompt.

    Example::

        RawText("stories.txt", items=10, prompt_tokens=64).load()[0]["turns"]  # ["Once upon a time ..."]
    """

    key: str = "text"
    category: str = "raw_text"
    items: Annotated[int, Field(ge=1)] = 1000
    prompt_tokens: Annotated[int, Field(ge=1)] = 128

    @property
    @override
    def limit(self) -> int:
        return self.items

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows(self.key):  # whole texts: they are cut where they are tokenized
            yield PromptRow(str(row.number - 1), self.category, [row.text(self.key)])
