"""The embedded prompts: standard library functions that the embedded models were not trained on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from specexp.data.prompt_set import PromptRow, PromptSet, PromptSetError, prompt_rows

if TYPE_CHECKING:
    from datasets import Dataset


class StdlibFunctions(PromptSet):
    """Openings of standard library functions; needs no network and no file.

    Args:
        split: Splits share no module. A search uses ``validation`` and the confirmed figures come from
            ``test``; ``train`` is what the embedded models have seen.

    Example::

        StdlibFunctions("test").load()[0]["turns"]  # ["def ..."], one turn
    """

    def __init__(self, split: Literal["train", "validation", "test"] = "test") -> None:
        self.split = split

    def load(self) -> Dataset:
        """The openings, in the order of the split."""
        from specexp.data.stdlib_functions import stdlib_functions

        try:
            functions = stdlib_functions(self.split)
        except ValueError as error:  # the library's source is not installed
            raise PromptSetError(str(error)) from error
        return prompt_rows(
            (PromptRow(row["prompt_id"], row["category"], [row["prompt"]]) for row in functions),
            where=f"StdlibFunctions({self.split!r})",
        )
