"""Creative Writing from Tree of Thoughts (Yao et al. 2023): plan and write a passage with four given sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence, Set
from typing import Annotated, ClassVar

from pydantic import Field
from typing_extensions import override

from experiments.papers.seed.task_files import Prompts, read_prompt
from specexp.data.source import Row, read_table
from specexp.data.tasks.task import Check, Ending, Item, Task, score_out_of_ten

SENTENCES = 4
_END = "[end]"
_PASSAGE_MARK = "Passage:"
_STRAIGHT = str.maketrans("\u2018\u2019\u201c\u201d", "''\"\"")  # typographic quotation marks


class CreativeWriting(Task):
    """Creative Writing: write four paragraphs, each ending with one of four given random sentences.

    A thought is a plan for the whole passage, and the last generation is the passage, which follows the best plan. The
    evaluator scores a plan from 1 to 10. With the published prompts, a thought also includes a passage, and only that
    is scored; the last generation is a new passage for the best plan. A passage is correct if it has four paragraphs
    and each one ends with its sentence.

    Args:
        path: the original file ``data_100_random_text.txt``, with four sentences per line.
        unparsable: value of a plan if its score cannot be parsed.
        prompts: ``published`` selects SEED's prompts (appendix C).
    """

    name: ClassVar[str] = "Creative Writing"
    depth: ClassVar[int] = 2
    value_ending = Ending(("\n\n", "\nSentences:", "\nPlan:"), 96)

    def __init__(self, path: str, unparsable: Annotated[float, Field(le=1)] = 0.0, prompts: Prompts = "own") -> None:
        self.path = path
        self.prompts = prompts
        self.unparsable = unparsable

    @override
    def load(self) -> list[Item]:
        rows = read_table(self.path, "text")
        found = [split_sentences(row.text("text")) for row in rows]
        known = {one for sentences in found if len(sentences) == SENTENCES for one in sentences}
        return [_item(row, known) for row in rows]

    @override
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        if self.prompts == "published":
            prompt = _PUBLISHED_THOUGHT.format(sentences=" ".join(item.reference))
            plan = thoughts[-1].partition(_PASSAGE_MARK)[0].strip() if thoughts else ""
            return f"{prompt}\n{plan}\n\n{_PASSAGE_MARK}" if last else prompt
        prompt = _PASSAGE if last else _PLAN
        return prompt.format(sentences=item.problem, plans=_plans(thoughts))

    @override
    def thought_ending(self, last: bool = False) -> Ending:
        # a plan ends with a blank line; a passage ends with the marker that its prompt requires
        if self.prompts == "published":
            return Ending((_END, "\nMake a plan"), 400 if last else 560)
        if last:
            return Ending((_END, "\nSentences:"), 400)
        return Ending(("\n\n", "\nPassage:", "\nSentences:"), 160)

    @override
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        if self.prompts == "published":  # a text without the mark is scored as a whole
            return _PUBLISHED_VALUE.format(passage=thoughts[-1].rpartition(_PASSAGE_MARK)[2].strip())
        return _VALUE.format(sentences=item.problem, plans=_plans(thoughts))

    @override
    def read_value(self, answer: str) -> float | None:
        if self.prompts == "published":
            answer = f"Score: {answer.rpartition('score is')[2]}"
        return score_out_of_ten(answer)

    @override
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        # the comparison ignores quotation marks, case, whitespace and final punctuation
        written = paragraphs(thoughts[-1]) if thoughts else []
        if len(written) != len(item.reference):
            return Check(False, f"the passage must have {len(item.reference)} paragraphs, got {len(written)}")
        for number, (paragraph, sentence) in enumerate(zip(written, item.reference, strict=True), start=1):
            if not _plain(paragraph).endswith(_plain(sentence)):
                return Check(False, f"paragraph {number} must end with {sentence!r}")
        return Check(True)


def _item(row: Row, known: Set[str]) -> Item:
    sentences = split_sentences(row.text("text"))
    if len(sentences) < SENTENCES:
        sentences = split_sentences(row.text("text"), known)
    if len(sentences) != SENTENCES:
        raise row.refusal(f" must have {SENTENCES} sentences, got {len(sentences)}")
    problem = "\n".join(f"{place}. {sentence}" for place, sentence in enumerate(sentences, start=1))
    return Item(str(row.number - 1), row.number - 1, problem, tuple(sentences))


def split_sentences(line: str, known: Set[str] = frozenset()) -> list[str]:
    """Split a line into its sentences.

    Some of the original sentences are fragments without a period. A fragment is split off if the sentence after it is
    ``known``, that is, if it also occurs on another line.

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
    """Split a passage into paragraphs at blank lines or, if there are none, at line breaks."""
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
_PUBLISHED_THOUGHT = read_prompt(__file__, "published_thought")
_PUBLISHED_VALUE = read_prompt(__file__, "published_value")
