"""Creative Writing by self-supervision: four paragraphs of prose, their last sentences given, the first ones a plan."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator
from typing import ClassVar, NamedTuple

from typing_extensions import override

from experiments.pair.corpus.documentation import PythonDocumentation, plain
from experiments.pair.corpus.worked import WITH_HEAD, example, head_of, joined
from specexp.data.corpus.split import Split
from specexp.data.corpus.text_source import Text, TextSource
from specexp.data.tasks.creative_writing import SENTENCES, CreativeWriting
from specexp.data.tasks.task import Item

_TASK = CreativeWriting("")
_GOOD = (
    "The parts follow one another, and each leads to its sentence.",
    "One subject joins all four parts, and every sentence has its place.",
    "Each part prepares the sentence that it has to end with.",
)
_BAD = (
    "The parts have nothing to do with each other.",
    "The parts do not lead to the sentences.",
    "The sentences come as a surprise, and nothing joins the parts.",
)


class Passage(NamedTuple):
    """Paragraphs of a page that follow one another but for code and lists, each of at least two sentences."""

    paragraphs: tuple[tuple[str, ...], ...]

    @property
    def item(self) -> Item:
        """The task's problem: the last sentences."""
        last = [sentences[-1] for sentences in self.paragraphs]
        problem = "\n".join(f"{place}. {sentence}" for place, sentence in enumerate(last, start=1))
        return Item("", 0, problem, tuple(last))

    @property
    def plan(self) -> str:
        """The first sentences."""
        return "\n".join(f"{place}. {first}" for place, (first, *_) in enumerate(self.paragraphs, start=1))

    @property
    def text(self) -> str:
        """The paragraphs with blank lines between, closed as the task asks."""
        return "\n\n".join(" ".join(sentences) for sentences in self.paragraphs) + "\n[end]"


class Passages(TextSource):
    """Plans, passages and judgements out of the pages of :class:`PythonDocumentation`, split as these are.

    Args:
        path: as that source's.
    """

    licence: ClassVar[str] = PythonDocumentation.licence
    written: ClassVar[bool] = False

    def __init__(self, path: str) -> None:
        self.path = path

    @override
    def texts(self, split: Split) -> Iterator[Text]:
        passages = list(self.passages(split))
        rng = random.Random(f"passages/{split}")
        for page, passage in passages:
            item, plan = passage.item, passage.plan
            prompts = {
                "plan": (_TASK.thought_prompt(item, []), plan),
                "passage": (_TASK.thought_prompt(item, [plan], last=True), passage.text),
            }
            other = rng.choice(passages)[1].plan
            good = rng.random() < 0.5 or other == plan
            prompts["value"] = (
                _TASK.value_prompt(item, [plan if good else other]),
                f" {rng.choice(_GOOD if good else _BAD)}\nScore: {'9' if good else '2'}",
            )
            for prompt, answer in prompts.values():
                head = head_of(prompt, item.problem) if rng.random() < WITH_HEAD else None
                yield Text(page, joined([example(prompt, answer, item.problem)], head))

    def passages(self, split: Split) -> Iterator[tuple[str, Passage]]:
        """The passages of a split with the names of their pages; no paragraph is in two."""
        for page, path in PythonDocumentation(self.path).pages(split):
            waiting: list[tuple[str, ...]] = []
            for paragraph in plain(path.read_text(encoding="utf-8")).split("\n\n"):
                sentences = _sentences(paragraph)
                waiting += [sentences] if sentences else []
                if len(waiting) == SENTENCES:
                    yield page, Passage(tuple(waiting))
                    waiting = []


def _sentences(paragraph: str) -> tuple[str, ...]:
    """The sentences of a paragraph of two to four; nothing for code, lists, headings and longer ones."""
    text = " ".join(paragraph.split())
    if not 60 <= len(text) <= 600 or not re.match(r"[A-Z\"]", text) or paragraph.startswith(" "):
        return ()
    sentences = tuple(re.split(r"(?<=[.!?])\s+(?=[A-Z\"`])", text))
    good = all(re.search(r"[\w\")`][.!?]$", sentence) and len(sentence) >= 12 for sentence in sentences)
    return sentences if good and 2 <= len(sentences) <= 4 else ()
