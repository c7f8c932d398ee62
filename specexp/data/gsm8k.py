"""GSM8K (Cobbe et al. 2021, "Training Verifiers to Solve Math Word Problems")."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts


@dataclass(frozen=True)
class GSM8K(TablePrompts):
    """``test.jsonl`` or ``train.jsonl`` of GSM8K, ``question, answer``: the question is the prompt.

    Rows have no name of their own, so the row number, from 0, is the prompt id.
    :class:`specexp.data.tasks.gsm8k.GSM8K` reads the same files, with the answers.

    Example::

        GSM8K("gsm8k/test.jsonl").load()[0]["category"]  # "math_reasoning"
    """

    path: str = "openai/gsm8k"
    subset: str | None = "main"
    split: str = "test"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("question"):
            yield PromptRow(str(row.number - 1), "math_reasoning", [row.text("question")])
