"""Folders, files and databases that cannot be used or were left half-written, and workers that begin together."""

import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from helpers.first_hour import FILE, SWEEP, Row, check, file, make, run
from sqlalchemy.exc import IntegrityError, OperationalError, ProgrammingError

from specexp.base.start import masked
from specexp.sweep.storage import retry_creation


def test_a_database_with_foreign_tables_is_refused(tmp_path, model_folder, monkeypatch, capsys):
    make({}, tmp_path)
    with sqlite3.connect(tmp_path / "x.db") as database:
        database.execute("create table studies (a)")
    monkeypatch.chdir(tmp_path)
    typed = f"sweep sweep.yaml --storage sqlite:///x.db --pair.target {model_folder} --pair.target_dtype float32"
    assert run(typed) == 1
    sentence = capsys.readouterr().err.splitlines()[-1]
    assert "storage 'sqlite:///x.db' cannot hold a study: " in sentence
    assert "name another database, or a new one" in sentence


@pytest.fixture
def study_command(tmp_path, model_folder, monkeypatch):
    """The command of a finished study of one trial, in the working directory."""
    make({"sweep.yaml": SWEEP.replace("n_trials: 3", "n_trials: 1")}, tmp_path)
    shutil.copytree(model_folder, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    typed = "sweep sweep.yaml --pair.target model --pair.target_dtype float32"
    assert run(typed) == 0
    return typed


@pytest.mark.timeout(120)
def test_a_damaged_journal_is_named_and_a_cut_line_dropped(study_command, capsys):
    journal = Path("runs/sweep/journal.log")
    whole = journal.read_bytes()
    first, rest = whole.split(b"\n", 1)
    damaged = "journal.log, line 2, must be a JSON entry ... start the study over"
    for line, typed in ((b"5", f"{study_command} --dry-run"), (b"garbage", study_command)):
        journal.write_bytes(first + b"\n" + line + b"\n" + rest)
        check(Row(typed, damaged, code=1), capsys)
    journal.write_bytes(whole + b'{"op_code": 4, "tri')
    check(Row(f"{study_command} --dry-run", "ended within a line ... is dropped", code=0), capsys)
    assert journal.read_bytes() != whole, "a dry run writes nothing"
    other = f"{study_command} --generation.max_new_tokens 3 --dry-run"
    check(Row(other, "exists already with another workload", code=1), capsys)
    check(Row(study_command, "ended within a line ... is dropped", code=0), capsys)
    journal.write_bytes(b"")
    check(Row(study_command, "journal.log is empty ... the study starts over", code=0), capsys)


@pytest.mark.timeout(120)
def test_a_study_with_other_settings_is_named_by_a_dry_run(study_command, capsys):
    before = Path("runs/sweep/journal.log").read_bytes()
    check(Row(f"{study_command} --dry-run", "", code=0), capsys)
    other = f"{study_command} --generation.max_new_tokens 3 --dry-run"
    check(Row(other, "exists already with another workload ... (generation.max_new_tokens, ", code=1), capsys)
    assert Path("runs/sweep/journal.log").read_bytes() == before


@pytest.mark.parametrize(
    "text",
    [
        "postgresql://me:pa55word@host/studies",
        "redis://:pa55word@host",
        "mysql://me:pa55:/word@host/x is no URL",
        "'--storage=postgresql://me@host/x?password=pa55word&sslmode=on'",
    ],
)
def test_a_password_is_masked_anywhere_in_a_url(text):
    assert "pa55" not in masked(text)
    assert "***" in masked(text)


def test_tables_that_another_worker_made_are_found_at_the_next_attempt():
    left = [IntegrityError, ProgrammingError, OperationalError]

    def make_tables() -> str:
        if left:
            raise left.pop()("create table", {}, Exception("it exists"))
        return "made"

    assert retry_creation(make_tables) == "made"
    with pytest.raises(RuntimeError, match="no such host"):
        retry_creation(lambda: (_ for _ in ()).throw(RuntimeError("no such host")))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_no_file_and_no_output_of_a_study_has_the_password_of_its_storage(tmp_path, model_folder, monkeypatch, capsys):
    import optuna

    kept = optuna.storages.InMemoryStorage()
    opened: Callable[..., object] = lambda url, folder: kept  # noqa: E731
    monkeypatch.setattr("specexp.sweep.one_process.open_storage", opened)
    monkeypatch.setattr("specexp.sweep.storage.check_storage", lambda url, error: None)
    make(
        {"sweep.yaml": SWEEP.replace("n_trials: 3, confirm: null", "n_trials: 2, confirm: {best: 1}")},
        tmp_path,
    )
    shutil.copytree(model_folder, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    url = "postgresql://me:pa55word@host/studies"
    typed = f"sweep sweep.yaml --storage {url} --pair.target model --pair.target_dtype float32 --tracking.mode offline"
    assert run(f"{typed} --sweep.export '{{to: kept, kind: composition}}' --dry-run") == 0
    assert run(f"{typed} --sweep.export '{{to: kept, kind: composition}}'") == 0
    assert run(f"{typed} --print-config") == 0
    shown = capsys.readouterr()
    assert "postgresql://me:***@host/studies" in shown.out
    assert "pa55word" not in shown.out + shown.err
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert {"config.yaml", "environment.json", "artifact.json"} <= {path.name for path in written}
    assert any(path.suffix == ".wandb" for path in written)
    assert [path for path in written if b"pa55word" in path.read_bytes()] == []


def test_a_traceback_has_no_password():
    program = "from specexp.base.start import begin; begin(); raise ValueError('redis://:pa55word@host is down')"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert "ValueError: redis://:***@host is down" in ended.stderr
    assert "pa55word" not in ended.stderr.splitlines()[-1]


def test_an_output_that_is_a_link_to_nothing_is_refused(tmp_path, answered):
    (tmp_path / "gone").symlink_to("nowhere")
    answered(Row("run mine.yaml --output gone", "output ... gone is not a folder"))


def test_a_wrong_mode_of_wandb_is_reported_before_anything_is_decoded(answered, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "banana")
    answered(file(FILE.replace("tracking: {mode: disabled}\n", ""), "WANDB_MODE: W&B mode must be one of"))


def test_a_wrong_backend_of_matplotlib_stops_no_command():
    program = "from specexp.base.start import begin; begin(); import matplotlib.pyplot"
    subprocess.run([sys.executable, "-c", program], env={**os.environ, "MPLBACKEND": "foo"}, check=True)
