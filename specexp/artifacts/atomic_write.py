"""Atomic writes and exclusive locks for files that several processes share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from secrets import token_hex


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file (text as UTF-8) under a temporary name, then rename it. If this fails, the old file is kept.

    If several processes write the same file at once, even on different machines, the last one wins. Raises OSError if
    the file cannot be written; the error's ``filename`` is ``path``.
    """
    temporary = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)
        temporary.replace(path)
    except OSError as error:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error


@contextmanager
def held(path: Path) -> Iterator[bool]:
    """Lock a file for a ``with`` block, creating it if it is missing. If the process dies, the lock is released.

    Yields False if another process holds the lock or the folder does not exist. Platforms without ``fcntl`` yield True.
    """
    try:
        import fcntl
    except ImportError:
        yield True
        return
    with ExitStack() as opened:
        try:
            fcntl.flock(opened.enter_context(path.open("a")), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (FileNotFoundError, BlockingIOError):
            yield False
        else:
            yield True
