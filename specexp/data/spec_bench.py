"""Spec-Bench (Xia et al. 2024, "Unlocking Efficiency in Large Language Model Inference"): six tasks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.data.mt_bench import MT_BENCH_CATEGORIES
from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import read_table

if TYPE_CHECKING:
    from datasets import Dataset

MULTI_TURN = "multi-turn conversation"


class SpecBench(PromptSet):
    """``question.jsonl`` of Spec-Bench: ``question_id, category, turns, reference``.

    The eight MT-bench categories are one category, ``multi-turn conversation``, as in the benchmark's own
    tables; the others keep the file's names. To see the eight apart, read the same file as
    :class:`~specexp.data.MTBench`.

    Args:
        path: The file, its URL, or a hub data set with these columns.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

    Example::

        SpecBench("spec_bench/question.jsonl").load()[0]
        # {"prompt_id": "81", "category": "multi-turn conversation", "turns": ["Compose ...", "Rewrite ..."]}
    """

    def __init__(
        self,
        path: str = "https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
        subset: str | None = None,
        split: str = "train",
    ) -> None:
        self.path = path
        self.subset = subset
        self.split = split

    def load(self) -> Dataset:
        """The questions, in the file's order."""
        table = read_table(self.path, subset=self.subset, split=self.split)
        return prompt_rows(
            (
                PromptRow(row.label("question_id"), _group(row.text("category")), row.texts("turns"))
                for row in table.rows("question_id", "category", "turns")
            ),
            where=self.path,
        )


def _group(category: str) -> str:
    return MULTI_TURN if category in MT_BENCH_CATEGORIES else category
