"""Every command and every Python block of the README is run, or is a line that CI itself runs."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")

# What makes a command short; a README command that is not listed here fails the test that knows them all.
SHORT = {
    "specexp.sweep": [
        *("--n-trials", "5", "--data.max_prompts", "3", "--sweep.confirm.data.max_prompts", "3"),
        *("--generation.max_new_tokens", "24", "--generation.threads", "1"),
    ],
    "specexp.run": [
        *("--data.max_prompts", "2", "--generation.max_new_tokens", "16", "--generation.samples", "2"),
    ],
    "specexp.verify": [
        *("--verify.toy_samples", "100", "--verify.samples", "20", "--verify.first_tokens", "2"),
        *("--data.max_prompts", "2", "--generation.max_new_tokens", "16"),
    ],
    "specexp.profile": [
        *("--profile.max_tokens", "4", "--profile.repeats", "2", "--profile.prompts", "1"),
        *("--profile.max_new_tokens", "8"),
    ],
    "specexp.record": [
        *("--data.max_prompts", "3", "--generation.max_new_tokens", "24", "--record.live_sample", "1"),
    ],
    "specexp.what_if": ["--generation.max_new_tokens", "24", "--what_if.max_nodes", "16"],
    "specexp.fit": ["--data.max_prompts", "2", "--generation.max_new_tokens", "16"],
    "specexp.export": [],
    "specexp.dashboard": [],
}
HITS = ["--sweep.record_hits.data.max_prompts", "2"]
SHORT_TOO = {
    ("specexp.sweep", "experiments/fastest.yaml"): ["--n-trials", "2"],
    ("specexp.sweep", "experiments/tree_shape.yaml"): HITS,
    ("specexp.sweep", "experiments/replay/tree_shape.yaml"): HITS,
    ("specexp.record", "experiments/replay/tree_shape.yaml"): [
        *HITS,
        "--sweep.confirm.data.max_prompts",
        "3",
    ],
}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def commands() -> list[str]:
    return [
        part.strip() for block in blocks("bash") for line in block.splitlines() for part in line.split("&&")
    ]


def test_installing_and_testing_is_what_ci_does() -> None:
    for command in commands():
        if not command.startswith("python -m"):
            assert command.replace("pip install", "pip_install") in CI.splitlines(), command


@pytest.mark.timeout(900)
def test_commands_and_blocks_work_in_the_order_they_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "offline")
    for name in ("experiments", "sweeps", "configs"):
        (tmp_path / name).symlink_to(ROOT / name)
    for command in commands():
        if not command.startswith("python -m"):
            continue
        words = shlex.split(command)
        extra = [] if "--dry-run" in words else SHORT[words[2]] + SHORT_TOO.get((words[2], words[3]), [])
        done = subprocess.run(
            [sys.executable, *words[1:], *extra], cwd=tmp_path, capture_output=True, text=True
        )
        assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
    assert (tmp_path / "artifacts" / "tree_shape").is_dir()
    monkeypatch.chdir(tmp_path)
    scope: dict[str, object] = {}
    for block in blocks("python"):
        exec(compile(block, "README.md", "exec"), scope)
