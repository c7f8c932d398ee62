"""HumanEval's functions as texts to be measured on, never trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from specexp.data.corpus.split import Split
from specexp.data.corpus.text_source import Text, TextSource
from specexp.data.source import read_table


class HumanEvalTasks(TextSource):
    """HumanEval (Chen et al. 2021), all 164 functions with their docstrings; all of them are test texts.

    Args:
        path: the file, or the name of the data set on the hub.
    """

    licence: ClassVar[str] = "MIT (HumanEval, Chen et al. 2021, OpenAI)"

    def __init__(self, path: str = "openai/openai_humaneval") -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        if split == "test":
            for row in read_table(self.path, split="test").rows("task_id", "prompt", "canonical_solution"):
                yield Text(row.label("task_id"), row.text("prompt") + row.text("canonical_solution"))
