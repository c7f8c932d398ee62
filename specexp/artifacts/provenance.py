"""Where an artifact comes from."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

_PACKAGES = ("specexp", "torch", "transformers", "tokenizers", "numpy", "optuna", "lightning")


def complete_provenance(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with every field of the schema: what is missing is looked up, or null.

    Args:
        given: any fields; a metric may be a bare number instead of ``{"value": ..., "low": ..., "high":
            ...}``.
    """
    fields: dict[str, Any] = {"study": None, "trial": None, "command": None, "device": None, "config": None}
    fields |= {"git_commit": None, "packages": None, "metrics": {}} | dict(given)
    fields["git_commit"] = fields["git_commit"] or git_commit()
    fields["packages"] = fields["packages"] or package_versions()
    fields["metrics"] = {
        name: dict(metric) if isinstance(metric, Mapping) else {"value": metric}
        for name, metric in fields["metrics"].items()
    }
    return fields


def package_versions() -> dict[str, str]:
    """Versions of Python and of the packages that decide results."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions


def git_commit() -> str | None:
    """The commit of specexp's own checkout, with ``-dirty`` if files differ; None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():
        return None
    try:
        commit = _git(root, "rev-parse", "HEAD")
        return f"{commit}-dirty" if _git(root, "status", "--porcelain", "--untracked-files=no") else commit
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    command = ["git", "-C", str(root), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=20).stdout.strip()
