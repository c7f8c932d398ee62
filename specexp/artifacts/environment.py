"""The environment of a result: versions, git commit, device, threads. Importing this module does not import torch."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from specexp.artifacts.manifest import Provenance
from specexp.base.cores import usable_cores
from specexp.base.messages import counted
from specexp.base.start import all_masked
from specexp.core.noise import NOISE_VERSION

# packages that results may depend on; with scikit-learn, transformers' assistants draft other lengths
PACKAGES = (
    "specexp", "torch", "transformers", "tokenizers", "numpy", "lightning", "optuna", "wandb", "datasets", "pydantic",
    "scikit-learn",
)  # fmt: skip


_DIRTY = ("status", "--porcelain", "--untracked-files=no")  # lists the tracked files that differ from the commit
INSTRUCTIONS = {
    "avx2": "AVX2",
    "avx512f": "AVX-512",
    "avx512_bf16": "AVX-512 BF16",
    "amx_bf16": "AMX",
    "asimd": "NEON",
    "bf16": "NEON BF16",
}
"""Names of the instructions on which speed and rounding depend, by flag in ``/proc/cpuinfo``."""


def environment(device: str = "cpu", command: list[str] | None = None) -> dict[str, Any]:
    """Return the command (by default that of this process), git commit, versions, device and time."""
    commit = _git("rev-parse", "HEAD")
    torch = sys.modules.get("torch")  # only if already loaded, because importing it takes a second
    return {
        "command": all_masked(list(sys.orig_argv if command is None else command)),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": commit,
        "git_dirty": None if commit is None else bool(_git(*_DIRTY)),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": package_versions(),
        "device": device,
        "device_name": device_name(device),
        "cpu_count": os.cpu_count(),
        "threads": None if torch is None else int(torch.get_num_threads()),
    }


def machine_line(known: Mapping[str, Any]) -> str:
    """Return an :func:`environment` in one line to paste with a table: commit, versions, processor and threads."""
    versions = known["packages"]
    commit = f" ({known['git_commit'][:9]}{'-dirty' * bool(known['git_dirty'])})" if known["git_commit"] else ""
    packages = ", ".join(f"{name} {versions[name]}" for name in ("torch", "transformers") if name in versions)
    threads = counted(known["threads"] or 0, "thread")
    return f"specexp {versions.get('specexp', '')}{commit}, {packages}; {known['device_name']}, {threads}"


def complete_provenance(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``given`` with all provenance fields of an artifact. Missing ones are looked up; unknown ones are None.

    A metric may be a bare number instead of ``{"value": ..., "low": ..., "high": ...}``.
    """
    fields: dict[str, Any] = dict.fromkeys(Provenance.model_fields) | {"metrics": {}} | dict(given)
    if not fields["git_commit"]:
        commit = _git("rev-parse", "HEAD")
        fields["git_commit"] = f"{commit}-dirty" if commit is not None and _git(*_DIRTY) else commit
    fields["noise_version"] = NOISE_VERSION
    fields["packages"] = fields["packages"] or {"python": platform.python_version(), **package_versions()}
    fields["metrics"] = {  # a bare number is a metric without an interval
        name: dict(metric) if isinstance(metric, Mapping) else {"value": metric}
        for name, metric in fields["metrics"].items()
    }
    # Round-trip through JSON so that all keys are text, as in the file: a profile's integer keys sort differently.
    return dict(json.loads(json.dumps(all_masked(fields))))


@cache
def package_versions() -> dict[str, str]:
    """Return the installed versions of :data:`PACKAGES`."""
    versions = {}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            versions[package] = version(package)
    return versions


def high_load() -> float | None:
    """Return the one-minute load average if it exceeds half the usable cores (too high for timing), else None."""
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    return load if load > usable_cores().number / 2 else None


def device_name(device: str) -> str:
    """Return the model name of the GPU, or of the CPU with its instructions for vectors.

    Many virtual machines share a name, and with other instructions products are rounded differently.
    """
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")  # on Linux, platform.processor() is empty or only the architecture
    if cpuinfo.is_file():
        lines = (line.partition(":") for line in cpuinfo.read_text("utf-8", errors="replace").splitlines())
        known = {key.strip(): value.strip() for key, _, value in lines}
        flags = set((known.get("flags") or known.get("Features") or "").split())
        name = known.get("model name") or platform.processor() or platform.machine()
        return ", ".join([name, *(shown for flag, shown in INSTRUCTIONS.items() if flag in flags)])
    return platform.processor() or platform.machine()


def _git(*arguments: str) -> str | None:
    """Return what git prints about specexp's own checkout, or None outside a checkout."""
    root = Path(__file__).parents[2]
    if not (root / ".git").exists():  # an installed package; a repository around it belongs to another project
        return None
    command = ["git", "-C", str(root), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
