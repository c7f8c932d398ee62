"""The raw texts of several sets in one run, so that one command measures all cells of DySpec's Tables 1 and 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows

if TYPE_CHECKING:
    from datasets import Dataset


class Texts(PromptSet):
    """The texts of each set in turn, with the name of the set as their category.

    Args:
        sets: one or more sets of different classes, such as ``C4``, with equal ``prompt_tokens``.
    """

    continued = True

    def __init__(self, sets: list[PromptSet]) -> None:
        kinds, (self.prompt_tokens, *others) = {type(one) for one in sets}, {one.prompt_tokens for one in sets}
        if len(kinds) < len(sets) or others:
            raise ValueError("Texts: sets must be of different classes and have equal prompt_tokens")
        self.sets = sets

    @override
    def load(self) -> Dataset:
        rows = (
            PromptRow(f"{one.label}/{row['prompt_id']}", one.label, row["turns"])
            for one in self.sets
            for row in one.load()
        )
        return prompt_rows(rows, where="Texts")
