"""Wrong files of prompts."""

import gzip
import json

from helpers.first_hour import Row, table

GOOD = '{"prompt": "Why?"}\n'
IMAGE = {"type": "image_url", "image_url": {"url": "x"}}
TOOL = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "tool_calls": [{}]}]}


def message(**message: object) -> dict[str, object]:
    """A row of one message."""
    return {"messages": [message]}


def file(
    content: str | bytes | dict[str, object], sentence: str, name: str = "my.jsonl", code: int = 2
) -> Row:
    """A file of prompts that is typed after ``--data.prompts``."""
    text = f"{json.dumps(content)}\n" if isinstance(content, dict) else content
    return Row(f"run mine.yaml --data.prompts {name} --dry-run", sentence, {name: text}, code)


def typed(prompts: str, sentence: str) -> Row:
    """Other options, next to a right file ``my.jsonl``."""
    return Row(f"run mine.yaml --data.prompts {prompts} --dry-run", sentence, {"my.jsonl": GOOD})


ROWS = [
    file(GOOD + '{"prompt": "Wh', "my.jsonl: line 2 is not JSON"),
    file({"prompt": "a", "text": "b"}, "row 1 has the fields prompt, text, but ... --data.field prompt"),
    file(
        {"input_text": "a"},
        "row 1 has the fields input_text ... prompt, text, question ... field input_text",
    ),
    file({"promt": "a"}, "row 1 has the field 'promt'; did you mean 'prompt'? ... or set --data.field promt"),
    file(f'{GOOD}{{"text": "b"}}\n', "row 2 must have the field 'prompt', got text"),
    file(f'{GOOD}{{"prompt": ""}}\n', "my.jsonl: row 2, key 'prompt': must be a text ... got ''"),
    file('{"prompt": "\\ud800"}\n', "my.jsonl: line 1 cannot be read ... surrogates not allowed"),
    file('{"id": 1, "prompt": "a"}\n' * 2, "rows 1 and 2 share '1'"),
    file(message(role="wizard", content="a"), "messages.0.role must be 'developer'"),
    file(
        message(role="user", content=[IMAGE]), "messages.0.content.0.type must be 'text' ... got 'image_url'"
    ),
    file(TOOL, "messages.1.tool_calls.0.function is missing"),
    file({"body": {"prompt": [1, 2]}}, "key 'body.prompt': must be a text (token ids are not supported)"),
    file('{"prompt": "a", "prompt": "b"}', "my.jsonl: line 1 cannot be read ... key 'prompt' is given twice"),
    file("id,prompt\n1\n", "my.csv: row 1, key 'prompt': must be a text ... got ''", "my.csv"),
    file("id;prompt\n1;a\n", "my.csv: columns must be separated by commas, got 'id;prompt'", "my.csv"),
    file(
        '{"data": [{"prompt": "a"}]}',
        "my.json: the rows must be the file's own list ... field 'data'",
        "my.json",
    ),
    file(gzip.compress(GOOD.encode())[:20], "my.jsonl.gz: cannot be read", "my.jsonl.gz"),
    file(GOOD, "my.docx: the file name must end in ... .jsonl", "my.docx"),
    Row(
        "run mine.yaml --data.prompts model --dry-run",
        "model: cannot be read (No (supported) data files found",
        {"model/config.json": "{}", "model/model.safetensors": ""},
    ),
    file(f'{{"prompt": "{"a " * 9000}"}}\n', "command line: data.prompts: prompt '0' may need", "long.jsonl"),
    file(
        {"prompt": "a", "structured_outputs": {"json": {"properties": {"x": {"type": "strin"}}}}},
        "prompt '0': structured_outputs.json.properties.x: Invalid type: strin",
    ),
    file(
        {"prompt": "a", "structured_outputs": "json"}, "must be an object such as {json: SCHEMA}, got 'json'"
    ),
    typed(
        "my.jsonl --data.prompts.init_args.split test",
        "data.prompts.init_args.split ... split must be left out for a file",
    ),
    typed("'*.jsonl'", "patterns are not expanded: name one file or a folder"),
    typed("nope.json", "no such file ... .json, .jsonl ... a hub name (owner/name)"),
    typed("mu.jsonl", "mu.jsonl: no such file ... did you mean 'my.jsonl'?"),
    typed("StdlibFunctions --data.field text", "field is only for OwnPrompts"),
    typed(
        "my.jsonl --data.field txt",
        "command line: data.field: ... row 1 must have the field 'txt', got prompt",
    ),
    typed("my.jsonl --data.offset 9", "data.offset: offset must be at most 0"),
    # read with a remark
    file('[{"prompt": "Why?"}]', "my.jsonl: prompts are read from 'prompt'.", code=0),
    file(b"\xef\xbb\xbf" + GOOD.encode(), "prompts are read from 'prompt'.", code=0),
    file({"body": {"prompt": "a", "max_tokens": 3}}, "max_tokens (1)", code=0),
]


@table(ROWS)
def test_one_sentence(row, answered, capsys):
    answered(row)
    assert "pyarrow" not in capsys.readouterr().err
