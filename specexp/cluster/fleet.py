"""Workers that were started somewhere: what each is doing, and an end for all."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from pathlib import Path

MAX_RESTARTS = 3
"""How often a worker that died is started again."""

_ERROR = "error: "
"""Begins the one sentence by which a command ends."""

PASSED_ON = ("PG", "HF_", "WANDB_", "SPECEXP_", "OMP_", "MKL_", "TOKENIZERS_", "PYTHON", "TORCH", "NCCL_")
"""Beginnings of the names of environment variables that workers get; a password of the database is in PGPASSWORD."""


@dataclass(frozen=True)
class Work:
    """What one worker runs.

    Attributes:
        name: Tells it from the others, also when the same command is given again.
        command: Program and arguments; no password stands among them.
    """

    name: str
    command: tuple[str, ...]


@dataclass(frozen=True)
class Status:
    """How a worker is.

    Attributes:
        name: The work's.
        state: ``waiting``, ``running``, ``ended`` or ``failed``.
        where: Host and process, as far as it is known.
        said: The last line of one that failed.
    """

    name: str
    state: str
    where: str = ""
    said: str = ""


class Fleet(ABC):
    """Workers on a cluster; those that die are started again up to :data:`MAX_RESTARTS` times."""

    @abstractmethod
    def statuses(self) -> list[Status]:
        """How each worker is."""

    @abstractmethod
    def stop(self) -> None:
        """End all that run, those that do not end by themselves by force."""

    @abstractmethod
    def close(self) -> None:
        """Let go of what runs on, or has ended."""


def environment_of_workers() -> dict[str, str]:
    """What workers get of this process's environment."""
    return {name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)}


def last_line(log: Path) -> str:
    """The sentence by which a worker ended, or its last line; empty where there is no log."""
    try:
        lines = [
            line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()
        ]
    except OSError:
        return ""
    told = [line.removeprefix(_ERROR) for line in lines if line.startswith(_ERROR)]
    return (told or lines or [""])[-1]
