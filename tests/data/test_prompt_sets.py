"""Every format from a small file: the contract of the family, and the rows it makes of that file."""

import json
from pathlib import Path

import pytest

from specexp.data import (
    C4,
    GSM8K,
    MBPP,
    Alpaca,
    CNNDailyMail,
    HumanEval,
    MTBench,
    OpenWebText,
    PromptRow,
    PromptSet,
    PromptSetError,
    RawText,
    SpecBench,
    StdlibFunctions,
    prompt_rows,
)
from specexp.testing.prompt_sets import PromptSetContract

QUESTIONS = [
    {
        "question_id": 81,
        "category": "writing",
        "turns": ["Write a poem.", "Now shorten it."],
        "reference": ["a"],
    },
    {"question_id": 101, "category": "math", "turns": ["1 + 1?", "Twice that?"]},
    {"question_id": 300, "category": "translation", "turns": ["Translate: Hallo"], "reference": ["Hello"]},
]


def rows_of(prompt_set: PromptSet) -> list[tuple[str, str, list[str]]]:
    return [(row["prompt_id"], row["category"], row["turns"]) for row in prompt_set.load()]


class TestSpecBench(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return SpecBench(write("question.jsonl", QUESTIONS))

    def test_mt_bench_categories_are_one(self, prompt_set):
        assert rows_of(prompt_set) == [
            ("81", "multi-turn conversation", ["Write a poem.", "Now shorten it."]),
            ("101", "multi-turn conversation", ["1 + 1?", "Twice that?"]),
            ("300", "translation", ["Translate: Hallo"]),
        ]


class TestMTBench(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return MTBench(write("question.jsonl", QUESTIONS))

    def test_keeps_its_categories_and_leaves_out_other_tasks(self, prompt_set):
        assert [(i, category) for i, category, _ in rows_of(prompt_set)] == [
            ("81", "writing"),
            ("101", "math"),
        ]

    def test_reads_the_keys_of_the_hub_copy(self, write):
        row = {"prompt_id": 7, "category": "stem", "prompt": ["Why?", "And then?"], "reference": []}
        assert rows_of(MTBench(write("hub.jsonl", [row]))) == [("7", "stem", ["Why?", "And then?"])]


class TestMBPPOriginal(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        row = {
            "task_id": 2,
            "text": "Add two numbers.",
            "code": "...",
            "test_list": ["assert add(1, 2) == 3", "x"],
        }
        return MBPP(write("mbpp.jsonl", [row]))

    def test_prompt_is_the_task_and_its_first_test(self, prompt_set):
        prompt = (
            "Create a Python script for this problem:\n```python\n"
            '"""\nAdd two numbers.\nassert add(1, 2) == 3\n"""\n\n```\n'
        )
        assert rows_of(prompt_set) == [("2", "code", [prompt])]


class TestMBPPSpecBenchForm(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return MBPP(
            write("question.jsonl", [{"question_id": 2, "category": "code", "turns": ["Create ..."]}])
        )

    def test_turns_stay_as_they_are(self, prompt_set):
        assert rows_of(prompt_set) == [("2", "code", ["Create ..."])]


class TestHumanEval(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return HumanEval(
            write("HumanEval.jsonl.gz", [{"task_id": "HumanEval/0", "prompt": "def f():\n", "test": ""}])
        )

    def test_prompt_keeps_its_whitespace(self, prompt_set):
        assert rows_of(prompt_set) == [("HumanEval/0", "code", ["def f():\n"])]


class TestGSM8K(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return GSM8K(
            write("test.jsonl", [{"question": q, "answer": "#### 1"} for q in ("How many?", "How much?")])
        )

    def test_the_row_number_is_the_id(self, prompt_set):
        assert rows_of(prompt_set) == [
            ("0", "math_reasoning", ["How many?"]),
            ("1", "math_reasoning", ["How much?"]),
        ]


class TestAlpaca(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        rows = [
            {"instruction": "Name a colour.", "input": "", "output": "Red"},
            {"instruction": "Sort.", "input": "3, 1", "output": "1, 3"},
        ]
        return Alpaca(write("alpaca_data.json", rows))

    def test_an_input_follows_after_a_blank_line(self, prompt_set):
        assert [turns for _, _, turns in rows_of(prompt_set)] == [["Name a colour."], ["Sort.\n\n3, 1"]]


class TestRawText(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, tmp_path: Path):
        (tmp_path / "stories.txt").write_text("Once upon a time\nThere was a tree\nThe end\n")
        return RawText(str(tmp_path / "stories.txt"), items=2, prompt_tokens=4)

    def test_first_items_are_read_whole(self, prompt_set):
        assert rows_of(prompt_set) == [
            ("0", "raw_text", ["Once upon a time"]),
            ("1", "raw_text", ["There was a tree"]),
        ]
        assert prompt_set.prompt_tokens == 4


class TestC4(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return C4(write("c4.00000.json.gz", [{"text": "A page.", "timestamp": "2019", "url": "http://a"}]))

    def test_text_is_the_prompt(self, prompt_set):
        assert rows_of(prompt_set) == [("0", "web_text", ["A page."])]
        assert prompt_set.prompt_tokens == 128


class TestOpenWebText(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return OpenWebText(write("owt.jsonl", [{"text": "A page."}]))


class TestCNNDailyMail(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, tmp_path: Path):
        from datasets import Dataset

        path = tmp_path / "cnn.parquet"
        Dataset.from_list([{"article": "News.", "highlights": "N.", "id": "x"}]).to_parquet(path)
        return CNNDailyMail(str(path))

    def test_article_is_the_prompt(self, prompt_set):
        assert rows_of(prompt_set) == [("0", "news", ["News."])]


class TestStdlibFunctions(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, monkeypatch):
        row = PromptRow("os.walk", "os", ["def walk(top):\n"])
        monkeypatch.setattr("specexp.data.stdlib.openings", lambda split: [row])
        return StdlibFunctions("test")

    def test_the_opening_is_the_prompt(self, prompt_set):
        assert rows_of(prompt_set) == [("os.walk", "os", ["def walk(top):\n"])]


def test_a_folder_laid_out_like_a_hub_repository_is_read_by_subset_and_split(tmp_path: Path):
    (tmp_path / "README.md").write_text(
        "---\nconfigs:\n"
        "- config_name: main\n  data_files:\n  - split: test\n    path: main/test.jsonl\n"
        "- config_name: other\n  data_files:\n  - split: test\n    path: other/test.jsonl\n---\n"
    )
    for subset in ("main", "other"):
        (tmp_path / subset).mkdir()
        (tmp_path / subset / "test.jsonl").write_text(
            json.dumps({"question": f"{subset}?", "answer": ""}) + "\n"
        )
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
    asked = []

    def no_network(**arguments):
        asked.append(arguments)
        raise ConnectionError("no network")

    monkeypatch.setattr("datasets.load_dataset", no_network)
    with pytest.raises(PromptSetError, match=r"no network.*give a local file"):
        prompt_set.load()
    asked[0].pop("streaming", None)
    assert asked == [{"path": path, "name": subset, "split": split}]


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


class TestErrors:
    """One sentence each, with the file and the row or key."""

    def test_missing_file(self):
        with pytest.raises(PromptSetError, match=r"no/such/file\.jsonl: there is no such file"):
            GSM8K("no/such/file.jsonl").load()

    def test_missing_file_that_looks_like_a_hub_name(self):
        with pytest.raises(PromptSetError, match=r"data/test\.jsonl: there is no such file"):
            GSM8K("data/test.jsonl").load()

    @pytest.mark.parametrize("content", ["", "[]", "\n"])
    def test_empty_file(self, tmp_path: Path, content: str):
        path = tmp_path / "empty.json"
        path.write_text(content)
        with pytest.raises(PromptSetError, match=r"empty\.json: the data set is empty"):
            GSM8K(str(path)).load()

    def test_unknown_format(self, tmp_path: Path):
        path = tmp_path / "questions.docx"
        path.write_text("?")
        with pytest.raises(PromptSetError, match=r"questions\.docx: its format is not known.*\.jsonl"):
            GSM8K(str(path)).load()

    def test_content_of_another_format(self, tmp_path: Path):
        path = tmp_path / "questions.jsonl"
        path.write_text("How many?\n")
        with pytest.raises(PromptSetError, match=r"questions\.jsonl: line 1 is no JSON \(.+\)") as caught:
            GSM8K(str(path)).load()
        assert "\n" not in str(caught.value)

    def test_broken_archive(self, tmp_path: Path):
        path = tmp_path / "HumanEval.jsonl.gz"
        path.write_bytes(b"\x1f\x8b but no archive")
        with pytest.raises(PromptSetError, match=r"HumanEval\.jsonl\.gz: cannot be read"):
            HumanEval(str(path)).load()

    def test_missing_key_names_the_nearest(self, write):
        path = write("q.jsonl", [{"questions": "How many?", "answer": "1"}])
        with pytest.raises(PromptSetError, match=r"q\.jsonl: no key 'question' .*did you mean 'questions'\?"):
            GSM8K(path).load()

    def test_file_of_another_set(self, write):
        path = write("q.jsonl", [{"task_id": 1, "prompt": "def f():"}])
        with pytest.raises(PromptSetError, match="is this the right prompt set"):
            GSM8K(path).load()

    @pytest.mark.parametrize("bad", [None, "  "])
    def test_blank_text_names_row_and_key(self, write, bad):
        path = write("q.jsonl", [{"question": "How many?"}, {"question": bad}])
        with pytest.raises(
            PromptSetError, match=r"q\.jsonl: line 2, key 'question': expected a text .*, found"
        ):
            GSM8K(path).load()

    @pytest.mark.parametrize("turns", [[], None, ["Hello", " "]])
    def test_bad_turns_name_row_and_key(self, write, turns):
        path = write("q.jsonl", [QUESTIONS[2], {"question_id": 1, "category": "qa", "turns": turns}])
        with pytest.raises(PromptSetError, match=r"q\.jsonl: line 2, key 'turns': expected"):
            SpecBench(path).load()

    def test_turns_that_are_one_text(self, write):
        path = write("q.jsonl", [{"question_id": 1, "category": "qa", "turns": "Hello?"}])
        with pytest.raises(
            PromptSetError, match=r"line 1, key 'turns': expected a list of one or more texts"
        ):
            SpecBench(path).load()

    def test_repeated_id(self, write):
        path = write("q.jsonl", [QUESTIONS[0], QUESTIONS[1], QUESTIONS[0]])
        with pytest.raises(PromptSetError, match=r"q\.jsonl: rows 1 and 3 share the prompt id '81'"):
            SpecBench(path).load()

    def test_no_row_at_all(self):
        with pytest.raises(PromptSetError, match="here: the data set is empty"):
            prompt_rows(list[PromptRow](), where="here")
