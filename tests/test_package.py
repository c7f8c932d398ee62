"""What a user sees before the first command: the list of commands, and the names of the package."""

from __future__ import annotations

import sys

import pytest

import specexp
from specexp.__main__ import main


def test_the_package_lists_its_commands(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["specexp"])
    assert main() == 0
    shown = capsys.readouterr().out
    for command in ("run", "sweep", "verify", "serve", "export", "why", "init", "doctor"):
        assert f"\n  {command} " in shown
    assert all(len(line.split()) > 3 for line in shown.splitlines() if line.startswith("  "))


def test_completion_finds_the_public_names() -> None:
    assert {"load_pair", "load_artifact", "Decoder", "GenerationResult", "__version__"} == set(dir(specexp))
    assert all(getattr(specexp, name) for name in dir(specexp))
