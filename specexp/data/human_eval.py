"""HumanEval (Chen et al. 2021, "Evaluating Large Language Models Trained on Code"): functions to complete."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts


@dataclass(frozen=True)
class HumanEval(TablePrompts):
    """``HumanEval.jsonl.gz``, ``task_id, prompt, ...``: the prompt is a signature and docstring to continue.

    Example::

        HumanEval("humaneval/HumanEval.jsonl.gz").load()[0]["prompt_id"]  # "HumanEval/0"
    """

    path: str = "openai/openai_humaneval"
    split: str = "test"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("task_id", "prompt"):
            yield PromptRow(row.label("task_id"), "code", [row.text("prompt")])
