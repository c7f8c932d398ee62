"""Wrong inputs of a new user, and the expected answers.

Each row runs in this process as its command does, in a folder of its own. A mistake is answered by one sentence on
stderr and leaves nothing behind. A clean recovery is reported, and the command ends with 0.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType

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
    f'{{"question_id": {number}, "category": "math", "turns": ["def add{number}(a, b):"]}}\n' for number in range(6)
)
SWEEP = f"""{FILE}\
sweep: {{space: {{builder.init_args.length: {{type: int, low: 1, high: 4}}}}, n_trials: 3, confirm: null}}
"""


@dataclass(frozen=True)
class Row:
    """A wrong input.

    Args:
        typed: the command and its arguments, as after ``python -m specexp.``.
        sentence: fragments of the answer, separated by `` ... ``: the key, the value, the suggestion.
        files: other files than those of :func:`make`, by name.
        code: the exit code: 2 for a mistake, 1 for a fault of the environment, 0 for a clean recovery.
    """

    typed: str
    sentence: str
    files: Mapping[str, str | bytes] = field(default_factory=dict)
    code: int = 2


def dry(options: str, sentence: str, **files: str | bytes) -> Row:
    """Return a row of wrong options of a dry run."""
    return Row(f"run mine.yaml {options} --dry-run", sentence, files)


def study(options: str, sentence: str, *, files: Mapping[str, str] = MappingProxyType({}), code: int = 2) -> Row:
    """Return a row of wrong options of a sweep's dry run."""
    return Row(f"sweep sweep.yaml {options} --dry-run", sentence, files, code)


def file(text: str | bytes, sentence: str, command: str = "run") -> Row:
    """Return a row of a wrong experiment file."""
    return Row(f"{command} mine.yaml --dry-run", sentence, {"mine.yaml": text})


def table(rows: list[Row]) -> pytest.MarkDecorator:
    """Parametrise a test with rows, each named by its sentence."""
    return pytest.mark.parametrize("row", rows, ids=[row.sentence for row in rows])


def make(files: Mapping[str, str | bytes], folder: Path) -> None:
    """Write files, and by default an experiment, a sweep and their prompts."""
    right = {"mine.yaml": FILE, "sweep.yaml": SWEEP, "question.jsonl": QUESTIONS}
    for name, content in {**right, **files}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())


def entries(folder: Path) -> dict[str, int]:
    """Return everything under a folder, with its size."""
    return {str(path.relative_to(folder)): path.lstat().st_size for path in folder.rglob("*")}


def run(typed: str) -> int:
    """Run a command in this process; return its exit code."""
    try:
        code = main(shlex.split(typed))
    except SystemExit as end:  # of argparse
        code = end.code
    assert isinstance(code, int)
    return code


def check(row: Row, capsys: pytest.CaptureFixture[str]) -> None:
    """Run a row in the working directory, and compare its answer."""
    before = entries(Path.cwd())
    capsys.readouterr()
    code = run(row.typed)
    shown = capsys.readouterr()
    assert code == row.code, shown
    assert not re.search("Traceback|pyarrow", shown.out + shown.err)
    answer = shown.out + shown.err
    if code:
        *_, answer = shown.err.splitlines()
        assert shown.err.count("error: ") == answer.count("error: ") == 1, f"one last sentence: {shown.err}"
        assert entries(Path.cwd()) == before, "something was left behind"
    for fragment in row.sentence.split(" ... "):
        assert fragment in answer, answer
