"""GSM8K (Cobbe et al. 2021) as a tree of thoughts: a sub-question and its answer at every step."""

# No `from __future__ import annotations` here: jsonargparse then drops the bounds of the signature.

import json
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Annotated, ClassVar

from pydantic import Field

from specexp.reasoning.tasks._base import (
    Check,
    Ending,
    Item,
    Task,
    TaskFileError,
    read_lines,
    read_prompt,
    score_out_of_ten,
)

_DIGITS = r"(?:\d{1,3}(?:,\d{3})+(?!\d)|\d+)(?:\.\d+)?|\.\d+"
_NUMBER = re.compile(rf"(?:(?<![\w.)])-\$?)?(?:{_DIGITS})")  # a minus behind a number is no sign
_MARK = "####"  # stands before the answer in the original files


class GSM8K(Task):
    """Word problems of grade-school mathematics.

    A thought is a sub-question with its answer, generated together; after three of them the last generation is the
    answer of the problem, whose last number is compared with the reference. The evaluator scores from 1 to 10 how much
    the newest step helps. The paper measures on the 1,319 items of the test set.

    Args:
        path: the original ``test.jsonl`` or ``train.jsonl``: ``question, answer`` a line, the number after ``####``.
        unparsable: value of a state whose score cannot be read.

    Raises:
        TaskFileError: from :meth:`load`, with file and line.
    """

    name: ClassVar[str] = "GSM8K"
    depth: ClassVar[int] = 4
    paper_items: ClassVar[int] = 1319
    value_ending = Ending(("\n",), 8)

    def __init__(self, path: str, unparsable: Annotated[float, Field(le=1)] = 0.0) -> None:
        self.path = path
        self.unparsable = unparsable

    def load(self) -> list[Item]:
        """The questions; their row number, from 0, is their id."""
        return [self._item(index, *line) for index, line in enumerate(read_lines(self.path))]

    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        """The steps so far, and the beginning of the next one or of the answer."""
        label = "Answer:" if last else f"Sub-question {len(thoughts) + 1}:"
        return _THOUGHT.format(problem=item.problem, steps=_steps(thoughts), label=label)

    def thought_ending(self, last: bool = False) -> Ending:
        """The answer is one line, a step is two."""
        if last:
            return Ending(("\n",), 48)
        return Ending(("\n\n", "\nSub-question", "\nAnswer", "\nProblem"), 96)

    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        """The steps so far, and the beginning of a score."""
        return _VALUE.format(problem=item.problem, steps=_steps(thoughts))

    def read_value(self, answer: str) -> float | None:
        """The score."""
        return score_out_of_ten(answer)

    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        """Compare numbers by value: ``1,200`` is ``1200.00``."""
        answer = last_number(thoughts[-1]) if thoughts else None
        (reference,) = item.reference
        if answer is None:
            return Check(False, "there is no number in the answer")
        if answer != Decimal(reference):
            return Check(False, f"the answer is {answer}, the reference {reference}")
        return Check(True)

    def _item(self, index: int, number: int, line: str) -> Item:
        where = f"{self.path}, line {number}"
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise TaskFileError(f"{where}: is not JSON ({error.msg})") from error
        for key in ("question", "answer"):
            if not isinstance(row, dict) or not isinstance(row.get(key), str) or not row[key].strip():
                raise TaskFileError(f"{where}, key {key!r}: a text that is not blank is needed")
        _, mark, answer = row["answer"].rpartition(_MARK)
        reference = last_number(answer) if mark else None
        if reference is None:
            raise TaskFileError(f"{where}, key 'answer': there is no number after {_MARK}")
        return Item(str(index), index, row["question"].strip(), (str(reference),))


def last_number(text: str) -> Decimal | None:
    """The last number of a text; None if there is none.

    Example:
        >>> last_number("6 trays at 1,200.50 each, so 16-3 = $-13.")
        Decimal('-13')
    """
    found = _NUMBER.findall(text)
    return Decimal(re.sub("[,$]", "", found[-1])) if found else None


def _steps(thoughts: Sequence[str]) -> str:
    return "".join(f"Sub-question {number}: {thought}\n" for number, thought in enumerate(thoughts, start=1))


_THOUGHT = read_prompt(__file__, "thought")
_VALUE = read_prompt(__file__, "value")
