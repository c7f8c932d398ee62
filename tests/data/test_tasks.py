"""Tasks keep the contract, read their evaluators' answers, check answers, and make one prompt set."""

import json
from decimal import Decimal

import pytest
from helpers.task_contract import TaskContract

from experiments.papers.seed.blocksworld import Action, Blocksworld
from experiments.papers.seed.creative_writing import CreativeWriting, split_sentences
from experiments.papers.seed.gsm8k import GSM8K, last_number
from specexp.data import PromptSetError, TaskItems
from specexp.data.tasks import Ending

pytestmark = pytest.mark.unit

PROBLEM = """
(define (problem two) (:domain blocksworld-4ops) (:objects a b c)
 (:init (handempty) (on a b) (ontable b) (ontable c) (clear a) (clear c))
 (:goal (and (on b a))))
"""
PLAN = "(unstack a b)\n(put-down a)\n(pick-up b)\n(stack b a)\n"
LINES = ("One came. Two went! Was it three? He said “four”.", "The heat Two went! One came. Was it three?")
SIZES = ["small", "original"]
"""A small file, and the original one in the folder that the environment variable SPECEXP_DATA names."""
small_only = pytest.mark.parametrize("task", ["small"], indirect=True)


def original(request, name):
    """The path of an original file if the fixture is to read one."""
    return request.getfixturevalue("specexp_data") / name if request.param == "original" else None


@pytest.fixture
def gsm8k(write):
    numbers = ((1, "2"), (1999, "2,000"))
    return write("test.jsonl", [{"question": f"What is {n} + 1?", "answer": f"so\n#### {m}"} for n, m in numbers])


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

    @small_only
    def test_a_sub_question_and_its_answer_are_two_generations_or_one(self, task, gsm8k):
        item = task.load()[0]
        prompt = task.completion_prompt(item, [], "How many?")
        assert prompt == f"{task.thought_prompt(item, [])} How many?\nSub-answer:"
        thought = task.completed("How many?", "It is 3.")
        assert thought == "How many?\nSub-answer: It is 3."
        assert task.thought_ending().cut(f" {thought}") == "How many?"
        together = GSM8K(gsm8k, generations=1)
        assert together.completion_prompt(item, [], "How many?") is None
        assert together.thought_ending().cut(f" {thought}\nSub-question 2:") == thought

    @small_only
    @pytest.mark.parametrize("answer", ["0", "11", "-3", "seven", "1.2.3.4 good"])
    def test_a_score_is_from_one_to_ten(self, task, answer):
        assert task.value(f"It follows.\nScore: {answer}").parsed == (answer == "1.2.3.4 good")

    @small_only
    def test_numbers_are_compared_by_value(self, task):
        item = task.load()[1]
        assert item.reference == ("2000",)
        assert task.check(item, ["It is $2,000.00."]).correct
        assert task.check(item, ["20000"]).reason == "the answer must be 2000, got 20000"


class TestCreativeWriting(TaskContract):
    def evaluations(self):
        return {"It hangs together.\nScore: 9": 9.0, "Score: [4]": 4.0, "Score: 3\nScore: 5": 5.0}

    @pytest.fixture(params=SIZES)
    def task(self, request, writing):
        path = original(request, "creative_writing/data_100_random_text.txt")
        return CreativeWriting(str(path or writing))

    def solution(self, item):
        return ["1. A\n2. B\n3. C\n4. D", "\n\n".join(f"Something happens. {one}" for one in item.reference)]

    @small_only
    def test_order_counts_and_typography_does_not(self, task):
        item, fragments = task.load()
        passage = "\n\n".join(reversed(item.reference))
        assert task.check(item, [passage]).reason == "paragraph 1 must end with 'One came.'"
        assert task.check(item, ['One came\n\nTwo  went!\n\nwas it three?\n\nHe said "four."']).correct
        assert fragments.reference == ("The heat", "Two went!", "One came.", "Was it three?")


class TestBlocksworld(TaskContract):
    def evaluations(self):
        texts = {"It is possible.\nEvaluation: good": 10.0, "Evaluation: Bad.": 1.0}
        return {**texts, "Evaluation: **good**": 10.0}

    @pytest.fixture(params=SIZES)
    def task(self, request, blocks):
        folder = original(request, "blocksworld")
        names = ("split_v1_step_6_data.json", "instances_step_6.json")
        return Blocksworld(*(blocks() if folder is None else (str(folder / name) for name in names)))

    def solution(self, item):
        return [*(str(Action.parse(step)) for step in item.reference[1].strip().split("\n")), "done"]

    @small_only
    def test_a_wrong_plan_has_its_reason_and_done_ends_a_right_one(self, task):
        (item,) = task.load()
        right = self.solution(item)
        for plan, reason in (
            (right[:3], "it is not true that b lies on a"),
            (right[1:], "action 1, put down a: it is not true that the arm holds a"),
            (["pick up z"], "action 1, pick up z: it is not true that z is clear and z lies on the table"),
            (["wait"], "action 1 must be one of the four actions, got 'wait'"),
        ):
            assert task.check(item, plan).reason == reason
        assert task.check(item, [*right, "pick up c"]).correct

    @small_only
    def test_instances_may_lie_in_a_folder(self, task, blocks, tmp_path):
        (tmp_path / "basic").mkdir()
        (tmp_path / "basic/instance-1.pddl").write_text(PROBLEM)
        assert Blocksworld(blocks()[0], str(tmp_path)).load() == task.load()


