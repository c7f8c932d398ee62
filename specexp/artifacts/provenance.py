"""Where an artifact comes from."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from typing import Any

from specexp.artifacts.environment import git_commit, git_dirty, package_versions
from specexp.core.noise import NOISE_VERSION
from specexp.core.secrets import all_masked


def complete_provenance(given: Mapping[str, Any]) -> dict[str, Any]:
    """``given`` with every field of the schema: what is missing is looked up, or null.

    Args:
        given: any fields; a metric may be a bare number instead of ``{"value": ..., "low": ..., "high":
            ...}``.
    """
    fields: dict[str, Any] = {"study": None, "trial": None, "command": None, "device": None, "config": None}
    fields |= {"runtime": None, "dtype": None, "git_commit": None, "packages": None, "metrics": {}} | dict(
        given
    )
    fields["git_commit"] = fields["git_commit"] or _commit()
    fields["noise_version"] = NOISE_VERSION
    fields["packages"] = fields["packages"] or {"python": platform.python_version(), **package_versions()}
    fields["metrics"] = {
        name: dict(metric) if isinstance(metric, Mapping) else {"value": metric}
        for name, metric in fields["metrics"].items()
    }
    # Keys as JSON has them: numbers, such as those of a latency profile, would be sorted otherwise once read back.
    read_back: dict[str, Any] = json.loads(json.dumps(all_masked(fields)))
    return read_back


def _commit() -> str | None:
    commit = git_commit()
    return f"{commit}-dirty" if commit is not None and git_dirty() else commit
