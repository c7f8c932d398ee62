"""Tasks keep the contract on small files, read their evaluators' answers, and check what can be checked."""

import json
from decimal import Decimal

import pytest

from specexp.data import PromptSetError
from specexp.data.tasks import GSM8K, Blocksworld, CreativeWriting, Ending
from specexp.data.tasks.blocksworld import Action
from specexp.data.tasks.creative_writing import split_sentences
from specexp.data.tasks.gsm8k import last_number
from specexp.testing.tasks import TaskContract

PROBLEM = """
(define (problem two) (:domain blocksworld-4ops) (:objects a b c)
 (:init (handempty) (on a b) (ontable b) (ontable c) (clear a) (clear c))
 (:goal (and (on b a))))
"""
PLAN = "(unstack a b)\n(put-down a)\n(pick-up b)\n(stack b a)\n"
LINES = (
    "One came. Two went! Was it three? He said “four”.",
    "The heat Two went! One came. Was it three?",
)


SIZES = ["small", "original"]
"""A small file, and the original one in the folder that the environment variable SPECEXP_DATA names."""
small_only = pytest.mark.parametrize("task", ["small"], indirect=True)
WORDY = " and so on" * 200  # longer than any thought may be


def original(request, name):
    """The path of an original file if the fixture is to read one."""
    return request.getfixturevalue("specexp_data") / name if request.param == "original" else None


