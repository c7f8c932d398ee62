"""What a reasoning task is: items, the prompts for a tree of thoughts about one, and what the answers mean."""

from __future__ import annotations

import json
import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from specexp.core.checked import Checked
from specexp.data.prompt_set import PromptSetError

_SCORE = re.compile(r"[\s\[(*:]*([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Item:
    """One problem.

    Attributes:
        item_id: unique in its task.
        index: place in the file, from 0, whatever the order items are run in: random numbers are keyed by it.
        problem: what the prompts say of it.
        reference: what :meth:`Task.check` needs, in a form of the task's own.
    """

    item_id: str
    index: int
    problem: str
    reference: tuple[str, ...]


@dataclass(frozen=True)
class Ending:
    """Where a generated text ends: at the first of these.

    Attributes:
        stop: texts before which it ends.
        max_new_tokens: the number of tokens after which it ends at the latest; whoever decodes may allow fewer.
    """

    stop: tuple[str, ...]
    max_new_tokens: int

    def reached(self, text: str) -> bool:
        """Whether decoding can stop: one of the stop texts is there, after something that is not blank."""
        return self._end(text) is not None

    def cut(self, text: str) -> str:
        """What was generated, up to the first stop text, without the white space around it.

        Example:
            >>> Ending(("\\n",), 8).cut(" 7\\nProblem: next")
            '7'
        """
        return text[: self._end(text)].strip()

    def _end(self, text: str) -> int | None:
        # Leading blank lines are no answer: a model may begin with one.
        begin = len(text) - len(text.lstrip())
        ends = [end for end in (text.find(stop, begin) for stop in self.stop) if end >= 0]
        return min(ends, default=None)


class Value(NamedTuple):
    """What the evaluator's answer means.

    Attributes:
        value: what the state is worth, higher is better.
        parsed: False if the answer could not be read, and the value is the task's ``unparsable``.
    """

    value: float
    parsed: bool


class Check(NamedTuple):
    """Whether a whole path solves its item.

    Attributes:
        correct: whether it does.
        reason: why it does not, in one sentence; empty where it does.
    """

    correct: bool
    reason: str = ""


class Task(metaclass=Checked):
    """A reasoning task. One file with its prompts makes one; nothing is registered.

    A path has ``depth`` thoughts: those that a search chooses by their values, and the last generation, which follows
    the best of them (SEED, Algorithm 1). A thought is one generation, or two where there is a
    :meth:`completion_prompt`. A *state* is an item with the thoughts so far, each as
    :meth:`Ending.cut` left it. Prompts are plain text; whoever decodes may wrap them in a chat template.

    Constructing a task reads nothing, so that a configuration is checked without touching data; :meth:`load` does.
    All methods are pure.

    Attributes:
        name: what tables call it.
        depth: generations on a path, as in the paper.
        paper_items: items the paper measures on. Files may hold fewer or more: say which were run.
        unparsable: the value of a state whose evaluation cannot be read; at most the lowest that can be.
        value_ending: where an evaluation ends.
    """

    name: ClassVar[str]
    depth: ClassVar[int]
    paper_items: ClassVar[int]
    unparsable: float
    value_ending: Ending

    @abstractmethod
    def load(self) -> list[Item]:
        """All items, in the order of the file; the same at every call.

        Raises:
            PromptSetError: a file is missing, empty or of another format.
        """

    @abstractmethod
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        """What the generator continues with the next thought.

        Args:
            item: the problem.
            thoughts: the thoughts so far; none at the root.
            last: whether it is to be the last generation. The search says so, not the number of thoughts: one with
                a budget may end early.
        """

    @abstractmethod
    def thought_ending(self, last: bool = False) -> Ending:
        """Where a thought, or the last generation, ends."""

    def completion_prompt(self, item: Item, thoughts: Sequence[str], begun: str) -> str | None:
        """What the generator continues to complete a thought that is two generations; None where it is one.

        Args:
            item: the problem.
            thoughts: the thoughts before it.
            begun: its first generation.
        """
        return None

    def completion_ending(self) -> Ending:
        """Where the second generation of a thought ends; asked for only where there is one."""
        return self.thought_ending()

    def completed(self, begun: str, rest: str) -> str:
        """The thought of both generations."""
        return f"{begun}\n{rest}"

    @abstractmethod
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        """What the evaluator continues with what the state is worth, above all its newest thought.

        Args:
            item: the problem.
            thoughts: the thoughts so far, at least one; the last generation is never valued.
        """

    @abstractmethod
    def read_value(self, answer: str) -> float | None:
        """What an evaluation, cut at its end, says; None if it says nothing that can be read."""

    def value(self, answer: str) -> Value:
        """What a state is worth by the evaluator's answer; never raises."""
        value = self.read_value(answer)
        return Value(self.unparsable, False) if value is None else Value(value, True)

    @abstractmethod
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        """Whether a whole path is right.

        Args:
            item: the problem.
            thoughts: all texts of the path, the last generation at the end; one that cannot be read is wrong, never an
                error.
        """


def read_prompt(task_file: str, name: str) -> str:
    """A prompt of a task, kept beside it: ``prompts/TASK/NAME.txt``, to be filled in with ``str.format``.

    The last line break of the file is not part of it: a file that ends in a blank line is a prompt that ends in a line
    break. A prompt must end where a token of its continuation begins, which is after a line break or before a blank.

    Args:
        task_file: ``__file__`` of the task's module.
        name: the file's name without ``.txt``.
    """
    module = Path(task_file)
    file = module.parent / "prompts" / module.stem / f"{name}.txt"
    return file.read_text(encoding="utf-8").removesuffix("\n")


def read_lines(path: str) -> list[tuple[int, str]]:
    """The lines of a text file that are not blank, each with its number, from 1.

    Raises:
        PromptSetError: there is no such file, it is not text, or there is nothing in it.
    """
    text = read_text(path)
    lines = [(number, line) for number, line in enumerate(text.split("\n"), start=1) if line.strip()]
    if not lines:
        raise PromptSetError(f"{path}: the file is empty; at least one item is needed")
    return lines


def read_text(path: str) -> str:
    """A text file.

    Raises:
        PromptSetError: there is no such file, or it is not text.
    """
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise PromptSetError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise PromptSetError(f"{path}: is not text in UTF-8 (byte {error.start})") from error


def read_json(path: str) -> Any:
    """What a file of JSON holds.

    Raises:
        PromptSetError: there is no such file, or it is not JSON.
    """
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise PromptSetError(f"{path}, line {error.lineno}: is not JSON ({error.msg})") from error


def score_out_of_ten(text: str) -> float | None:
    """A score from 1 to 10 written in digits, ``8`` or ``8.5`` or ``8/10``; None if there is no such score first.

    Example:
        >>> score_out_of_ten("8/10, I think"), score_out_of_ten("100"), score_out_of_ten("good")
        (8.0, None, None)
    """
    found = _SCORE.match(text)
    score = float(found.group(1)) if found else 0.0
    return score if 1 <= score <= 10 else None
