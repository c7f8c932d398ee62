"""MT-bench (Zheng et al. 2023, "Judging LLM-as-a-Judge"): 80 conversations of two turns."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.prompt_set import PromptRow
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)


@dataclass(frozen=True)
class MTBench(TablePrompts):
    """``question.jsonl`` of MT-bench, ``question_id, category, turns``; other categories are left out.

    The hub's copy, which says ``prompt_id, category, prompt``, is read as well.

    Example::

        MTBench("mt_bench/question.jsonl").load()[0]["category"]  # "writing"
    """

    path: str = "HuggingFaceH4/mt_bench_prompts"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        id_key, turns_key = ("prompt_id", "prompt") if table.has("prompt") else ("question_id", "turns")
        for row in table.rows(id_key, "category", turns_key):
            # Spec-Bench's file holds MT-bench beside five other tasks.
            if row.text("category") in MT_BENCH_CATEGORIES:
                yield PromptRow(row.label(id_key), row.text("category"), row.texts(turns_key))