@pytest.fixture
def gsm8k(tmp_path):
    path = tmp_path / "test.jsonl"
    rows = [
        {"question": f"What is {n} + 1?", "answer": f"{n} + 1 = {n + 1}\n#### {n + 1:,}"} for n in (1, 1999)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def writing(tmp_path):
    path = tmp_path / "sentences.txt"
    path.write_text("\n".join(LINES), encoding="utf-8")
    return path


@pytest.fixture
def blocks(tmp_path):
    """Writes a split and its instances; gives the arguments."""

    def write(rows=(["basic/instance-1.pddl", PLAN, 4],), texts=None):
        (tmp_path / "split.json").write_text(json.dumps(rows))
        (tmp_path / "texts.json").write_text(json.dumps(texts or {"basic/instance-1.pddl": PROBLEM}))
        return str(tmp_path / "split.json"), str(tmp_path / "texts.json")

    return write


class TestGSM8K(TaskContract):
    def evaluations(self):
        scores = {"7": 7.0, "10\n": 10.0, "8/10": 8.0, "[3]": 3.0, "6.5 points": 6.5}
        return {f"It follows.\nScore: {score}": value for score, value in scores.items()}

    @pytest.fixture(params=SIZES)
    def task(self, request, gsm8k):
        return GSM8K(str(original(request, "gsm8k/test.jsonl") or gsm8k))

    def solution(self, item):
        return [f"What is it?\nSub-answer: It is {item.reference[0]}.", f"The answer is {item.reference[0]}."]

    def test_a_sub_question_and_its_answer_are_two_generations_or_one(self, task, gsm8k):
        item = task.load()[0]
        prompt = task.completion_prompt(item, [], "How many?")
        assert prompt == f"{task.thought_prompt(item, [])} How many?\nSub-answer:"
        thought = task.completed("How many?", "It is 3.")
        assert thought == "How many?\nSub-answer: It is 3."
        assert task.thought_ending().cut(f" {thought}") == "How many?"
        together = GSM8K(str(gsm8k), generations=1)
        assert together.completion_prompt(item, [], "How many?") is None
        assert together.thought_ending().cut(f" {thought}\nSub-question 2:") == thought

    @pytest.mark.parametrize("answer", ["0", "11", "-3", "seven", "1.2.3.4 good"])
    def test_a_score_is_from_one_to_ten(self, task, answer):
        assert task.value(f"It follows.\nScore: {answer}").parsed == (answer == "1.2.3.4 good")

    @small_only
    def test_numbers_are_compared_by_value(self, task):
        item = task.load()[1]
        assert item.reference == ("2000",)
        assert task.check(item, ["It is $2,000.00."]).correct
        assert task.check(item, ["20000"]).reason == "the answer is 20000, the reference 2000"


class TestCreativeWriting(TaskContract):
    def evaluations(self):
        return {"It hangs together.\nScore: 9": 9.0, "Score: [4]": 4.0, "Score: 3\nScore: 5": 5.0}

    @pytest.fixture(params=SIZES)
    def task(self, request, writing):
        path = original(request, "creative_writing/data_100_random_text.txt")
        return CreativeWriting(str(path or writing))

    def solution(self, item):
        return [
            "1. A\n2. B\n3. C\n4. D",
            "\n\n".join(f"Something happens. {sentence}" for sentence in item.reference),
        ]

    @small_only
    def test_order_counts(self, task):
        item = task.load()[0]
        passage = "\n\n".join(reversed(item.reference))
        assert task.check(item, [passage]).reason == "paragraph 1 does not end with 'One came.'"

    @small_only
    def test_typography_does_not_count(self, task):
        item = task.load()[0]
        passage = 'One came\n\nTwo  went!\n\nwas it three?\n\nHe said "four."'
        assert task.check(item, [passage]).correct

    @small_only
    def test_a_fragment_is_a_sentence(self, task):
        assert task.load()[1].reference == ("The heat", "Two went!", "One came.", "Was it three?")


class TestBlocksworld(TaskContract):
    def evaluations(self):
        return {
            "It is possible.\nEvaluation: good": 10.0,
            "Evaluation: Bad.": 1.0,
            "Evaluation: **good**": 10.0,
        }

    @pytest.fixture(params=SIZES)
    def task(self, request, blocks):
        folder = original(request, "blocksworld")
        names = ("split_v1_step_6_data.json", "instances_step_6.json")
        return Blocksworld(*(blocks() if folder is None else (str(folder / name) for name in names)))

    def solution(self, item):
        steps = item.reference[1].strip().split("\n")
        return [*(str(Action.parse(step)) for step in steps), "done"]

    @small_only
    def test_says_what_is_wrong_with_a_plan(self, task):
        (item,) = task.load()
        right = self.solution(item)
        assert task.check(item, right[:3]).reason == "b does not lie on a"
        assert task.check(item, right[1:]).reason == "action 1, put down a: the arm does not hold a"
        assert task.check(item, ["pick up b"]).reason == "action 1, pick up b: b is not clear"
        assert task.check(item, ["pick up z"]).reason == (
            "action 1, pick up z: z does not lie on the table and z is not clear"
        )
        assert task.check(item, ["wait"]).reason == "action 1, 'wait': is not one of the four actions"

    @small_only
    def test_what_follows_done_is_not_part_of_the_plan(self, task):
        (item,) = task.load()
        assert task.check(item, [*self.solution(item), "pick up c"]).correct

    def test_instances_may_lie_in_a_folder(self, blocks, tmp_path):
        split, _ = blocks()
        (tmp_path / "basic").mkdir()
        (tmp_path / "basic/instance-1.pddl").write_text(PROBLEM)
        assert Blocksworld(split, str(tmp_path)).load() == Blocksworld(*blocks()).load()


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"answer": "#### 1"}', "row 2, key 'question': expected a text"),
        ('{"question": "a", "answer": "1"}', "row 2, key 'answer': expected a number after ####, found '1'"),
        ('{"question": "a", "answer": "#### one"}', "row 2, key 'answer': expected a number after ####"),
    ],
)
def test_a_wrong_row_of_gsm8k_is_named(tmp_path, line, message):
    path = tmp_path / "test.jsonl"
    path.write_text('{"question": "a", "answer": "#### 1"}\n' + line)
    with pytest.raises(PromptSetError, match=message) as error:
        GSM8K(str(path)).load()
    assert str(error.value).startswith(str(path))


def test_a_wrong_line_of_creative_writing_is_named(writing):
    writing.write_text(LINES[0] + "\n\nOnly. Three. Here.\n")
    with pytest.raises(PromptSetError, match=r"sentences.txt: line 3: 4 sentences are needed, found 3"):
        CreativeWriting(str(writing)).load()


