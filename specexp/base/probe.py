"""Test passes of native libraries in a child process, because a library that dies would take this process with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256

from specexp.base.kernels import cache_folder, processor

_CHILD = "SPECEXP_PROBE"  # set in a child process, which must not start another one
_SECONDS = 300
# a process that is interrupted or out of memory ends by other signals
_FAULTS = {-getattr(signal, name, 0): name for name in ("SIGSEGV", "SIGILL", "SIGBUS", "SIGFPE", "SIGABRT")}


@cache
def death_of(library: str, version: str, code: str) -> str:
    """Return how a native library died in a test pass, as in ``llama.cpp died (SIGSEGV) in a test pass``; empty if it
    did not.

    The pass runs once per library version and processor. Its result is kept in the folder of the compiled kernels.

    Args:
        version: any text that changes with the library's code.
        code: Python code that runs a small model in the library.
    """
    if _CHILD in os.environ:
        return ""
    described = "\0".join((library, version, code, sys.version, processor()))
    file = cache_folder("kernels") / f"test-pass-{sha256(described.encode()).hexdigest()[:16]}"
    with suppress(OSError, UnicodeDecodeError):
        return file.read_text(encoding="utf-8")
    child = {**os.environ, _CHILD: "1", "OMP_NUM_THREADS": "2"}
    # the current folder comes first in the child's path, as it may in this process
    command = [sys.executable, "-c", f"import sys; sys.path[:0] = {sys.path!r}; {code}"]
    try:
        ended = subprocess.run(command, env=child, capture_output=True, timeout=_SECONDS, check=False).returncode
    except (OSError, subprocess.TimeoutExpired):
        return ""  # nothing is known
    how = f"{library} died ({_FAULTS[ended]}) in a test pass" if ended in _FAULTS else ""
    if how or ended == 0:  # a Python error is reported by the pass in this process
        with suppress(OSError):
            file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            file.write_text(how, encoding="utf-8")
    return how
