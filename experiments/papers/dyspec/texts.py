"""The raw texts of several sets in one run, so that one command measures all cells of DySpec's Tables 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows

if TYPE_CHECKING:
    from datasets import Dataset


class Texts(PromptSet):
    """The texts of each set in turn, cut to the first set's ``prompt_tokens``. Their category is the set's name."""

    continued = True

    def __init__(self, sets: list[PromptSet]) -> None:
        self.prompt_tokens = sets[0].prompt_tokens
        self.sets = sets

    @override
    def load(self) -> Dataset:
        rows = (
            PromptRow(f"{one.label}/{row['prompt_id']}", one.label, row["turns"])
            for one in self.sets
            for row in one.load()
        )
        return prompt_rows(rows, where="Texts")
