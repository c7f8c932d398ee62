"""Conformance tests for reasoning tasks, to be inherited by the tests of any implementation."""

from __future__ import annotations

import string
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence

import pytest

from specexp.data.tasks import Item, Task
from specexp.testing.prompt_sets import unannotated

NONSENSE = ("", " ", "\n", "?", "{}", "{problem}", "ünïcödé 🙂", "-", "None", "((((", string.printable)


class TaskContract(ABC):
    """Base class for task tests. Subclasses define the fixture ``task``, :meth:`solution` and :meth:`evaluations`.

    The task must be loadable in the test; a small local file is enough.
    """

    @abstractmethod
    def solution(self, item: Item) -> Sequence[str]:
        """Return a correct solution to an item: at most ``depth`` texts, with the final generation last."""

    @abstractmethod
    def evaluations(self) -> Mapping[str, float]:
        """Return example evaluations in the format of the prompt's examples, mapped to their values."""

    def test_its_attributes_and_constructor_are_declared(self, task: Task) -> None:
        assert task.name
        assert task.depth >= 1
        assert unannotated(task) == []

    def test_items_are_numbered_and_named(self, task: Task) -> None:
        items = task.load()
        assert items
        assert [item.index for item in items] == list(range(len(items)))
        assert len({item.item_id for item in items}) == len(items)
        assert all(item.item_id.strip() and item.problem.strip() for item in items)

    def test_every_load_gives_the_same_items(self, task: Task) -> None:
        assert task.load() == task.load()

    def test_a_prompt_holds_the_problem_and_the_thoughts(self, task: Task) -> None:
        for item in task.load():
            *thoughts, _ = self.solution(item)
            for length in range(len(thoughts) + 1):
                for last in (False, True):
                    prompt = task.thought_prompt(item, thoughts[:length], last)
                    assert item.problem in prompt
                    assert all(thought in prompt for thought in thoughts[:length])
            for length in range(1, len(thoughts) + 1):
                prompt = task.value_prompt(item, thoughts[:length])
                assert item.problem in prompt
                assert all(thought in prompt for thought in thoughts[:length])

    def test_a_prompt_ends_where_the_answer_begins(self, task: Task) -> None:
        """A prompt must not end with a space, because tokenizers merge a space with the word after it."""
        item = task.load()[0]
        thoughts = ["one", "two"][: max(1, task.depth - 1)]
        prompts = [task.thought_prompt(item, thoughts), task.thought_prompt(item, thoughts, last=True)]
        for prompt in [*prompts, task.value_prompt(item, thoughts)]:
            assert prompt == prompt.rstrip(" \t")

    def test_prompts_of_different_states_differ(self, task: Task) -> None:
        item = task.load()[0]
        states: list[list[str]] = [[], ["one"], ["two"]]
        prompts = [task.thought_prompt(item, thoughts) for thoughts in states]
        assert len(set(prompts)) == len(states)
        assert [task.thought_prompt(item, thoughts) for thoughts in states] == prompts
        assert task.value_prompt(item, ["one"]) != task.value_prompt(item, ["two"])

    def test_any_thought_has_prompts(self, task: Task) -> None:
        item = task.load()[0]
        for text in NONSENSE:
            assert text in task.thought_prompt(item, [text])
            assert text in task.value_prompt(item, [text])

    def test_generations_end(self, task: Task) -> None:
        for ending in (task.thought_ending(), task.thought_ending(last=True), task.value_ending):
            assert ending.max_new_tokens >= 1
            assert ending.stop
            assert all(ending.stop)

    def test_a_thought_is_not_cut_short(self, task: Task) -> None:
        for item in task.load():
            *thoughts, final = self.solution(item)
            generations = [(final, task.thought_ending(last=True))]
            for thought in thoughts:
                begun = task.thought_ending().cut(f" {thought}")
                generations.append((begun, task.thought_ending()))
                if task.completion_prompt(item, [], begun) is None:  # the thought took one generation
                    assert begun == thought
                    continue
                rest = thought.removeprefix(task.completed(begun, "").rstrip()).strip()
                assert task.completed(begun, rest) == thought
                generations.append((rest, task.completion_ending()))
            for text, ending in generations:
                assert ending.cut(f" {text}") == text
                for stop in ending.stop:
                    assert ending.cut(f" {text}{stop} more") == text
                    assert ending.reached(f" {text}{stop} more")

    def test_reads_evaluations(self, task: Task) -> None:
        assert self.evaluations()
        for text, value in self.evaluations().items():
            assert task.value(task.value_ending.cut(f" {text}")) == (value, True)
            assert value >= task.unparsable

    @pytest.mark.parametrize("text", NONSENSE)
    def test_an_evaluation_that_cannot_be_read_has_the_lowest_value(self, task: Task, text: str) -> None:
        assert task.value(text) == (task.unparsable, False)

    def test_solutions_are_right(self, task: Task) -> None:
        for item in task.load():
            solution = self.solution(item)
            assert len(solution) <= task.depth
            assert task.check(item, tuple(solution)) == (True, "")

    @pytest.mark.parametrize("text", NONSENSE[:-1])
    def test_nonsense_is_wrong_and_has_a_reason(self, task: Task, text: str) -> None:
        item = task.load()[0]
        for thoughts in ([], [text], [text] * task.depth, [*self.solution(item)[:-1], text, text]):
            check = task.check(item, thoughts)
            assert not check.correct
            assert check.reason
