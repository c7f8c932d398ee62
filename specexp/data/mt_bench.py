"""MT-bench (Zheng et al. 2023, "Judging LLM-as-a-Judge"): 80 conversations of two turns."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specexp.data.prompt_set import PromptRow, PromptSet, prompt_rows
from specexp.data.source import read_table

if TYPE_CHECKING:
    from datasets import Dataset

MT_BENCH_CATEGORIES = frozenset(
    {"writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"}
)


class MTBench(PromptSet):
    """``question.jsonl`` of MT-bench, ``question_id, category, turns``; other categories are left out.

    The hub's copy, which says ``prompt_id, category, prompt``, is read as well.

    Args:
        path: The file, its URL, or a hub data set with these columns.
        subset: Of a hub data set; a file has none.
        split: Of a hub data set; a file has none.

    Example::

        MTBench("mt_bench/question.jsonl").load()[0]["category"]  # "writing"
    """

    def __init__(
        self, path: str = "HuggingFaceH4/mt_bench_prompts", subset: str | None = None, split: str = "train"
    ) -> None:
        self.path = path
        self.subset = subset
        self.split = split

    def load(self) -> Dataset:
        """The conversations, in the file's order."""
        table = read_table(self.path, subset=self.subset, split=self.split)
        id_key, turns_key = ("prompt_id", "prompt") if table.has("prompt") else ("question_id", "turns")
        return prompt_rows(
            (
                PromptRow(row.label(id_key), row.text("category"), row.texts(turns_key))
                for row in table.rows(id_key, "category", turns_key)
                # Spec-Bench's file holds MT-bench beside five other tasks.
                if row.text("category") in MT_BENCH_CATEGORIES
            ),
            where=self.path,
        )
