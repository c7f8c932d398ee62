"""GSM8K (Cobbe et al. 2021) as a tree-of-thoughts task: each thought is a sub-question and its answer."""

from __future__ import annotations

import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from typing_extensions import override

from experiments.papers.seed.task_files import Prompts, read_prompt
from specexp.data.source import Row, read_table
from specexp.data.tasks.task import Check, Ending, Item, Task, score_out_of_ten

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
# a minus after a number is a subtraction, not a sign
_NUMBER = re.compile(rf"(?:(?<![\w.)])-\$?)?(?:{_DIGITS})")
_SUB_ANSWER = "Sub-answer:"
_MARK = "####"  # precedes the final answer in the original files


class GSM8K(Task):
    """GSM8K: grade-school math word problems.

    A thought is a sub-question with its answer, written in two generations, as in the paper, or in one. After three
    thoughts, the last generation is the final answer, and its last number is compared with the reference. The evaluator
    scores from 1 to 10 how helpful the newest thought is. The paper uses the 1,319 items of the test set.

    Args:
        path: a file with the columns ``question`` and ``answer``, where the final number follows ``####``.
        unparsable: value of a state if its score cannot be parsed.
        generations: number of generations per thought.
        prompts: ``published`` selects SEED's prompts (appendix C), which need two generations. The paper has none for
            the last generation, so it uses the sub-answer prompt, with the steps so far as the sub-question.
    """

    name: ClassVar[str] = "GSM8K"
    depth: ClassVar[int] = 4
    value_ending = Ending(("\n\n", "\nProblem:"), 64)

    def __init__(
        self,
        path: str,
        unparsable: Annotated[float, Field(le=1)] = 0.0,
        generations: Literal[1, 2] = 2,
        prompts: Prompts = "own",
    ) -> None:
        self.path = path
        self.prompts = prompts
        self.unparsable = unparsable
        self.generations = generations

    @override
    def load(self) -> list[Item]:
        rows = read_table(self.path, "question", "answer", subset="main", split="test")
        return [self._item(row) for row in rows]

    @override
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        if self.prompts == "published":
            steps = " ".join(thoughts)
            if last:
                return _PUBLISHED_ANSWER.format(problem=item.problem, question=steps)
            return _PUBLISHED_THOUGHT.format(problem=item.problem, steps=steps)
        label = "Answer:" if last else f"Sub-question {len(thoughts) + 1}:"
        return _THOUGHT.format(problem=item.problem, steps=_steps(thoughts), label=label)

    @override
    def thought_ending(self, last: bool = False) -> Ending:
        if last:
            return Ending(("\n",), 48)
        if self.generations == 2:
            return Ending(("\n",), 40)
        return Ending(("\n\n", "\nSub-question", "\nAnswer", "\nProblem"), 96)

    @override
    def completion_prompt(self, item: Item, thoughts: Sequence[str], begun: str) -> str | None:
        if self.prompts == "published":
            return _PUBLISHED_ANSWER.format(problem=item.problem, question=begun)
        if self.generations == 1:
            return None
        return f"{self.thought_prompt(item, thoughts)} {begun}\n{_SUB_ANSWER}"

    @override
    def completion_ending(self) -> Ending:
        return Ending(("\n",), 56)

    @override
    def completed(self, begun: str, rest: str) -> str:
        return f"{begun}\n{_SUB_ANSWER} {rest}"

    @override
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        if self.prompts == "published":
            question, _, answer = thoughts[-1].partition(f"\n{_SUB_ANSWER}")
            return _PUBLISHED_VALUE.format(problem=item.problem, question=question, answer=answer.strip())
        return _VALUE.format(problem=item.problem, steps=_steps(thoughts))

    @override
    def read_value(self, answer: str) -> float | None:
        return score_out_of_ten(f"Score: {answer}" if self.prompts == "published" else answer)

    @override
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        # numbers are compared by value: 1,200 equals 1200.00
        answer = last_number(thoughts[-1]) if thoughts else None
        (reference,) = item.reference
        if answer is None:
            return Check(False, "the answer must contain a number")
        correct = answer == Decimal(reference)
        return Check(correct, "" if correct else f"the answer must be {reference}, got {answer}")

    def _item(self, row: Row) -> Item:
        _, mark, answer = row.text("answer").rpartition(_MARK)
        reference = last_number(answer) if mark else None
        if reference is None:
            raise row.error("answer", f"a number after {_MARK}", row.values["answer"])
        index = row.number - 1
        return Item(str(index), index, row.text("question").strip(), (str(reference),))


def last_number(text: str) -> Decimal | None:
    """Return the last number in a text, such as -13 in ``16-3 = $-13.``, or None if there is none."""
    found = _NUMBER.findall(text)
    return Decimal(re.sub("[,$]", "", found[-1])) if found else None


def _steps(thoughts: Sequence[str]) -> str:
    return "".join(f"Sub-question {number}: {thought}\n" for number, thought in enumerate(thoughts, start=1))


_THOUGHT = read_prompt(__file__, "thought")
_VALUE = read_prompt(__file__, "value")
_PUBLISHED_THOUGHT = read_prompt(__file__, "published_thought")
_PUBLISHED_ANSWER = read_prompt(__file__, "published_answer")
_PUBLISHED_VALUE = read_prompt(__file__, "published_value")
