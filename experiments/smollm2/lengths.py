"""Requests about texts of 64 to 4,096 tokens, from the help topics of Python's standard library."""

from __future__ import annotations

from pydoc_data.topics import topics
from typing import TYPE_CHECKING, Annotated

from pydantic import Field
from typing_extensions import override

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows

if TYPE_CHECKING:
    from datasets import Dataset

LENGTHS = (64, 128, 256, 512, 1024, 2048, 4096)
_CHARACTERS = 4.0  # of a token of such texts
_AROUND = 30  # tokens of the question and the chat template


class HelpTopics(PromptSet):
    """Asks for an explanation of texts of each length. The category is the length; longer texts continue shorter ones.

    Args:
        each: number of prompts of each length.
    """

    def __init__(self, each: Annotated[int, Field(ge=1, le=20)] = 2) -> None:
        self.each = each

    @override
    def load(self) -> Dataset:
        whole = "\n\n".join(topics[name] for name in sorted(topics))
        most = int(_CHARACTERS * LENGTHS[-1])
        rows = [
            PromptRow(
                f"{length}-{number}",
                f"{length:,} tokens",
                [f"Explain this text.\n\n{whole[most * number :][: int(_CHARACTERS * (length - _AROUND))]}"],
            )
            for number in range(self.each)
            for length in LENGTHS
        ]
        return prompt_rows(rows, where="HelpTopics")
