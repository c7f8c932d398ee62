"""What a run leaves beside its results, so that it can be repeated from there alone."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from specexp.config.config import Config
from specexp.config.errors import ConfigError, first_line

_PACKAGES = (
    *("specexp", "torch", "transformers", "tokenizers", "numpy", "lightning", "optuna"),
    *("wandb", "datasets", "jsonargparse", "pydantic"),
)


def save_resolved(config: Config, folder: str | Path, command: list[str] | None = None) -> None:
    """Write ``config.yaml`` (defaults filled in; the run can be repeated from it) and ``environment.json``.

    Raises:
        ConfigError: the folder cannot be written.
    """
    target = Path(folder)
    text = yaml.safe_dump(config.to_dict(), sort_keys=False, allow_unicode=True)
    record = json.dumps(environment(str(config.get("pair.device")), command), indent=2) + "\n"
    try:
        target.mkdir(parents=True, exist_ok=True)
        for name, content in (("config.yaml", text), ("environment.json", record)):
            beside = target / f".{name}.part"
            beside.write_text(content, encoding="utf-8")
            beside.replace(target / name)
    except OSError as error:
        raise ConfigError(
            f"{config.source_of(('output',))}: output: {target} cannot be written ({first_line(error)})"
        ) from error


def environment(device: str = "cpu", command: list[str] | None = None) -> dict[str, Any]:
    """Command, git commit, versions, device and time."""
    commit = _git("rev-parse", "HEAD")
    return {
        "command": list(sys.orig_argv if command is None else command),
        "time": datetime.now(UTC).isoformat(timespec="seconds"),
        "git_commit": commit,
        "git_dirty": None if commit is None else bool(_git("status", "--porcelain", "--untracked-files=no")),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: found for name in _PACKAGES if (found := _version(name)) is not None},
        "device": device,
        "device_name": _device_name(device),
        "cpu_count": os.cpu_count(),
        "threads": _threads(),
    }


def _git(*arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", *arguments],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=10,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _device_name(device: str) -> str:
    if device.startswith("cuda"):
        import torch

        if torch.cuda.is_available():
            return torch.cuda.get_device_name(device)
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.is_file():
        for line in cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def _threads() -> int | None:
    """Torch's, where torch is loaded; None otherwise."""
    torch = sys.modules.get("torch")
    return None if torch is None else int(torch.get_num_threads())
