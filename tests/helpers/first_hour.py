"""The table of wrong inputs: what a new user types, and what must be answered.

Each row of a group is run in this process as its command runs it, in a folder of its own. A mistake is answered with
one sentence on stderr and leaves nothing behind; what is mended on the way says so and ends with 0.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specexp.__main__ import main

FILE = """\
drafter: TokenRecycling
builder: {class_path: Chain, init_args: {length: 3}}
verifier: {class_path: KeyedSampling, init_args: {temperature: 0.7}}
data: {prompts: {class_path: MTBench, init_args: {path: question.jsonl}}, max_prompts: 2}
generation: {max_new_tokens: 8}
tracking: {mode: disabled}
trainer: {enable_progress_bar: false}
"""
QUESTIONS = "".join(
    f'{{"question_id": {number}, "category": "math", "turns": ["def add{number}(a, b):"]}}\n'
    for number in range(6)
)
SWEEP = f"""{FILE}\
sweep: {{space: {{builder.init_args.length: {{type: int, low: 1, high: 4}}}}, n_trials: 3, confirm: null}}
"""
SECONDS = 10
"""A command that has not answered by then hangs."""


@dataclass(frozen=True)
class Row:
    """A wrong input.

    Args:
        name: What is wrong, in a few words.
        typed: The command and its arguments, as after ``python -m specexp.``.
        answered: What its one sentence must hold: what was given, where, what is allowed.
        files: Files that are there, by name.
        code: The exit code: 2 for a mistake, 1 where the world is at fault, 0 where the answer is a clean recovery.
    """

    name: str
    typed: str
    answered: tuple[str, ...]
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 2

    def __str__(self) -> str:
        return self.name


def table(rows: list[Row]) -> pytest.MarkDecorator:
    """Parametrises a test with the rows of a group."""
    names = [row.name for row in rows]
    assert len(set(names)) == len(names), "two rows share a name"
    return pytest.mark.parametrize("row", rows, ids=names)


def make(files: Mapping[str, str | bytes], folder: Path) -> None:
    """Write files, among them an experiment, a sweep and their prompts unless they are given."""
    for name, content in {
        "mine.yaml": FILE,
        "sweep.yaml": SWEEP,
        "question.jsonl": QUESTIONS,
        **files,
    }.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def entries(folder: Path) -> dict[str, int]:
    """Everything under a folder, with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*")}


def run(typed: str) -> int:
    """Run a command in this process; its exit code."""
    command, *arguments = shlex.split(typed)
    try:
        code = main([command, *arguments])
    except SystemExit as end:  # of argparse
        code = end.code
    assert isinstance(code, int)
    return code


def check(row: Row, capsys: pytest.CaptureFixture[str]) -> str:
    """Type a row in the working directory and hold the answer against what must be answered.

    Returns:
        The sentence.
    """
    folder = Path.cwd()
    before = entries(folder)
    capsys.readouterr()
    code = run(row.typed)
    shown = capsys.readouterr()
    lines = shown.err.splitlines()
    assert code == row.code, shown
    assert "Traceback" not in shown.out + shown.err
    if code == 0:
        sentence = shown.out + shown.err
    else:
        told = [line for line in lines if "error: " in line]
        assert len(told) == 1, f"one sentence was expected: {shown.err}"
        assert lines[-1] == told[0], f"the sentence is not the last word: {shown.err}"
        sentence = told[0]
        assert entries(folder) == before, "something was left behind"
    for fragment in row.answered:
        assert fragment in sentence, sentence
    return sentence