def test_a_wrong_line_of_creative_writing_is_named(writing):
    writing.write_text(LINES[0] + "\n\nOnly. Three. Here.\n")
    with pytest.raises(PromptSetError, match=r"sentences.txt: line 3 must have 4 sentences, got 3"):
        CreativeWriting(str(writing)).load()


@pytest.mark.parametrize("task", [CreativeWriting, lambda path: Blocksworld(path, path)])
def test_a_file_that_is_missing_empty_or_binary_is_named(tmp_path, task):
    path = tmp_path / "items.txt"
    for content, message in (
        (None, r"(cannot be read \(No such file|no such file)"),
        (b"\xff\xfe\x00", "(line 1 )?must be UTF-8"),
        (b"\n\n", "(the data set is empty|line 3: must be valid JSON)"),
    ):
        if content is not None:
            path.write_bytes(content)
        with pytest.raises(PromptSetError, match=f"items.txt(: |, ){message}"):
            task(str(path)).load()


def test_published_prompts_of_gsm8k(gsm8k):
    """SEED, appendix C: a sub-question, its answer, and a number after the newest of them."""
    task = GSM8K(str(gsm8k), prompts="published")
    item = task.load()[0]
    thought = task.completed("How many?", "It is 2.")
    assert task.thought_prompt(item, [thought]) == (
        f"Given a question: What is 1 + 1?, the previous sub-question and sub-answer is: {thought}\n"
        "Please output the next sub-question to further reason the question.\nThe sub-question is:"
    )
    assert task.completion_prompt(item, [thought], "And then?") == (
        "Given a question: What is 1 + 1?, the sub-question is: And then?\n"
        "Please answer the sub-question based on the question.\nThe sub-answer is:"
    )
    assert "the sub-question is: How many?, the sub-answer is: It is 2.\n" in task.value_prompt(item, ["no", thought])
    assert [task.value(text) for text in (" 8/10", "[3]", "good")] == [(8.0, True), (3.0, True), (0.0, False)]


def test_published_prompts_of_creative_writing_rate_the_passage(writing):
    task = CreativeWriting(str(writing), prompts="published")
    item = task.load()[0]
    prompt, thought = task.thought_prompt(item, []), "Plan:\nA walk.\n\nPassage:\nOne came."
    assert prompt.endswith("Passage:\nYour passage here.\n\nThe output is:")
    assert "must be: One came. Two went! Was it three? He said “four”.\n" in prompt
    assert task.thought_ending().cut(thought) == thought
    assert task.value_prompt(item, [thought]).startswith("Analyze the passage:\nOne came.\nthen at the last line")
    assert task.thought_prompt(item, [thought], last=True) == f"{prompt}\nPlan:\nA walk.\n\nPassage:"
    answers = (" 7", "It is clear. Thus the coherency score is [9]", "unclear")
    assert [task.value(text) for text in answers] == [(7.0, True), (9.0, True), (0.0, False)]


def test_published_prompts_of_blocksworld(blocks):
    task = Blocksworld(*blocks(), prompts="published")
    (item,) = task.load()
    plan = ["unstack a from b", "put down a"]
    assert task.thought_prompt(item, plan).endswith(
        f"{item.problem}\nMy plan is as follows: unstack a from b, put down a\nThe current action is:"
    )
    assert task.value_prompt(item, plan).endswith(
        f"{item.problem}\n[ACTION] unstack a from b, put down a\n[EVALUATION]\nThe evaluation is:"
    )
    assert [task.value(text) for text in (" good", "Bad.", "It is good")] == [
        (10.0, True),
        (1.0, True),
        (0.0, False),
    ]


def test_the_last_number_of_a_text():
    for text, number in (
        ("She makes $18 every day.", "18"),
        ("1,200 + 34 = 1,234.50!", "1234.50"),
        ("-$5", "-5"),
        ("10-3", "3"),
        ("= -3", "-3"),
        (".5", "0.5"),
    ):
        assert last_number(text) == Decimal(number)
    assert last_number("none") is None


def test_a_text_is_cut_at_the_first_stop():
    ending = Ending(("\n\n", "Answer"), 8)
    assert ending.cut(" a\nb Answer: c\n\n") == "a\nb"
    assert ending.cut("\n\n a\n\nb") == "a"  # a model may begin with blank lines
    assert not ending.reached("\n\n a")
    assert ending.cut("") == ""


def test_a_sentence_without_a_stop_is_recognised_by_the_next():
    sentences = split_sentences("One came. Today two went.", {"two went.", "went."})
    assert sentences == ["One came.", "Today", "two went."]


def test_items_of_several_tasks_are_one_prompt_set(gsm8k, writing):
    items = TaskItems([GSM8K(gsm8k), CreativeWriting(str(writing))], items=2)
    rows = items.load()
    assert rows["prompt_id"] == ["GSM8K/0", "GSM8K/1", "Creative Writing/0", "Creative Writing/1"]
    assert rows["category"] == ["GSM8K"] * 2 + ["Creative Writing"] * 2
    assert rows["turns"][1] == ["What is 1999 + 1?"]
    task, item = items.problems["GSM8K/1"]
    assert (task.name, item.reference) == ("GSM8K", ("2000",))
    for tasks, message in (
        ([], "at least one task, got none"),
        ([GSM8K("a"), GSM8K("b")], "got 'GSM8K' twice"),
    ):
        with pytest.raises(ValueError, match=message):
            TaskItems(tasks)
