"""A journal file that survives ``kill -9`` and a full disk."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from typing_extensions import override

from specexp.sweep.study_config import StudyError


class JournalFile(JournalFileBackend):
    """Optuna's journal file with whole lines only, for one process at a time; it is created in a folder that exists.

    Optuna's lock waits thirty seconds for a dead process, so it is never taken here: the study's folder is locked. A
    last line that was half written at the moment of death was never acknowledged. It is cut off, because Optuna could
    not read the file otherwise.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(str(path), JournalFileOpenLock(str(path)))
        self.path = path
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)

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
                file.truncate(before)  # entries are written all or none
                raise


def check_journal(path: Path) -> str:
    """Return a sentence about a damage of a journal with which a study can go on; empty if there is none.

    Raises:
        StudyError: A line in the middle is not an entry, so that its trial is unknown.
    """
    if not path.exists() or path.stat().st_size == 0:
        names = ("trials.csv", "reference.json", "records")
        other = next((name for name in names if (path.parent / name).exists()), None)
        lost = "empty" if path.exists() else "gone"
        return f"{path} is {lost}, though {other} is there: the study starts over." if other else ""
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
