"""Every format from a small file: the contract of the family, and the rows it makes of that file."""

import json
from pathlib import Path

import pytest
from helpers.small_models import byte_tokenizer

from specexp.constraints.grammar import constraint_of
from specexp.data import (
    C4,
    GSM8K,
    MBPP,
    Alpaca,
    CNNDailyMail,
    EverydayTasks,
    HumanEval,
    MTBench,
    OpenWebText,
    OwnPrompts,
    PromptRow,
    PromptSet,
    PromptSetError,
    RawText,
    SpecBench,
    StdlibFunctions,
    StructuredTasks,
)
from specexp.testing.prompt_sets import PromptSetContract

pytestmark = pytest.mark.unit

QUESTIONS = [
    {"question_id": 81, "category": "writing", "turns": ["Write a poem.", "Now shorten it."], "reference": ["a"]},
    {"question_id": 101, "category": "math", "turns": ["1 + 1?", "Twice that?"]},
    {"question_id": 300, "category": "translation", "turns": ["Translate: Hallo"], "reference": ["Hello"]},
]
POEM, SUM = QUESTIONS[0]["turns"], QUESTIONS[1]["turns"]
TASK = '"""\nAdd two numbers.\nassert add(1, 2) == 3\n"""'
MBPP_PROMPT = f"Create a Python script for this problem:\n```python\n{TASK}\n\n```\n"


FORMATS = [
    (SpecBench, "question.jsonl", QUESTIONS, [
        ("81", "multi-turn conversation", POEM),
        ("101", "multi-turn conversation", SUM),
        ("300", "translation", ["Translate: Hallo"]),
    ]),
    (MTBench, "question.jsonl", QUESTIONS, [("81", "writing", POEM), ("101", "math", SUM)]),
    (MTBench, "hub.jsonl", [{"prompt_id": 7, "category": "stem", "prompt": SUM, "reference": []}],
     [("7", "stem", SUM)]),
    (MBPP, "mbpp.jsonl", [{"task_id": 2, "text": "Add two numbers.", "test_list": ["assert add(1, 2) == 3", "x"]}],
     [("2", "code", [MBPP_PROMPT])]),
    (MBPP, "question.jsonl", [{"question_id": 2, "category": "code", "turns": ["Create ..."]}],
     [("2", "code", ["Create ..."])]),
    (HumanEval, "HumanEval.jsonl.gz", [{"task_id": "HumanEval/0", "prompt": "def f():\n", "test": ""}],
     [("HumanEval/0", "code", ["def f():\n"])]),
    (GSM8K, "test.jsonl", [{"question": "How many?", "answer": "#### 1"}, {"question": "How much?", "answer": "2"}],
     [("0", "math_reasoning", ["How many?"]), ("1", "math_reasoning", ["How much?"])]),
    (Alpaca, "alpaca_data.json", [
        {"instruction": "Name a colour.", "input": "", "output": "Red"},
        {"instruction": "Sort.", "input": "3, 1", "output": "1, 3"},
    ], [("0", "instruction", ["Name a colour."]), ("1", "instruction", ["Sort.\n\n3, 1"])]),
    (RawText, "stories.jsonl", [{"text": "Once upon a time"}], [("0", "raw_text", ["Once upon a time"])]),
    (C4, "c4.00000.json.gz", [{"text": "A page.", "timestamp": "2019", "url": "http://a"}],
     [("0", "web_text", ["A page."])]),
    (OpenWebText, "owt.jsonl", [{"text": "A page."}], [("0", "web_text", ["A page."])]),
    (CNNDailyMail, "cnn.parquet", [{"article": "News.", "highlights": "N.", "id": "x"}], [("0", "news", ["News."])]),
]  # fmt: skip
NAMES = [f"{row[0].__name__}-{row[1]}" for row in FORMATS]


def rows_of(prompt_set: PromptSet) -> list[tuple[str, str, list[str]]]:
    return [(row["prompt_id"], row["category"], row["turns"]) for row in prompt_set.load()]


def made(write, kind: type[PromptSet], name: str, rows: list[dict[str, object]]) -> PromptSet:
    path = write(name, rows)
    if name.endswith(".parquet"):
        from datasets import Dataset

        Dataset.from_list(rows).to_parquet(path)
    return kind(path)


class TestNamedSets(PromptSetContract):
    @pytest.fixture(params=FORMATS, ids=NAMES)
    def prompt_set(self, request, write):
        return made(write, *request.param[:3])

    @pytest.mark.parametrize(("kind", "name", "rows", "read"), FORMATS, ids=NAMES)
    def test_rows_of_a_format(self, write, kind, name, rows, read):
        assert rows_of(made(write, kind, name, rows)) == read


class TestStdlibFunctions(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, monkeypatch):
        row = PromptRow("os.walk", "os", ["def walk(top):\n"])
        monkeypatch.setattr("specexp.data.training_text.openings", lambda split: [row])
        return StdlibFunctions("test")

    def test_the_opening_is_the_prompt(self, prompt_set):
        assert rows_of(prompt_set) == [("os.walk", "os", ["def walk(top):\n"])]


class TestEverydayTasks(PromptSetContract):
    @pytest.fixture
    def prompt_set(self):
        return EverydayTasks()

    def test_the_tasks_take_turns(self, prompt_set):
        tasks = [task for _, task, _ in rows_of(prompt_set)]
        assert tasks == 24 * ["edit a file", "summarise", "write code", "chat", "explain"]


