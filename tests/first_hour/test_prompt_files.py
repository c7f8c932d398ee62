"""Wrong files of prompts."""

import gzip
import json
from pathlib import Path

import pytest
from helpers.first_hour import Row, check, make, table

GOOD = '{"prompt": "Why?"}\n'
TOOL = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]}
IMAGE = {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}
ROLE = {"messages": [{"role": "wizard", "content": "a"}]}
ANSWER = {"messages": [{"role": "assistant", "content": "a"}]}
SILENT = {"messages": [{"role": "user", "content": None}]}


def file(
    name: str, content: str | bytes | dict[str, object], *answered: str, called: str = "my.jsonl"
) -> Row:
    """A file of prompts that is typed after ``--data.prompts``."""
    text = f"{json.dumps(content)}\n" if isinstance(content, dict) else content
    return Row(name, f"run mine.yaml --data.prompts {called} --dry-run", answered, {called: text})


def typed(name: str, prompts: str, *answered: str) -> Row:
    """Something that is no file, beside a file ``my.jsonl``."""
    return Row(name, f"run mine.yaml --data.prompts {prompts} --dry-run", answered, {"my.jsonl": GOOD})


ROWS = [
    file("an empty file", "", "my.jsonl: the data set is empty", "data.prompts, command line"),
    file("nothing but blank lines", "\n\n", "my.jsonl: the data set is empty"),
    file("an empty array", "[]", "my.jsonl: the data set is empty"),
    file("another encoding", b'{"prompt": "caf\xe9"}\n', "my.jsonl: line 1 is not UTF-8 text", "0xe9"),
    file("bytes of a program", b"\x7fELF\x02\x01\xff", "my.jsonl: line 1 is not UTF-8 text"),
    file("a line that is no JSON", f"{GOOD}Why?\n", "my.jsonl: line 2 is no JSON"),
    file("a line cut short", GOOD + '{"prompt": "Wh', "my.jsonl: line 2 is no JSON"),
    file("a line that is a list", f"{GOOD}[1]\n", "my.jsonl: line 2 is no object but a list", '{"prompt": "..."}'),
    file("an array of texts", '["Why?"]', "my.jsonl: item 1 is no object but a text"),
    file("an array not closed", '[{"prompt": "a"},\n', "my.jsonl: line", "is no JSON"),
    file("brackets without end", "[" * 100_000, "my.jsonl: cannot be read"),
    file("two fields", {"prompt": "a", "text": "b"}, "line 1 has 'prompt' and 'text'", "--data.field prompt"),
    file("no known field", {"input_text": "a"}, "my.jsonl: line 1 has the fields input_text", "prompt, text, question",
         "--data.field input_text"),
    file("a field missing later", f'{GOOD}{{"text": "b"}}\n', "line 2 has no 'prompt' (its fields are text)"),
    file("an empty prompt", f'{GOOD}{{"prompt": ""}}\n', "my.jsonl: line 2, key 'prompt': expected a text", "found ''"),
    file("a prompt that is null", {"prompt": None}, "line 1, key 'prompt': expected a text", "found None"),
    file("a prompt that is a number", {"prompt": 3}, "line 1, key 'prompt': expected a text", "found 3"),
    file("half a character", '{"prompt": "\\ud800"}\n', "line 1, key 'prompt': expected a text",
         "which holds half a surrogate pair"),
    file("two prompts of one id", '{"id": 1, "prompt": "a"}\n' * 2, "rows 1 and 2 share the prompt id '1'"),
    file("an unknown role", ROLE, "message 1 is of 'wizard'; roles are system"),
    file("no message of the user", ANSWER, "at least one message of the user"),
    file("a message without text", SILENT, "message 1 has no text, but None"),
    file("a picture", IMAGE, "message 1 holds {'type': 'image_url'", "only text is read"),
    file("a call of tools", TOOL, "message 2 is a call of tools; only text is read"),
    file("a request for something else", {"body": {"input": "a"}}, "key 'body' has the fields input",
         "messages or prompt"),
    file("ids of tokens", {"body": {"prompt": [1, 2]}}, "key 'body.prompt': expected a text, not the ids of tokens"),
    file("too few columns", "id,prompt\n1\n", "my.csv: line 2 has fewer fields than the 2 of the first line",
         called="my.csv"),
    file("a quote that is not closed", 'prompt\n"Why?\n', "my.csv: line", "is no CSV", called="my.csv"),
    file("a quote inside a field", 'prompt\n"a" b\n', "my.csv: line 2 is no CSV", called="my.csv"),
    file("two columns of one name", "prompt,prompt\na,b\n", "my.csv: line 1 names two columns 'prompt'",
         called="my.csv"),
    file("a field given twice", '{"prompt": "a", "prompt": "b"}', "line 1 is no JSON (key 'prompt' is given twice)"),
    file("rows inside an object", '{"data": [{"prompt": "a"}]}', "save the array in 'data' alone, as a file"),
    file("a field of an array given twice", '[{"prompt": "a", "prompt": "b"}]', "key 'prompt' is given twice"),
    file("no columns", "\nWhy?\n", "my.csv: line 1 names no columns", called="my.csv"),
    typed("a split of a file", "my.jsonl --data.prompts.init_args.split test", "data.prompts.init_args.split: my.jsonl",
          "a file has no splits"),
    typed("a protocol that is none", "s4://x/my.jsonl", "s4:// is not known; allowed are https://"),
    file("columns apart by semicolons", "id;prompt\n1;a\n", "my.csv: line 1 separates its columns by ';'",
         "separated by commas", called="my.csv"),
    file("an archive that needs another package", b"(\xb5/\xfd", "zstandard, which is not installed", "zstd -d",
         called="my.jsonl.zst"),
    file("no archive", b"\x1f\x8b but no archive", "my.jsonl.gz: cannot be read", called="my.jsonl.gz"),
    file("an archive cut short", gzip.compress(GOOD.encode())[:20], "my.jsonl.gz: cannot be read",
         called="my.jsonl.gz"),
    file("no Parquet", "PAR1", "my.parquet: cannot be read", called="my.parquet"),
    file("a format that is not known", GOOD, "my.docx: its format is not known", ".jsonl", called="my.docx"),
    file("a folder without prompts", "", "holds no data set", "state.json", called="folder/notes.md"),
    Row("a model in place of prompts", "run mine.yaml --data.prompts model --dry-run",
        ("model: the folder holds a model; a file of prompts is expected",),
        {"model/config.json": "{}", "model/model.safetensors": ""}),
    file("a name without ending", GOOD, "prompts: its format is not known", called="prompts"),
    typed("a file that is not there", "nope.json", "command line: data.prompts: nope.json: there is no such file",
          "allowed are a file that ends in .json, .jsonl", "a hub name (owner/name)"),
    typed("a misspelt file", "mu.jsonl", "mu.jsonl: there is no such file", "did you mean 'my.jsonl'?"),
    typed("a device in place of a file", "/dev/null", "/dev/null: is no plain file, and it is not a hub name"),
    typed("a file in no folder", "nope/my.jsonl", "nope/my.jsonl: there is no such file"),
    typed("neither file nor hub name", "my/prompts/p", "there is no such file", "not a hub name (owner/name)"),
    typed("a name longer than names are", "a" * 300 + ".jsonl", "there is no such file"),
    typed("a class that is none", "Nonesuch", "no PromptSet is called 'Nonesuch'"),
    typed("a misspelt class", "SpecBensh", "did you mean 'SpecBench'?"),
    typed("a class of no module", "nowhere.Prompts", "'nowhere.Prompts' cannot be imported"),
    typed("a field of a set that knows its own", "StdlibFunctions --data.field text", "field is for prompts"),
    typed("a field that is not there", "my.jsonl --data.field txt", "line 1 has no 'txt' (its fields are prompt)"),
    typed("a policy that is none", "my.jsonl --data.too_long cut", "refuse, keep-last, keep-first, skip"),
    typed("a policy without a limit", "my.jsonl --data.too_long skip", "max_prompt_tokens, which is not set"),
    typed("an offset past the end", "my.jsonl --data.offset 9", "data.offset: offset 9 passes over all 1 prompts"),
]  # fmt: skip
RECOVERED = [
    file("an array in a file of lines", '[{"prompt": "Why?"}]', "my.jsonl: prompts are read from 'prompt'."),
    file("a byte order mark", b"\xef\xbb\xbf" + GOOD.encode(), "prompts are read from 'prompt'."),
    file("what a request asks", {"body": {"prompt": "a", "max_tokens": 3}}, "is not obeyed: max_tokens (1)"),
]


@table([*ROWS, *(Row(row.name, row.typed, row.answered, row.files, code=0) for row in RECOVERED)])
def test_one_sentence(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    files = dict(row.files)
    if "folder/notes.md" in files:
        row = Row(row.name, row.typed.replace("folder/notes.md", "folder"), row.answered, files)
    make(files, tmp_path)
    monkeypatch.chdir(tmp_path)
    check(row, capsys)
    assert "pyarrow" not in capsys.readouterr().err
