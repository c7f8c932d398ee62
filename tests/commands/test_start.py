"""The start of every command, in a process of its own."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
from specexp.__main__ import start
sys.modules[{name!r}] = None
sys.argv = ["sweep.py", "experiments/tree_shape.yaml", "--dry-run"]
start("sweep")
"""


@pytest.mark.parametrize(("name", "ends"), [("optuna", 2), ("specexp.sweep.command", 1)])
def test_a_missing_dependency_is_one_sentence_and_a_fault_of_ours_a_traceback(name, ends):
    done = subprocess.run([sys.executable, "-c", WITHOUT.format(name=name)], capture_output=True, text=True)
    assert done.returncode == ends
    lines = done.stderr.splitlines()
    if ends == 2:
        assert len(lines) == 1
        assert lines[0].startswith(f"error: {sys.executable} has no optuna, which specexp needs: ")
    else:
        assert lines[0].startswith("Traceback")