class TestStructuredTasks(PromptSetContract):
    @pytest.fixture
    def prompt_set(self):
        return StructuredTasks()

    def test_every_prompt_has_a_constraint_that_can_be_read(self, prompt_set):
        tokenizer = byte_tokenizer()
        for row in prompt_set.load():
            constraint_of(row["structured_outputs"], tokenizer, len(tokenizer), frozenset({tokenizer.eos_token_id}))

    def test_the_tasks_take_turns(self, prompt_set):
        assert [task for _, task, _ in rows_of(prompt_set)] == 12 * ["extract", "classify", "call a tool"]


def test_own_prompts_bring_their_constraints(tmp_path: Path):
    spec = {"json": {"type": "object", "properties": {"a": {"enum": [None, 1]}}}}
    file = tmp_path / "my.jsonl"
    file.write_text("\n".join(map(json.dumps, [{"prompt": "A", "structured_outputs": spec}, {"prompt": "B"}])))
    assert [row["structured_outputs"] for row in OwnPrompts(str(file)).load()] == [spec, None]
    file.write_text(json.dumps({"prompt": "A", "structured_outputs": "json"}))
    with pytest.raises(PromptSetError, match="key 'structured_outputs': must be an object such as"):
        OwnPrompts(str(file)).load()


def test_the_first_texts_of_a_file_are_read_whole(tmp_path: Path):
    (tmp_path / "stories.txt").write_text("Once upon a time\nThere was a tree\nThe end\n")
    prompts = RawText(str(tmp_path / "stories.txt"), items=2, prompt_tokens=4)
    assert [turns for *_, turns in rows_of(prompts)] == [["Once upon a time"], ["There was a tree"]]
    assert (prompts.prompt_tokens, C4().prompt_tokens) == (4, 128)


def test_a_folder_laid_out_like_a_hub_repository_is_read_by_subset_and_split(tmp_path: Path):
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: main\n  data_files:\n  - split: test\n    path: main/test.jsonl\n"
        "- config_name: other\n  data_files:\n  - split: test\n    path: other/test.jsonl\n---\n"
    )
    for subset in ("main", "other"):
        (tmp_path / subset).mkdir()
        (tmp_path / subset / "test.jsonl").write_text(json.dumps({"question": f"{subset}?"}) + "\n")
    assert rows_of(GSM8K(str(tmp_path))) == [("0", "math_reasoning", ["main?"])]
    assert rows_of(GSM8K(str(tmp_path), subset="other")) == [("0", "math_reasoning", ["other?"])]


@pytest.mark.parametrize(
    ("prompt_set", "path", "subset", "split"),
    [
        (HumanEval(), "openai/openai_humaneval", None, "test"),
        (MBPP(), "google-research-datasets/mbpp", "full", "test"),
        (GSM8K(), "openai/gsm8k", "main", "test"),
        (C4(), "allenai/c4", "en", "validation"),
        (CNNDailyMail(), "abisee/cnn_dailymail", "3.0.0", "test"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, PromptSet) else None,
)
def test_without_a_path_a_set_comes_from_the_hub(monkeypatch, prompt_set, path, subset, split):
    calls = []

    def no_network(**arguments):
        calls.append(arguments | {"streaming": None})
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", no_network)
    with pytest.raises(PromptSetError, match=r"no network.*set path to a local file"):
        prompt_set.load()
    assert calls == [{"path": path, "name": subset, "split": split, "streaming": None}]


def test_a_large_set_is_streamed_and_only_its_first_items_are_read(monkeypatch):
    from datasets import IterableDataset

    read = []

    def pages():
        for number in range(1000):
            read.append(number)
            yield {"text": f"page {number}"}

    def load_dataset(**arguments):
        assert arguments["streaming"]
        return IterableDataset.from_generator(pages)

    monkeypatch.setattr("datasets.load_dataset", load_dataset)
    assert len(C4(items=3).load()) == 3
    assert len(read) < 1000


HOW = {"question": "How many?"}
REFUSED = [
    (GSM8K, "empty.json", "", r"empty\.json: the data set is empty"),
    (GSM8K, "empty.json", "[]", r"empty\.json: the data set is empty"),
    (GSM8K, "q.docx", "?", r"q\.docx: the file name must end in .*\.jsonl"),
    (GSM8K, "q.jsonl", "How many?\n", r"q\.jsonl: line 1 is not JSON \(.+\)"),
    (GSM8K, "q.jsonl", [{"questions": "How many?"}], r"must have a column 'question', .*did you mean 'questions'\?"),
    (GSM8K, "q.jsonl", [{"task_id": 1, "prompt": "def f():"}], "must have a column 'question', .*; allowed are"),
    (GSM8K, "q.jsonl", [HOW, {"question": None}], "row 2, key 'question': must be a text .*, got"),
    (GSM8K, "q.jsonl", [HOW, {"question": "  "}], "row 2, key 'question': must be a text .*, got"),
    *((SpecBench, "q.jsonl", [QUESTIONS[2], {**QUESTIONS[1], "turns": bad}], "row 2, key 'turns': must be a")
      for bad in ([], None, ["Hello", " "])),
    (SpecBench, "q.jsonl", [QUESTIONS[0], QUESTIONS[1], QUESTIONS[0]], "rows 1 and 3 share '81'"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "name", "content", "sentence"), REFUSED)
def test_a_wrong_file_is_one_sentence_with_its_place(tmp_path: Path, kind, name, content, sentence):
    text = content if isinstance(content, str) else "".join(f"{json.dumps(row)}\n" for row in content)
    (tmp_path / name).write_text(text)
    with pytest.raises(PromptSetError, match=sentence) as caught:
        kind(str(tmp_path / name)).load()
    assert "\n" not in str(caught.value)
