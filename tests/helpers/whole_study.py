"""A whole study by its commands: searched, confirmed and exported by workers that share a PostgreSQL."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import optuna

from helpers.first_hour import QUESTIONS, SWEEP
from helpers.postgres import PASSWORD
from helpers.shared_study import check_trials
from specexp.artifacts import read_artifact
from specexp.bench.record import read_records

TRIALS = 12
PROMPTS = 2
"""Prompts of the search, and as many others of the confirmation."""
SPACE = "builder.init_args.length: {type: int, low: 1, high: 4}"
CONFIRM = f"{{best: 1, data: {{max_prompts: {PROMPTS}}}}}"
CONFIRMED = f"n_trials: {TRIALS}, confirm: {CONFIRM}, export: {{to: kept, kind: composition}}"


class WholeStudy:
    """A working directory, initially empty, with a study, its prompts and its model."""

    def __init__(self, folder: Path, model: str, url: str) -> None:
        self.folder, self.url = folder, url
        wider = f"{SPACE}, drafter.init_args.k: {{type: int, low: 1, high: 4}}"
        text = SWEEP.replace("n_trials: 3, confirm: null", CONFIRMED).replace(SPACE, wider)
        (folder / "question.jsonl").write_text(QUESTIONS)
        (folder / "sweep.yaml").write_text(text)
        shutil.copytree(model, folder / "model")

    def type(self, *more: str, url: str | None = None) -> subprocess.Popen[str]:
        """Type the command."""
        models = ("--pair.target", "model", "--pair.target_dtype", "float32")
        command = (sys.executable, "-m", "specexp.sweep", "sweep.yaml", "--storage", url or self.url)
        return subprocess.Popen(
            (*command, *models, *more), cwd=self.folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def check(
        self, outputs: Sequence[str], before: dict[int, tuple[float, ...]] | None = None, killed: int = 0
    ) -> None:
        """Check that no finished trial was lost or measured twice, one worker confirmed, and no password was printed.

        Args:
            outputs: the output of the commands.
            before: trials that had finished earlier, see :func:`~helpers.shared_study.finished`.
            killed: number of killed workers, each of which may have left a complete older version of the artifact.
        """
        for one in outputs:
            assert "Traceback" not in one, one
            assert PASSWORD not in one
        study = check_trials("sweep", self.url, TRIALS, before)
        for trial in study.trials:
            if trial.user_attrs.get("prompts") and "duplicate_of" not in trial.user_attrs:
                (records,) = self.folder.rglob(f"records/trial_{trial.number:04d}.jsonl")
                own = _answers(records, f"trial {trial.number}")
                # records of prompts that other programs disturbed are kept, but have no speedup
                assert trial.user_attrs["prompts"] <= len(own) <= PROMPTS
                assert set(own.values()) == {1}
        claims = optuna.load_study(study_name="sweep: confirmations", storage=self.url).trials
        (*_, concluded) = (claim.user_attrs["concluded"] for claim in claims if "concluded" in claim.user_attrs)
        folder = Path(concluded["folder"])
        answers = _answers(folder / "confirm.jsonl")
        assert answers
        assert set(answers.values()) == {1}
        arms = Counter(arm for arm, *_ in answers)
        assert len(arms) > 1
        assert set(arms.values()) == {PROMPTS}
        kept = self.folder / "kept"
        kinds = Counter(read_artifact(version).kind for version in kept.glob("v*"))
        assert 1 <= kinds["composition"] <= 1 + killed
        assert read_artifact(kept / "best-tree").kind == "composition"
        assert read_artifact(kept / "best-tree").folder.name == f"v{kinds.total()}"
        assert files_with_the_password(self.folder) == []


def _answers(records: Path, arm: str | None = None) -> Counter[tuple[str, str, int]]:
    """Count the lines of a file of records; no line is broken."""
    assert read_records(records)
    lines = [json.loads(line) for line in records.read_text().splitlines()]
    return Counter((line["arm"], line["prompt_id"], line["sample"]) for line in lines if arm in (None, line["arm"]))


def files_with_the_password(folder: Path) -> list[Path]:
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    assert files
    return [path for path in files if PASSWORD.encode() in path.read_bytes()]
