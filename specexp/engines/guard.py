"""Runs a command so that nothing of it outlives who started it, however that ends; a program of its own.

``python guard.py COMMAND ...`` starts the command in a process group of its own, and kills that group when its own
standard input ends: the pipe that the starter holds closes with it, also where it is killed. It imports nothing of
specexp, so that it starts at once.
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

GRACE_SECONDS = 5.0
_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG
_NOT_HEEDED = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)
"""Of the guard, for the starter decides when it ends."""


def _begin() -> None:
    """Of the command: it heeds the signals that the guard does not, and where the guard is killed, so is it."""
    for number in _NOT_HEEDED:
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_DEATH_SIGNAL, signal.SIGKILL)


def main(command: list[str]) -> int:
    """Run the command until it ends or nobody waits for it; its exit code, 127 where it cannot be started."""
    for number in _NOT_HEEDED:
        signal.signal(number, signal.SIG_IGN)
    try:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=_begin)
    except OSError as error:
        print(f"{command[0]} cannot be started ({error.strerror or error})", file=sys.stderr)
        return 127
    while child.poll() is None:
        if select.select([0], [], [], 0.1)[0] and not os.read(0, 1):
            break
    _end(child)
    return child.returncode


def _end(child: subprocess.Popen[bytes]) -> None:
    """End the whole group, first politely."""
    deadline = time.monotonic() + GRACE_SECONDS
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        while number == signal.SIGTERM and _lives(child) and time.monotonic() < deadline:
            time.sleep(0.05)
    child.wait()


def _lives(child: subprocess.Popen[bytes]) -> bool:
    child.poll()
    try:
        os.killpg(child.pid, 0)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
