"""Files that are there whole or not at all."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex


def atomic_write(path: Path, content: str | bytes) -> None:
    """Write a file beside its place, and then put it there; a full disk leaves what was there before.

    Of several processes that write the same file at once, on any machine, the last one's content stays.

    Args:
        path: the file; its folder exists.
        content: text, written as UTF-8, or bytes.

    Raises:
        OSError: it cannot be written; its ``filename`` is ``path``.
    """
    beside = path.with_name(f".{path.name}.{token_hex(4)}.part")
    try:
        beside.write_bytes(content.encode() if isinstance(content, str) else content)
        beside.replace(path)
    except OSError as error:
        beside.unlink(missing_ok=True)
        raise OSError(error.errno, error.strerror, str(path)) from error
