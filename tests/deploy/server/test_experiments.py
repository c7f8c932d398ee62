"""The scripts of experiments/serve, short: their figures need an idle machine."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def run(module, options):
    command = [sys.executable, "-m", f"experiments.serve.{module}", *options.split()]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT)


@pytest.mark.slow
def test_a_short_soak_finds_nothing_wrong():
    done = run("soak", "--requests 400")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong texts or statuses: 0" in done.stdout


@pytest.mark.slow
def test_a_short_load_is_measured_and_written(tmp_path):
    few = "--at-once 1 2 --max-tokens 4 --rounds 1 --only specexp"
    done = run("load", f"{few} --output {tmp_path}")
    assert done.returncode == 0, done.stdout + done.stderr
    table = [line for line in (tmp_path / "load.md").read_text().splitlines() if line.startswith("|")]
    assert [line.split(" | ")[:2] for line in table[2:]] == [["| specexp", "1"], ["| specexp", "2"]]
