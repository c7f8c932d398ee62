"""Creative Writing of Tree of Thoughts (Yao et al. 2023): a plan, then a passage with four given last sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from specexp.data.source import Row, read_table
from specexp.data.tasks.task import Check, Ending, Item, Task, read_prompt

SENTENCES = 4
_END = "[end]"
_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")  # typographic quotation marks


class CreativeWriting(Task):
    """Four paragraphs, each of which ends with one of four random sentences.

    A thought is a plan of the whole passage; the last generation is the passage, written by the best plan. The
    evaluator scores a plan from 1 to 10. (The paper's evaluator prompt shows a passage, but its Algorithm 1 values the
    plan.) The check is whether there are four paragraphs and each ends with its sentence.

    Args:
        path: the original ``data_100_random_text.txt``, four sentences a line.
        unparsable: the value of a plan if its score cannot be read.
    """

    name: ClassVar[str] = "Creative Writing"
    depth: ClassVar[int] = 2
    paper_items: ClassVar[int] = 100
    value_ending = Ending(("\n\n", "\nSentences:", "\nPlan:"), 96)

    def __init__(self, path: str, unparsable: Annotated[float, Field(le=1)] = 0.0) -> None:
        self.path = path
        self.unparsable = unparsable

    @override
    def load(self) -> list[Item]:
        rows = read_table(self.path, "text")
        found = [split_sentences(row.text("text")) for row in rows]
        known = {one for sentences in found if len(sentences) == SENTENCES for one in sentences}
        return [_item(row, known) for row in rows]

    @override
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        prompt = _PASSAGE if last else _PLAN
        return prompt.format(sentences=item.problem, plans=_plans(thoughts))

    @override
    def thought_ending(self, last: bool = False) -> Ending:
        # A plan ends with a blank line, a passage with the mark that the prompt requires.
        if last:
            return Ending((_END, "\nSentences:"), 400)
        return Ending(("\n\n", "\nPassage:", "\nSentences:"), 160)

    @override
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        return _VALUE.format(sentences=item.problem, plans=_plans(thoughts))

    @override
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        # Quotation marks, case, white space and the final stop do not count.
        written = paragraphs(thoughts[-1]) if thoughts else []
        if len(written) != len(item.reference):
            return Check(False, f"the passage has {len(written)} paragraphs, not {len(item.reference)}")
        for number, (paragraph, sentence) in enumerate(zip(written, item.reference, strict=True), start=1):
            if not _plain(paragraph).endswith(_plain(sentence)):
                return Check(False, f"paragraph {number} does not end with {sentence!r}")
        return Check(True)


def _item(row: Row, known: Set[str]) -> Item:
    sentences = split_sentences(row.text("text"))
    if len(sentences) < SENTENCES:
        sentences = split_sentences(row.text("text"), known)
    if len(sentences) != SENTENCES:
        raise row.refusal(f": {SENTENCES} sentences are needed, found {len(sentences)}")
    problem = "\n".join(f"{place}. {sentence}" for place, sentence in enumerate(sentences, start=1))
    return Item(str(row.number - 1), row.number - 1, problem, tuple(sentences))


def split_sentences(line: str, known: Set[str] = frozenset()) -> list[str]:
    """Return the sentences of a line.

    Some of the original sentences are fragments without a full stop. A fragment is recognised by the next sentence, if
    that is ``known`` from other lines.

    Example:
        >>> split_sentences("It rained. The heat We left.", {"We left."})
        ['It rained.', 'The heat', 'We left.']
    """
    sentences: list[str] = []
    for piece in re.split(r"(?<=[.!?])\s+", line.strip()):
        after = max((one for one in known if piece.endswith(f" {one}")), key=len, default="")
        sentences += [piece.removesuffix(after).strip(), after] if after else [piece]
    return sentences


def paragraphs(passage: str) -> list[str]:
    """Return the paragraphs of a passage, or its lines if it has no blank lines."""
    parts = re.split(r"\n\s*\n", passage.strip())
    if len(parts) == 1:
        parts = passage.strip().split("\n")
    return [part.strip() for part in parts if part.strip()]


def _plain(text: str) -> str:
    straight = text.translate(_STRAIGHT)
    return " ".join(straight.lower().split()).rstrip("\"'.!? ")


def _plans(thoughts: Sequence[str]) -> str:
    return "".join(f"Plan:\n{plan}\n" for plan in thoughts)


_PLAN = read_prompt(__file__, "plan")
_PASSAGE = read_prompt(__file__, "passage")
_VALUE = read_prompt(__file__, "value")
