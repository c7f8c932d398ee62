"""A supervisor process, which kills a command and its process group when the supervisor's parent process exits.

``python supervisor.py GRACE COMMAND ...`` starts the command in its own process group, and ends the group when the
supervisor's standard input closes. The parent holds the other end of that pipe, which closes even if it is killed.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from typing import Any

_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_IGNORED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)  # the parent process decides when the command ends


def start(command: Sequence[str], grace: float = 5.0, **options: Any) -> subprocess.Popen[bytes]:
    """Start a command under a supervisor and return the supervisor's process. Its exit code is the command's, or 127
    if the command cannot be started.

    Args:
        grace: seconds between SIGTERM and SIGKILL when the command is ended.
        options: keyword arguments for :class:`subprocess.Popen`, except ``stdin``.
    """
    words = [sys.executable, "-I", "-S", __file__, str(grace), *command]
    return subprocess.Popen(words, stdin=subprocess.PIPE, start_new_session=True, **options)


def end(*processes: subprocess.Popen[bytes]) -> None:
    """End all supervised commands at the same time, along with all processes in their groups."""
    for process in processes:
        if process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.close()
    for process in processes:
        process.wait()


def _begin() -> None:
    for number in _IGNORED:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):  # not on Linux
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)  # if the supervisor itself is killed


def _supervise(grace: float, command: list[str]) -> int:
    """Run the command until it ends or the parent process is gone, and return the exit code."""
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # SLURM sends it to all processes, and submitit handles it
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_begin)
    except OSError as error:
        print(f"{command[0]} cannot be started ({error.strerror or error})", file=sys.stderr)
        return 127
    while child.poll() is None:
        if select.select([0], [], [], 0.1)[0] and not os.read(0, 1):
            break
    deadline = time.monotonic() + grace
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        while number == signal.SIGTERM and _group_lives(child) and time.monotonic() < deadline:
            time.sleep(0.05)
    return child.wait()


def _group_lives(child: subprocess.Popen[bytes]) -> bool:
    child.poll()  # reaps the child: a zombie would still be a member of the group
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    code = _supervise(float(sys.argv[1]), sys.argv[2:])
    if code < 0:  # exit with the signal that ended the command
        with contextlib.suppress(OSError):
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    sys.exit(code)
