"""Problems that are solved in steps, written in the very forms in which the reasoning tasks ask for them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from functools import partial
from typing import NamedTuple

from specexp.data.corpus.text_source import Probe
from specexp.data.tasks.gsm8k import GSM8K, last_number
from specexp.data.tasks.task import Ending, Item

RIGHT, WRONG = "9", "2"
"""The scores that the value prompt's own examples give to right and wrong steps."""

WITH_HEAD = 0.05
"""Share of the documents that begin with a prompt's instructions and examples, which are long and always the same."""

_TASK = GSM8K("")


class WorkedStep(NamedTuple):
    """A question easier than the problem, and its answer with the calculation."""

    question: str
    answer: str


class Worked(NamedTuple):
    """A word problem with its steps and its answer, a number."""

    problem: str
    steps: tuple[WorkedStep, ...]
    answer: str


def example(prompt: str, answer: str, problem: str) -> str:
    """The part of a prompt that is about its own problem, and what follows it; the head with its examples is cut off.

    Example:
        >>> example("Solve.\\n\\nProblem: 1 + 1?\\nAnswer:", " 2", "1 + 1?")
        'Problem: 1 + 1?\\nAnswer: 2'
    """
    start = prompt.rindex(problem)
    begin = prompt.rfind("\n\n", 0, start)
    return prompt[begin + 2 if begin >= 0 else 0 :] + answer


def joined(examples: Sequence[str], head: str | None = None) -> str:
    """Examples with blank lines between, as a prompt's examples stand, behind the head of a prompt if one is given."""
    return "\n\n".join([*([head] if head else []), *examples]) + "\n"


def head_of(prompt: str, problem: str) -> str:
    """What stands in a prompt before the part about its own problem."""
    return prompt[: prompt.rfind("\n\n", 0, prompt.rindex(problem))]


def solution(worked: Worked) -> str:
    """A problem with all its steps and the answer, as the thought prompt shows it."""
    item, thoughts = _item(worked), _thoughts(worked)
    return example(_TASK.thought_prompt(item, thoughts, last=True), f" {worked.answer}", worked.problem)


def plain(worked: Worked) -> str:
    """A problem and its answer as GSM8K writes them: steps a line each, and the number after ``####``."""
    lines = [step.answer for step in worked.steps]
    return "\n".join([worked.problem, *lines, f"#### {worked.answer}"])


def judgement(worked: Worked, rng: random.Random) -> str:
    """Some first steps of a problem, the newest of which is right or made wrong, with its score."""
    thoughts = _thoughts(worked)[: rng.randint(1, len(worked.steps))]
    score = RIGHT
    if rng.random() < 0.5:
        wrong = corrupted(thoughts[-1], rng)
        score = RIGHT if wrong == thoughts[-1] else WRONG
        thoughts[-1] = wrong
    return example(_TASK.value_prompt(_item(worked), thoughts), f" {score}", worked.problem)


def corrupted(step: str, rng: random.Random) -> str:
    """A step whose last result is another number, near the right one; the step itself where it has none."""
    found = list(re.finditer(r"= \$?(\d+)(?![\d.,])", step))
    if not found:
        return step
    place = found[-1].span(1)
    right = int(step[slice(*place)])
    wrong = rng.choice([right + 1, right + 2, right + 10, right * 2 + 1, max(0, right - 3) or right + 3])
    head, tail = step[: place[0]], step[place[0] :]
    return head + re.sub(rf"(?<![\d.,]){right}(?![\d.,])", str(wrong), tail)


def documents(problems: Sequence[Worked], seed: str) -> Iterator[str]:
    """Problems as documents: in GSM8K's own form, as steps, and as judgements of steps, one to four problems each."""
    rng = random.Random(seed)
    for worked in problems:
        yield plain(worked) + "\n"
    first = 0
    while first < len(problems):
        some = problems[first : first + rng.randint(1, 4)]
        first += len(some)
        judged = rng.random() < 0.35
        head = None
        if rng.random() < WITH_HEAD:
            item = _item(some[0])
            prompt = _TASK.value_prompt(item, ["?"]) if judged else _TASK.thought_prompt(item, [])
            head = head_of(prompt, some[0].problem)
        yield joined([judgement(one, rng) if judged else solution(one) for one in some], head)


def probes(problems: Sequence[Worked]) -> Iterator[Probe]:
    """Every problem to be solved from its first step to its answer, and a step of it to be judged."""
    rng = random.Random("probes")
    for worked in problems:
        item = _item(worked)
        yield Probe(
            "solved",
            _TASK.thought_prompt(item, []),
            partial(_solves, item),
            Ending(("\n\n",), 192),
        )
        prompt, _, score = judgement(worked, rng).rpartition(" ")
        head = head_of(_TASK.value_prompt(item, ["?"]), worked.problem)
        yield Probe(
            "judged",
            f"{head}\n\n{prompt}",
            partial(_agrees, score == RIGHT),
            _TASK.value_ending,
        )


def _solves(item: Item, text: str) -> bool | None:
    _, label, answer = text.partition("\nAnswer:")
    return _TASK.check(item, [answer.split("\n")[0]]).correct if label else None


def _agrees(high: bool, text: str) -> bool | None:
    score = _TASK.read_value(text)
    return None if score is None else (score > 5) == high


def _item(worked: Worked) -> Item:
    return Item("", 0, worked.problem, (str(last_number(worked.answer)),))


def _thoughts(worked: Worked) -> list[str]:
    return [f"{step.question}\nSub-answer: {step.answer}" for step in worked.steps]
