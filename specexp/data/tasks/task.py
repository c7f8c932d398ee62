"""The base class of reasoning tasks: items, prompts for a tree of thoughts, and the evaluation of answers."""

from __future__ import annotations

import re
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from specexp.base.checked import Checked

_SCORE = re.compile(r"[\s\[(*:]*([0-9]+(?:\.[0-9]+)?)")


@dataclass(frozen=True)
class Item:
    """One problem of a task."""

    item_id: str  # id that is unique within the task
    index: int  # position in the file, from 0; part of the key for random numbers
    problem: str  # text of the problem, as used in prompts
    reference: tuple[str, ...]  # reference data for :meth:`Task.check`, in a task-specific format


@dataclass(frozen=True)
class Ending:
    """Defines where a generation ends: before the first stop string, or after ``max_new_tokens`` tokens."""

    stop: tuple[str, ...]
    max_new_tokens: int

    def reached(self, text: str) -> bool:
        """Return whether the text contains a stop string, ignoring leading whitespace."""
        return self._end(text) is not None

    def cut(self, text: str) -> str:
        """Return the text before the first stop string, without surrounding whitespace."""
        return text[: self._end(text)].strip()

    def _end(self, text: str) -> int | None:
        # a model may begin with blank lines, which must not count as the stop string "\n\n"
        begin = len(text) - len(text.lstrip())
        return min((end for end in (text.find(stop, begin) for stop in self.stop) if end >= 0), default=None)


class Value(NamedTuple):
    """The value of a state (higher is better). If ``parsed`` is False, it is the task's ``unparsable`` value."""

    value: float
    parsed: bool


class Check(NamedTuple):
    """The verdict on a complete path. ``reason`` is a sentence that explains why a path is wrong."""

    correct: bool
    reason: str = ""


class Task(metaclass=Checked):
    """A reasoning task. To add one, add a module and its prompt files; no registration is needed.

    A path has ``depth`` generations: thoughts, which a search selects by their values, and the last generation, which
    continues the best path (SEED, Algorithm 1). If there is a :meth:`completion_prompt`, each thought takes two
    generations. A *state* is an item with the thoughts so far, each cut at its :class:`Ending`. Prompts are raw text
    that may be wrapped in a chat template. Only :meth:`load` reads files; all other methods are pure.
    """

    name: ClassVar[str]  # in result tables
    depth: ClassVar[int]  # number of generations on a path, as in the paper
    unparsable: float  # value of a state if its evaluation cannot be parsed; at most the lowest regular value
    value_ending: Ending  # of an evaluation

    @abstractmethod
    def load(self) -> list[Item]:
        """Return all items in file order. Raises PromptSetError if the file cannot be read."""

    @abstractmethod
    def thought_prompt(self, item: Item, thoughts: Sequence[str], last: bool = False) -> str:
        """Return the prompt for the next thought or, if ``last``, for the last generation.

        ``last`` cannot be inferred from the number of thoughts, since a search may end early if its budget runs out.
        """

    @abstractmethod
    def thought_ending(self, last: bool = False) -> Ending:
        """Return the ending of the next thought or, if ``last``, of the last generation."""

    def completion_prompt(self, item: Item, thoughts: Sequence[str], begun: str) -> str | None:
        """Return the prompt for a thought's second generation, which continues ``begun``, or None if there is none."""
        return None

    def completion_ending(self) -> Ending:
        """Return the ending of a thought's second generation."""
        return self.thought_ending()

    def completed(self, begun: str, rest: str) -> str:
        """Join the two generations of a thought."""
        return f"{begun}\n{rest}"

    @abstractmethod
    def value_prompt(self, item: Item, thoughts: Sequence[str]) -> str:
        """Return the prompt for evaluating a state with at least one thought, focusing on the newest thought."""

    def read_value(self, answer: str) -> float | None:
        """Parse the value (by default a score) from an evaluation cut at its ending; return None if this fails."""
        return score_out_of_ten(answer)

    def value(self, answer: str) -> Value:
        """Return a state's value from the evaluator's answer. Never raises."""
        value = self.read_value(answer)
        return Value(self.unparsable, False) if value is None else Value(value, True)

    @abstractmethod
    def check(self, item: Item, thoughts: Sequence[str]) -> Check:
        """Check a complete path, including its last generation. An answer that cannot be parsed is wrong."""


def score_out_of_ten(text: str) -> float | None:
    """Return the number from 1 to 10 after the last ``Score:``, or None if there is none.

    Example:
        >>> score_out_of_ten("Clear. Score: 8/10"), score_out_of_ten("Score: 100"), score_out_of_ten("8")
        (8.0, None, None)
    """
    _, label, answer = text.rpartition("Score:")
    found = _SCORE.match(answer) if label else None
    score = float(found.group(1)) if found else 0.0
    return score if 1 <= score <= 10 else None
