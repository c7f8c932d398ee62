"""GSM8K's training problems as text: as they stand, in steps with questions of their own, and as judgements."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import ClassVar

from typing_extensions import override

from experiments.pair.corpus.worked import Worked, WorkedStep, documents, probes
from specexp.data.corpus.split import Split
from specexp.data.corpus.text_source import Probe, Text, TextSource, split_of_name
from specexp.data.source import read_table

_CALCULATION = re.compile(r"<<[^<>]*>>")
_RESULT = re.compile(r"\$?[\d.,()%$]+(?:\s*(?:[-+*/x=]|of)\s*\$?[\d.,()%$]+)*\s*=\s*\$?[\d,]*\.?\d+%?")


class GradeSchool(TextSource):
    """``train.jsonl`` of GSM8K, split by problem. The original has no sub-questions: one is made of every step.

    Args:
        path: the file, or the name of the data set on the hub.
    """

    licence: ClassVar[str] = "MIT (GSM8K, Cobbe et al. 2021)"
    written: ClassVar[bool] = False  # forms of one problem share their lines

    def __init__(self, path: str = "openai/gsm8k") -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        problems = list(self.problems(split))
        for number, text in enumerate(documents(problems, f"gsm8k/{split}")):
            yield Text(f"gsm8k/{split}/{number}", text)

    @override
    def probes(self, split: Split) -> Iterator[Probe]:
        return probes(list(self.problems(split)))

    def problems(self, split: Split) -> Iterator[Worked]:
        """The problems of a split with steps."""
        for row in read_table(self.path, subset="main", split="train").rows("question", "answer"):
            if split_of_name(row.text("question")) == split:
                worked = worked_of(row.text("question"), row.text("answer"))
                if worked.steps:
                    yield worked


def worked_of(question: str, answer: str) -> Worked:
    """A problem of the original file; a step is a line with a calculation, and lines without one stand before it.

    Example:
        >>> worked_of("How many?", "She sold 48/2 = <<48/2=24>>24 clips.\\n#### 24").steps[0].answer
        'She sold 48/2 = 24 clips.'
    """
    text, _, number = answer.rpartition("####")
    question = " ".join(question.split())
    steps: list[WorkedStep] = []
    waiting: list[str] = []
    for line in text.strip().splitlines():
        waiting.append(_CALCULATION.sub("", line).strip())
        if "<<" in line:
            whole = " ".join(waiting)
            steps.append(WorkedStep(_asked(waiting[-1]), whole))
            waiting = []
    if steps:
        asked = re.split(r"(?<=[.!?])\s+", question)[-1]
        last = steps.pop()
        steps.append(
            WorkedStep(asked if asked.endswith("?") else last.question, " ".join([last.answer, *waiting]))
        )
    return Worked(question, tuple(steps), number.strip())


def _asked(line: str) -> str:
    """The question that a line answers: its calculation is what is asked for."""
    asked = _RESULT.sub("how much", line, count=1).rstrip(" .")
    return f"{asked[:1].upper()}{asked[1:]}?"
