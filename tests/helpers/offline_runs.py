"""The content of offline W&B runs."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ACCOUNT = ("WANDB_API_KEY", "WANDB_IDENTITY_TOKEN_FILE", "WANDB_MODE", "WANDB_BASE_URL", "WANDB_DATA_DIR")
"""Variables that would make a run online, or write it elsewhere."""


def forget_account(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Make this test's runs offline, below their own folders, also on a machine with an account."""
    for name in _ACCOUNT:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NETRC", str(folder / "netrc"))


def offline_runs(folder: Path) -> list[dict[str, Any]]:
    """Return the ``wandb leet inspect --summary`` of every offline run, and its ``folder``, sorted by name."""
    runs = [
        {**json.loads(inspect(run, "--summary")), "folder": run} for run in (folder / "wandb").glob("offline-run-*")
    ]
    return sorted(runs, key=lambda run: str(run["name"]))


def inspect(run: Path, *options: str) -> str:
    """Return the output of ``wandb leet inspect`` on a run."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", *options, str(run)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def records(run: Path, kind: str) -> list[dict[str, Any]]:
    """Return all records of a kind, such as ``history``."""
    lines = [json.loads(line) for line in inspect(run).splitlines() if line.startswith("{")]
    return [line[kind] for line in lines if line["type"] == kind]
