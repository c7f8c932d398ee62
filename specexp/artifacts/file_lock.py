"""A file that at most one process holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Take a file; a process that dies lets go of it.

    Args:
        path: The file, which is made where it is not there; its folder exists.

    Yields:
        Whether no other process holds it; true on systems that have no such locks.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    with path.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            yield False
            return
        yield True
