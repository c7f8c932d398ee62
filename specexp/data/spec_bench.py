"""Spec-Bench (Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference"): six tasks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from typing_extensions import override

from specexp.data.mt_bench import MT_BENCH_CATEGORIES
from specexp.data.prompt_set import PromptRow
from specexp.data.source import SourceTable
from specexp.data.table_prompts import TablePrompts

MULTI_TURN = "multi-turn conversation"


@dataclass(frozen=True)
class SpecBench(TablePrompts):
    """``question.jsonl`` of Spec-Bench: ``question_id, category, turns, reference``.

    The eight MT-bench categories are one category, ``multi-turn conversation``, as in the benchmark's own tables; the
    others keep the file's names. To see the eight apart, read the same file as :class:`~specexp.data.mt_bench.MTBench`.

    Example::

        SpecBench("spec_bench/question.jsonl").load()[0]
        # {"prompt_id": "81", "category": "multi-turn conversation", "turns": ["Compose ...", "Rewrite ..."]}
    """

    path: str = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"

    @override
    def rows(self, table: SourceTable) -> Iterable[PromptRow]:
        for row in table.rows("question_id", "category", "turns"):
            category = row.text("category")
            group = MULTI_TURN if category in MT_BENCH_CATEGORIES else category
            yield PromptRow(row.label("question_id"), group, row.texts("turns"))
