"""What the machine says of processes."""

from __future__ import annotations

from pathlib import Path


def is_alive(process: int) -> bool:
    """Whether a process runs; one that ended and was not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def parent(process: int) -> int:
    """Who started a process."""
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
