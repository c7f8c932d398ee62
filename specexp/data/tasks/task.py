"""The contract of a reasoning task: items, prompts for a tree of thoughts, and the meaning of the answers."""

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
        index: position in the file, from 0; random numbers are keyed by it.
        problem: text of the problem in prompts.
        reference: input of :meth:`Task.check`, in a form of the task's own.
    """

    item_id: str
    index: int
    problem: str
    reference: tuple[str, ...]


@dataclass(frozen=True)
class Ending:
    """The end of a generated text: before the first of the ``stop`` texts, or after ``max_new_tokens``."""

    stop: tuple[str, ...]
    max_new_tokens: int

    def reached(self, text: str) -> bool:
        """Return whether a stop text follows text that is not blank, so that decoding can stop."""
        return self._end(text) is not None

    def cut(self, text: str) -> str:
        """Return the text up to the first stop text, without the white space around it."""
        return text[: self._end(text)].strip()

    def _end(self, text: str) -> int | None:
        # A model may begin with blank lines, which end nothing.
        begin = len(text) - len(text.lstrip())
        ends = [end for end in (text.find(stop, begin) for stop in self.stop) if end >= 0]
        return min(ends, default=None)


class Value(NamedTuple):
    """The value of a state, higher is better; not ``parsed`` if it is the task's ``unparsable``."""

    value: float
    parsed: bool


class Check(NamedTuple):
    """The correctness of a whole path, with the reason if it is wrong, in one sentence."""

    correct: bool
    reason: str = ""


class Task(metaclass=Checked):
    """A reasoning task. One file with its prompts makes one; nothing is registered.

    A path has ``depth`` generations: thoughts that a search chooses by their values, and the last generation, which
    continues the best of them (SEED, Algorithm 1). A thought has two generations if there is a
    :meth:`completion_prompt`. A *state* is an item with the thoughts so far, each cut by its :class:`Ending`. Prompts
    are plain text, which may be wrapped in a chat template. Only :meth:`load` reads files. All methods are pure.

    Attributes:
        name: in tables.
        depth: generations on a path, as in the paper.
        paper_items: number of items the paper measures on.
        unparsable: value of a state if its evaluation cannot be read; at most the lowest that can be.
        value_ending: end of an evaluation.
    """

    name: ClassVar[str]
    depth: ClassVar[int]
    paper_items: ClassVar[int]
    unparsable: float
    value_ending: Ending

    @abstractmethod
    def load(self) -> list[Item]:
        """Return all items in the order of the file; raises PromptSetError if it cannot be read."""

    @abstractmethod
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        """Return the prompt of the next thought, or of the last generation.

        The search decides which is the last, not the number of thoughts: one with a budget may end early.
        """

    @abstractmethod
    def thought_ending(self, last: bool = False) -> Ending:
        """Return the ending of a thought, or of the last generation."""

    def completion_prompt(self, item: Item, thoughts: Sequence[str], begun: str) -> str | None:
        """Return the prompt of a thought's second generation, after its first, ``begun``; None if it has only one."""
        return None

    def completion_ending(self) -> Ending:
        """Return the ending of the second generation of a thought."""
        return self.thought_ending()

    def completed(self, begun: str, rest: str) -> str:
        """Return the thought of both generations."""
        return f"{begun}\n{rest}"

    @abstractmethod
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        """Return the prompt of an evaluation of a state with at least one thought, above all of its newest one."""

    def read_value(self, answer: str) -> float | None:
        """Return the value in an evaluation that was cut at its end, by default a score; None if it cannot be read."""
        return score_out_of_ten(answer)

    def value(self, answer: str) -> Value:
        """Return the value of a state by the evaluator's answer; never raises."""
        value = self.read_value(answer)
        return Value(self.unparsable, False) if value is None else Value(value, True)

    @abstractmethod
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        """Return whether a whole path, with the last generation, is right; one that cannot be read is wrong."""


def read_prompt(task_file: str, name: str) -> str:
    """Return a prompt of a task, ``prompts/TASK/NAME.txt`` in its folder without the last line break, a template.

    It must end where a token of its continuation begins: after a line break or before a blank.
    """
    module = Path(task_file)
    file = module.parent / "prompts" / module.stem / f"{name}.txt"
    return file.read_text(encoding="utf-8").removesuffix("\n")


def read_text(path: str) -> str:
    """Return the content of a text file; raises PromptSetError if it cannot be read."""
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except OSError as error:
        raise PromptSetError(f"{path}: cannot be read ({error.strerror})") from error
    except UnicodeDecodeError as error:
        raise PromptSetError(f"{path}: is not UTF-8 text (byte {error.start})") from error


def read_json(path: str) -> Any:
    """Return the content of a JSON file; raises PromptSetError if it cannot be read."""
    try:
        return json.loads(read_text(path))
    except json.JSONDecodeError as error:
        raise PromptSetError(f"{path}, line {error.lineno}: is not JSON ({error.msg})") from error


def score_out_of_ten(text: str) -> float | None:
    """Return the score after the last ``Score:``, from 1 to 10 in digits; None if there is none.

    Example:
        >>> score_out_of_ten("Clear. Score: 8/10"), score_out_of_ten("Score: 100"), score_out_of_ten("8")
        (8.0, None, None)
    """
    _, label, answer = text.rpartition("Score:")
    found = _SCORE.match(answer) if label else None
    score = float(found.group(1)) if found else 0.0
    return score if 1 <= score <= 10 else None
