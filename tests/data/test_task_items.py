"""Items of several tasks are one prompt set."""

import json

import pytest

from specexp.data import PromptSetError, TaskItems
from specexp.data.tasks import GSM8K, CreativeWriting


@pytest.fixture
def files(tmp_path):
    questions = [{"question": f"What is {n} and {n}?", "answer": f"It is\n#### {2 * n}"} for n in range(3)]
    (tmp_path / "test.jsonl").write_text("".join(json.dumps(row) + "\n" for row in questions))
    (tmp_path / "sentences.txt").write_text("It rained. The cat slept. Nobody called. He left.\n" * 2)
    return tmp_path


def test_the_task_is_the_category_and_part_of_the_name(files):
    items = TaskItems(
        [GSM8K(str(files / "test.jsonl")), CreativeWriting(str(files / "sentences.txt"))], items=2
    )
    rows = items.load()
    assert rows["prompt_id"] == ["GSM8K/0", "GSM8K/1", "Creative Writing/0", "Creative Writing/1"]
    assert rows["category"] == ["GSM8K"] * 2 + ["Creative Writing"] * 2
    assert rows["turns"][1] == ["What is 1 and 1?"]
    task, item = items.problems["GSM8K/1"]
    assert (task.name, item.reference) == ("GSM8K", ("2",))


def test_a_broken_file_names_line_and_key(files):
    (files / "test.jsonl").write_text('{"question": "why?", "answer": "no"}\n')
    with pytest.raises(PromptSetError, match=r"test.jsonl: row 1, key 'answer'") as refused:
        TaskItems([GSM8K(str(files / "test.jsonl"))]).load()
    assert refused.value.key == ("prompts", "init_args", "tasks")


def test_tasks_are_there_and_different(files):
    with pytest.raises(ValueError, match="no task"):
        TaskItems([])
    with pytest.raises(ValueError, match="GSM8K twice"):
        TaskItems([GSM8K("a"), GSM8K("b")])
