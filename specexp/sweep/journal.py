"""A journal file that survives kill -9 and a full disk.

Optuna's own file lock waits thirty seconds for a dead process, and a line half written at the moment of death
makes the rest of the file unreadable. Here the folder is locked for one process, and a half-written last
line is cut off: it was never acknowledged.
"""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

from optuna.storages.journal import BaseJournalBackend, JournalFileBackend, JournalFileOpenLock
from typing_extensions import override

from specexp.sweep.study_config import StudyError


class JournalFile(BaseJournalBackend):
    """Optuna's journal file with whole lines only.

    Args:
        path: The file; it is created, its folder must exist.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.path.touch()
        data = self.path.read_bytes()
        os.truncate(self.path, data.rfind(b"\n") + 1)
        # Its lock is never taken: only reading is left to Optuna.
        self._reader = JournalFileBackend(str(path), JournalFileOpenLock(str(path)))

    @override
    def read_logs(self, log_number_from: int) -> Generator[dict[str, Any], None, None]:
        return self._reader.read_logs(log_number_from)

    @override
    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        text = "".join(json.dumps(log, separators=(",", ":")) + "\n" for log in logs).encode()
        with self.path.open("ab", buffering=0) as file:
            before = os.fstat(file.fileno()).st_size
            try:
                if file.write(text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
                os.fsync(file.fileno())
            except OSError:
                file.truncate(before)
                raise


def check_journal(path: Path) -> str:
    """Return a sentence about a damage of a journal with which a study can go on; empty if there is none.

    Raises:
        StudyError: A line in the middle is not an entry, so that its trial is unknown.
    """
    others = [name for name in ("trials.csv", "reference.json", "records") if (path.parent / name).exists()]
    if not path.exists() or path.stat().st_size == 0:
        lost = "empty" if path.exists() else "gone"
        return f"{path} is {lost}, though {others[0]} is there: the study starts over." if others else ""
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            entry = json.loads(line)
        except ValueError:
            entry = None
        if not isinstance(entry, dict):
            raise StudyError(
                f"{path}, line {number}, is no entry of a journal ({line[:40]!r}): put back a copy of the file, or "
                "remove it and start the study over"
            )
    cut = f"{path} ended within a line, as a process that was killed leaves it: that line is dropped."
    return cut if rest else ""