@pytest.mark.parametrize("task", [CreativeWriting, lambda path: Blocksworld(path, path)])
def test_a_file_that_is_missing_empty_or_no_text_is_named(tmp_path, task):
    path = tmp_path / "items.txt"
    with pytest.raises(
        PromptSetError, match=r"items.txt: (cannot be read \(No such file|there is no such file)"
    ):
        task(str(path)).load()
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PromptSetError, match=r"items.txt: (line 1 )?is not UTF-8"):
        task(str(path)).load()
    path.write_text("\n\n")
    with pytest.raises(PromptSetError, match=r"items.txt(: the data set is empty|, line 3: is not JSON)"):
        task(str(path)).load()


@pytest.mark.parametrize(
    ("rows", "texts", "message"),
    [
        ([], None, "split.json: a list of at least one"),
        ([["basic/instance-1.pddl", PLAN]], None, r"split.json, row 1: \[instance, plan, length\]"),
        ([["basic/instance-2.pddl", PLAN, 4]], None, "row 1: .*did you mean 'basic/instance-1.pddl'"),
        ([["basic/instance-1.pddl", PLAN, 4]] * 2, None, "row 2: 'basic/instance-1.pddl' is given twice"),
        ([["basic/instance-1.pddl", PLAN, 4]], ["x"], "texts.json: PDDL texts by path are needed"),
        ([["x", PLAN, 4]], {"x": "(define (problem p)"}, "texts.json, x: a parenthesis is not closed"),
    ],
)
def test_a_wrong_split_is_named(blocks, rows, texts, message):
    with pytest.raises(PromptSetError, match=message):
        Blocksworld(*blocks(rows, texts)).load()


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("18", "18"),
        ("She makes $18 every day.", "18"),
        ("1,200 + 34 = 1,234.50!", "1234.50"),
        ("-$5", "-5"),
        ("10-3", "3"),
        ("= -3", "-3"),
        (".5", "0.5"),
        ("none", None),
    ],
)
def test_the_last_number_of_a_text(text, number):
    assert last_number(text) == (None if number is None else Decimal(number))


def test_a_text_is_cut_at_the_first_stop():
    ending = Ending(("\n\n", "Answer"), 8)
    assert ending.cut(" a\nb Answer: c\n\n") == "a\nb"
    assert ending.cut("\n\n a\n\nb") == "a"  # a model may begin with blank lines
    assert not ending.reached("\n\n a")
    assert ending.cut("") == ""


def test_a_whole_sentence_is_not_split():
    assert split_sentences("One came. Today two went.", {"two went.", "went."}) == [
        "One came.",
        "Today",
        "two went.",
    ]
    assert split_sentences("One came. Two went.") == ["One came.", "Two went."]


def test_prompts_fit_a_small_context(specexp_data, embedded_tokenizer):
    """With the longest thoughts that may be generated, and the generation itself, in a vocabulary of 4,096."""

    def generated(ending):
        return embedded_tokenizer.decode(embedded_tokenizer(WORDY)["input_ids"][: ending.max_new_tokens])

    def tokens(prompt, ending):
        return len(embedded_tokenizer(prompt)["input_ids"]) + ending.max_new_tokens

    folder = specexp_data / "blocksworld"
    for task, count in (
        (GSM8K(str(specexp_data / "gsm8k/test.jsonl")), 100),
        (CreativeWriting(str(specexp_data / "creative_writing/data_100_random_text.txt")), 100),
        (Blocksworld(str(folder / "split_v1_step_6_data.json"), str(folder / "instances_step_6.json")), 152),
    ):
        items = task.load()
        assert len(items) == count
        begun = generated(task.thought_ending())
        two = task.completion_prompt(items[0], [], begun) is not None
        thoughts = [task.completed(begun, generated(task.completion_ending())) if two else begun]
        thoughts *= task.depth - 1
        for item in items:
            for last in (False, True):
                prompt = task.thought_prompt(item, thoughts if last else thoughts[:-1], last)
                assert tokens(prompt, task.thought_ending(last)) <= 2048
            assert tokens(task.value_prompt(item, thoughts), task.value_ending) <= 2048
