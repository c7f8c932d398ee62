"""Values that only a real run meets: no dry run before it."""

from pathlib import Path

import pytest
from helpers.first_hour import Row, check, make, table

ROWS = [
    Row(
        "more tokens than the context",
        "run mine.yaml --generation.max_new_tokens 1000000000000",
        ("generation.max_new_tokens is 1000000000000", "holds 2048"),
    ),
    Row(
        "more threads than cores",
        "run mine.yaml --generation.threads 10000",
        ("generation.threads is 10000", "cores"),
    ),
    Row("an empty file", "sweep mine.yaml", ("mine.yaml is empty",), {"mine.yaml": ""}),
    Row(
        "no prompts left",
        "run mine.yaml --data.offset 6",
        ("data.offset: offset 6", "passes over all 6 prompts"),
    ),
    Row(
        "a trial count that is none", "sweep sweep.yaml --n-trials -3", ("sweep.n_trials is -3", "at least 1")
    ),
]


@table(ROWS)
def test_one_sentence(
    row: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make(row.files, tmp_path)
    monkeypatch.chdir(tmp_path)
    check(row, capsys)
