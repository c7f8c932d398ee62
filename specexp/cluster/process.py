"""A worker's own process: it ends with whoever started it, and is given time for that."""

from __future__ import annotations

import ctypes
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import IO

SECONDS = 20.0
"""That a worker has to end by itself."""


def start(
    command: Sequence[str],
    folder: str,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
) -> subprocess.Popen[bytes]:
    """Start a worker, which Linux asks to end when this process dies, however it dies.

    Args:
        command: Program and arguments.
        folder: Where it runs.
        environment: All of its own; this process's if None.
        log: Where its output goes; with this process's if None.
    """
    errors = None if log is None else subprocess.STDOUT
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=errors,
        preexec_fn=_of_its_parent,
    )


def end(process: subprocess.Popen[bytes]) -> None:
    """Ask a process to end, and end it where it does not."""
    process.terminate()
    try:
        process.wait(SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _of_its_parent() -> None:
    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
    signal.signal(
        signal.SIGUSR2, signal.SIG_IGN
    )  # SLURM tells all processes; the parent knows what is to be done
