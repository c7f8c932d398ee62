"""MBPP's training tasks as text: the task as a prompt with its program, and as a commented program."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from specexp.data.corpus.split import Split
from specexp.data.corpus.text_source import Text, TextSource
from specexp.data.named_sets import mbpp_docstring
from specexp.data.source import read_table

_SPLITS: dict[Split, range] = {
    "train": range(601, 975),
    "validation": range(511, 601),
    "test": range(11, 511),
}


class ProgrammingTasks(TextSource):
    """MBPP in its original form, ``text, code, task_id, test_list``, split as published: 601 to 974 are trained on.

    Args:
        path: the file, or the name of the data set on the hub.
    """

    licence: ClassVar[str] = "CC-BY-4.0 (MBPP, Austin et al. 2021, Google Research)"
    written: ClassVar[bool] = False  # both forms of a task share its program

    def __init__(self, path: str = "google-research-datasets/mbpp") -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        for row in read_table(self.path, subset="full").rows("text", "code", "task_id", "test_list"):
            task = int(row.label("task_id"))
            if task in _SPLITS[split]:
                code = "\n".join(line.rstrip() for line in row.text("code").expandtabs(4).splitlines())
                yield Text(f"mbpp/{task}", f"{mbpp_docstring(row)}{code}\n")
                if split == "train":
                    tests = "\n".join(row.texts("test_list"))
                    yield Text(f"mbpp/{task}/tested", f'"""{row.text("text")}"""\n\n{code}\n\n{tests}\n')
