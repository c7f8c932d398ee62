"""The original files of the tasks, where the environment variable SPECEXP_DATA names the folder with them."""

from pathlib import Path

import pytest
from transformers import AutoTokenizer

import specexp
from specexp.data.tasks import GSM8K, Blocksworld, CreativeWriting
from specexp.data.tasks.blocks import Action, read_problem
from specexp.testing.tasks import TaskContract

CONTEXT = 2048
WORDY = " and so on" * 200  # longer than any thought may be


class RealFile(TaskContract):
    """The contract on the whole file, and the numbers of items."""

    items = 0

    def test_number_of_items(self, task):
        assert len(task.load()) == self.items

    def test_prompts_fit_a_small_context(self, task):
        """With the longest thoughts that may be generated, and the generation itself, in a vocabulary of 4,096."""
        tokenizer = AutoTokenizer.from_pretrained(
            Path(specexp.__file__).parent / "models" / "stdlib" / "target"
        )

        def generated(ending):
            return tokenizer.decode(tokenizer(WORDY)["input_ids"][: ending.max_new_tokens])

        def tokens(prompt, ending):
            return len(tokenizer(prompt)["input_ids"]) + ending.max_new_tokens

        begun = generated(task.thought_ending())
        two = task.completion_prompt(task.load()[0], [], begun) is not None
        thought = task.completed(begun, generated(task.completion_ending())) if two else begun
        thoughts = [thought] * (task.depth - 1)
        for item in task.load():
            for last in (False, True):
                so_far = thoughts if last else thoughts[:-1]
                assert tokens(task.thought_prompt(item, so_far, last), task.thought_ending(last)) <= CONTEXT
            assert tokens(task.value_prompt(item, thoughts), task.value_ending) <= CONTEXT


class TestGSM8K(RealFile):
    """The first 100 of the 1,319 items the paper measures on."""

    items = 100

    def evaluations(self):
        return {"It follows.\nScore: 7": 7.0}

    @pytest.fixture
    def task(self, specexp_data):
        return GSM8K(str(specexp_data / "gsm8k/test.jsonl"))

    def solution(self, item):
        return [f"How many?\nSub-answer: {item.reference[0]}"] * 3 + [item.reference[0]]


class TestCreativeWriting(RealFile):
    """The 100 items the paper measures on."""

    items = 100

    def evaluations(self):
        return {"Score: 7": 7.0}

    @pytest.fixture
    def task(self, specexp_data):
        return CreativeWriting(str(specexp_data / "creative_writing/data_100_random_text.txt"))

    def solution(self, item):
        return ["1. One thing after another.", "\n\n".join(f"So be it. {text}" for text in item.reference)]


class TestBlocksworld(RealFile):
    """152 items; the paper measures on 145 and does not say which."""

    items = 152

    def evaluations(self):
        return {"It is possible.\nEvaluation: good": 10.0}

    @pytest.fixture
    def task(self, specexp_data):
        folder = specexp_data / "blocksworld"
        return Blocksworld(
            str(folder / "split_v1_step_6_data.json"),
            str(folder / "instances_step_6.json"),
        )

    def solution(self, item):
        """The split's own plan, in the words of the prompts; that it is right is the contract's to test."""
        steps = item.reference[1].strip().split("\n")
        return [*(str(Action.parse(step)) for step in steps), "done"]

    def test_six_steps_and_done_are_the_depth(self, task):
        assert {len(self.solution(item)) for item in task.load()} == {task.depth}

    def test_every_instance_is_one_of_three_to_five_blocks(self, task):
        counts = [len(read_problem(item.reference[0]).blocks) for item in task.load()]
        assert [counts.count(blocks) for blocks in (3, 4, 5)] == [39, 102, 11]


def test_all_references_of_gsm8k_are_numbers(specexp_data):
    assert len(GSM8K(str(specexp_data / "gsm8k/train.jsonl")).load()) == 7473
