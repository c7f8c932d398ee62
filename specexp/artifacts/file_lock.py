"""A file that at most one process holds."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Take a file; a process that dies lets go of it.

    Args:
        path: The file, which is made where it is not there.

    Yields:
        Whether its folder is there and no other process holds it; on systems without such locks nobody does.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    with ExitStack() as opened:
        try:
            fcntl.flock(opened.enter_context(path.open("w")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            yield False
        else:
            yield True
