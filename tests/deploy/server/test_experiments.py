"""The scripts of experiments/serve, short: what they find of this machine is for an idle one."""

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[3] / "experiments" / "serve"


@pytest.mark.slow
def test_a_short_soak_finds_nothing_wrong():
    command = [
        sys.executable,
        str(FOLDER / "soak.py"),
        "--requests",
        "400",
        "--minutes",
        "4",
        "--threads",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "wrong texts or statuses: 0" in done.stdout


@pytest.mark.slow
def test_a_short_load_is_measured_and_written(tmp_path):
    few = [
        "--at-once",
        "1",
        "2",
        "--requests",
        "2",
        "--max-tokens",
        "4",
        "--rounds",
        "1",
        "--only",
        "specexp",
    ]
    command = [sys.executable, str(FOLDER / "load.py"), *few, "--output", str(tmp_path)]
    subprocess.run(command, check=True)
    table = (tmp_path / "load.md").read_text().splitlines()
    assert [line.split(" | ")[:2] for line in table[2:]] == [["| specexp", "1"], ["| specexp", "2"]]
