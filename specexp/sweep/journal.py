"""A journal file that survives kill -9 and a full disk.

Optuna's own file lock waits thirty seconds for a dead process, and a line half written at the moment of death
makes the rest of the file unreadable. Here the folder is locked for one process, and a half-written last
line is cut off: it was never acknowledged.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from typing_extensions import override

from specexp.sweep.error import StudyError


class JournalFile(BaseJournalBackend):
    """Optuna's journal file with whole lines only.

    Args:
        path: The file; it is created, its folder must exist.

    Raises:
        OSError: It cannot be written.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        with self.path.open("ab"):
            pass
        self._reader = JournalFileBackend(
            str(path), JournalFileOpenLock(str(path))
        )  # its lock is never taken
        cut_torn_line(self.path)

    @override
    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        return self._reader.read_logs(log_number_from)

    @override
    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Append whole lines, or nothing: what does not fit on the disk is taken back before the error is
        raised.
        """
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                written = file.write(text)
                if written != len(text):
                    raise OSError(28, "No space left on device", str(self.path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise


def cut_torn_line(path: Path) -> None:
    """Cut a last line without line end, which a process left that died while writing it."""
    data = path.read_bytes()
    if data and not data.endswith(b"\n"):
        with path.open("r+b") as file:
            file.truncate(data.rfind(b"\n") + 1)


def repaired(path: Path) -> str:
    """What is wrong with a journal and does not keep a study from going on, in a sentence; empty if nothing is.

    Raises:
        StudyError: A line in the middle is no entry, so that nobody knows what stood there.
    """
    others = [name for name in ("trials.csv", "reference.json", "records") if (path.parent / name).exists()]
    if not path.exists() or path.stat().st_size == 0:
        lost = (
            f"{path} is {'empty' if path.exists() else 'gone'}, though {others[0]} is there" if others else ""
        )
        return lost and f"{lost}: the study starts over."
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines[:-1], start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise StudyError(
                f"{path}, line {number}, is no entry of a journal ({line[:40]!r}): put back a copy of the file, or "
                "remove it and start the study over"
            )
    return (
        f"{path} ended within a line, as a process that was killed leaves it: that line is dropped."
        if lines[-1]
        else ""
    )
