"""Prompts of a user's own: all forms of files, and the conversations they are read as."""

import json
from pathlib import Path

import pytest

from specexp.data import OwnPrompts, PromptSetError
from specexp.testing.prompt_sets import PromptSetContract

pytestmark = pytest.mark.unit

CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Yes?"},
    {"role": "user", "content": "Why?"},
]
ASKED = {"turns": ["Why?"], "context": CHAT[:3], "chat": True}
TWO = ["Why?", "And then?"]
REQUEST = {"model": "m", "messages": CHAT, "max_tokens": 9, "temperature": 0.2}
SHARE_GPT = [
    {"from": who, "value": message["content"]}
    for who, message in zip(("system", "human", "gpt", "human"), CHAT, strict=True)
]


class TestOwnPrompts(PromptSetContract):
    @pytest.fixture
    def prompt_set(self, write):
        return OwnPrompts(write("my.jsonl", [{"prompt": "A"}, {"prompt": "B", "category": "qa"}]))


def lines(*rows: object) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def one(folder: Path, name: str, content: str) -> dict[str, object]:
    (folder / name).write_bytes(content.encode())
    (row,) = OwnPrompts(str(folder / name)).load()
    return row


@pytest.mark.parametrize(
    ("row", "read"),
    [
        ({"prompt": "Why?"}, {"turns": ["Why?"], "chat": None}),
        ({"text": "Why?"}, {"turns": ["Why?"]}),
        ({"instruction": "Sort.", "input": "3, 1", "output": "1, 3"}, {"turns": ["Sort.\n\n3, 1"]}),
        ({"turns": TWO, "category": "qa"}, {"turns": TWO, "category": "qa"}),
        ({"prompt": TWO}, {"turns": TWO}),
        ({"messages": CHAT}, ASKED),
        ({"prompt": CHAT}, ASKED),
        ({"messages": [*CHAT, {"role": "assistant", "content": "So."}]}, ASKED),
        ({"conversations": SHARE_GPT}, ASKED),
        ({"conversations": SHARE_GPT[1:], "system": "Be brief."}, ASKED),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Why?"}]}]}, {"turns": ["Why?"]}),
        ({"messages": [{"role": "developer", "content": "Be brief."}, *CHAT[1:]]}, ASKED),
        ({"custom_id": "a", "method": "POST", "url": "/v1/chat/completions", "body": REQUEST}, ASKED),
        ({"custom_id": "a", "body": {"model": "m", "prompt": "Why?"}}, {"turns": ["Why?"], "chat": False}),
        (REQUEST, ASKED),
        ({"id": 7, "prompt": "Why?"}, {"prompt_id": "7"}),
        ({"type": "single_turn", "text": "Why?", "delay": 5}, {"turns": ["Why?"]}),
        ({"session_id": "s", "turns": [{"text": one, "delay": 5} for one in TWO]}, {"turns": TWO, "prompt_id": "s"}),
        ({"prompt": "Why?"}, {"prompt_id": "0", "category": "own", "context": []}),
    ],
)  # fmt: skip
def test_a_row_is_read_by_what_its_field_holds(tmp_path: Path, row: dict, read: dict):
    found = one(tmp_path, "my.jsonl", lines(row))
    assert {key: found[key] for key in read} == read


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("my.json", json.dumps([{"prompt": "Why?"}], indent=1)),
        ("my.json", json.dumps({"prompt": "Why?"}, indent=1)),
        ("my.jsonl", json.dumps([{"prompt": "Why?"}])),
        ("my.jsonl", '\ufeff\n{"prompt": "Why?"}\n\n'),
        ("my.txt", "\nWhy?\n\n"),
        ("my.csv", "id,prompt\n1,Why?\n"),
        ("my.csv", 'prompt,answer\n"Why?","a, \nb"\n'),
    ],
)
def test_every_format_of_text(tmp_path: Path, name: str, content: str):
    assert one(tmp_path, name, content)["turns"] == ["Why?"]


def test_a_prompt_keeps_its_white_space_and_digits_but_the_line_break_of_a_text_file(tmp_path: Path):
    for ending in ("\n", "\r\n", ""):
        assert one(tmp_path, "my.txt", f"\tx: {ending}")["turns"] == ["\tx: "]
    for prompt in ("def f():\n", "def f():\n    ", "Answer: ", "\n\nWhy?\r\n", "007"):
        assert one(tmp_path, "my.jsonl", lines({"prompt": prompt}))["turns"] == [prompt]
        assert one(tmp_path, "my.csv", f'prompt\n"{prompt}"\n')["turns"] == [prompt]


def test_rows_may_have_other_fields_and_types_than_the_first(tmp_path: Path):
    (tmp_path / "my.jsonl").write_text(lines({"prompt": "Why?"}, {"prompt": TWO, "id": "late"}))
    assert OwnPrompts(str(tmp_path / "my.jsonl")).load()["turns"][:] == [["Why?"], TWO]


def test_what_datasets_wrote_is_read(tmp_path: Path):
    from datasets import Dataset, DatasetDict

    rows = Dataset.from_list([{"messages": CHAT}])
    rows.to_parquet(tmp_path / "my.parquet")
    rows.save_to_disk(tmp_path / "saved")
    DatasetDict(test=rows).save_to_disk(tmp_path / "split")
    for name in ("my.parquet", "saved", "split"):
        (row,) = OwnPrompts(str(tmp_path / name)).load()
        assert {key: row[key] for key in ASKED} == ASKED
    DatasetDict(test=rows, dev=rows).save_to_disk(tmp_path / "splits")
    with pytest.raises(PromptSetError, match=r"splits: split must be one of test, dev, got 'train'"):
        OwnPrompts(str(tmp_path / "splits")).load()


def test_every_request_that_a_run_of_aiperf_left_is_a_prompt(tmp_path: Path):
    first, later = {"messages": CHAT[:2]}, {"messages": CHAT, "max_tokens": 9}
    sessions = [{"session_id": "a", "payloads": [first, later]}, {"session_id": "b", "payloads": [first]}]
    path = tmp_path / "inputs.json"
    path.write_text(json.dumps({"data": sessions}, indent=1))
    rows = list(OwnPrompts(str(path)).load())
    assert [(row["prompt_id"], row["turns"]) for row in rows] == [("a/1", ["Hi"]), ("a/2", ["Why?"]), ("b/1", ["Hi"])]
    assert rows[1]["context"] == CHAT[:3]


def test_ignored_fields_of_requests_are_counted(tmp_path: Path):
    path = tmp_path / "my.jsonl"
    path.write_text(lines({"body": REQUEST}, {"body": {"prompt": "A", "max_tokens": 1}}))
    prompts = OwnPrompts(str(path))
    prompts.load()
    (remark,) = prompts.remarks()
    assert "fields max_tokens (2), temperature (1) are ignored; configure generation and verifier" in remark
