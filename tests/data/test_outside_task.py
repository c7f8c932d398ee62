"""A task written outside the project: one class with its prompts, searched like any other."""

from collections import Counter
from typing import ClassVar

import pytest

from specexp.data.searches import BestFirst, BreadthFirst, MonteCarlo
from specexp.data.searches.search import Continuations
from specexp.data.tasks import Check, Ending, Item, Task
from specexp.testing.tasks import TaskContract


class Countdown(Task):
    """From a number to zero by steps of one or two; every step is a thought, "zero" is the last generation."""

    name: ClassVar[str] = "Countdown"
    depth: ClassVar[int] = 4
    paper_items: ClassVar[int] = 2
    unparsable = -100.0
    value_ending = Ending((";",), 4)

    def load(self) -> list[Item]:
        return [Item(str(start), index, f"from {start}", (str(start),)) for index, start in enumerate((5, 6))]

    def thought_prompt(self, item, thoughts, last=False):
        return f"Count down {item.problem}: {', '.join(thoughts)}{'; then' if last else '; less:'}"

    def thought_ending(self, last=False):
        return Ending((";",), 4)

    def value_prompt(self, item, thoughts):
        return f"Count down {item.problem}: {', '.join(thoughts)}; left:"

    def read_value(self, answer):
        return -float(answer) if answer.isdigit() and len(answer) < 3 else None

    def check(self, item, thoughts):
        steps = [thought for thought in thoughts[:-1] if thought in ("1", "2")]
        left = int(item.reference[0]) - sum(map(int, steps))
        right = left == 0 and bool(thoughts) and thoughts[-1] == "zero"
        return Check(right, "" if right else f"{left} are left")


class TestCountdown(TaskContract):
    @pytest.fixture
    def task(self):
        return Countdown()

    def solution(self, item):
        return ["2", "2", str(int(item.reference[0]) - 4), "zero"]

    def evaluations(self):
        return {"0": 0.0, "3": -3.0}


def generate(prompt, number):
    """A model that knows both steps, adds something after the stop, and can say zero."""
    return " zero; and more" if prompt.endswith("then") else f" {1 + number}; and more"


def evaluate(prompt):
    """A model that counts what is left, and does not know what to say about a first step of one."""
    start, *steps = (int(word) for word in prompt.replace(",", "").replace(":", "").split() if word.isdigit())
    return " well" if steps == [1] else f" {start - sum(steps)};"


def solve(task, item, search):
    """Everything a driver has to do, but for the decoding."""
    counts = Counter()
    exploration = search.explore(task.depth)
    request = next(exploration)
    while True:
        if isinstance(request, Continuations):
            ending = task.thought_ending(request.last)
            answer = [
                [
                    ending.cut(generate(task.thought_prompt(item, state.thoughts, request.last), number))
                    for number in range(request.n)
                ]
                for state in request.states
            ]
        else:
            prompts = [task.value_prompt(item, state.thoughts) for state in request.states]
            values = [
                task.value(task.value_ending.cut(evaluate(prompt.replace(";", "")))) for prompt in prompts
            ]
            counts["unparsable"] += sum(not value.parsed for value in values)
            answer = [value.value for value in values]
        try:
            request = exploration.send(answer)
        except StopIteration as finished:
            return finished.value, counts


@pytest.mark.parametrize("search", [BreadthFirst(1, 2), BestFirst(6, 2), MonteCarlo(12, 2)])
def test_every_search_finds_the_way_down(search):
    task = Countdown()
    for item in task.load():
        result, counts = solve(task, item, search)
        assert task.check(item, result.final.thoughts) == (True, "")
        values = [result.tree.value(state) for state in result.tree.states]
        assert counts["unparsable"] == values.count(task.unparsable) > 0
        assert values[1] == task.unparsable
