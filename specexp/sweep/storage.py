"""The storage of a study: a journal in the study's folder, or a database that several workers share."""

from __future__ import annotations

import errno
import json
import os
import random
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import optuna
from optuna.exceptions import DuplicatedStudyError, ExperimentalWarning, StorageInternalError
from optuna.storages import BaseStorage, JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend, JournalFileOpenLock
from sqlalchemy import NullPool, create_engine, make_url
from sqlalchemy.exc import (
    ArgumentError,
    DBAPIError,
    NoSuchModuleError,
    OperationalError,
    PendingRollbackError,
    SQLAlchemyError,
)
from typing_extensions import override

from specexp.base.messages import first_line
from specexp.base.start import HIDDEN, masked
from specexp.config.layers import ConfigError
from specexp.report.publish import OF_A_STUDY
from specexp.sweep.study_config import StudyError
from specexp.sweep.trial_queue import requeue

HEARTBEAT_SECONDS = 60
LOST_SECONDS = 300.0
"""The number of seconds for which a call is retried while the database is unreachable."""
GRACE_SECONDS = 330
"""Seconds without a heartbeat after which a trial counts as dead. This is longer than :data:`LOST_SECONDS`, so that a
worker that reconnects in time can continue its trial."""
LONGEST_PAUSE = 5.0
"""The longest pause between two retries, in seconds."""
LOCK_SECONDS = 60
"""Seconds that a worker waits while another one writes to an SQLite file."""
MADE_OF = "made_of"
"""Name of the attribute that marks the studies of specexp, and holds what must not change when one continues."""
MARK_SECONDS = 5.0
"""Seconds that a worker waits until another one has marked a study."""
ATTEMPTS = 6
"""The maximum number of attempts to create tables that other workers may be creating at the same time."""

DATABASES = ("sqlite", "postgresql")
EXAMPLES = "sqlite:///study.db or postgresql://user@host/name"
_LIBPQ = {
    # Notice a lost server within a minute.
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    # Text is Unicode even if the database uses another encoding.
    "client_encoding": "utf8",
}

Made = TypeVar("Made")


class JournalFile(JournalFileBackend):
    """Optuna's journal file, written by one process at a time and in whole lines only. The file's folder must exist.

    Optuna's file lock waits thirty seconds for a dead process, so the study's folder is locked instead. An incomplete
    last line, left by a process that died, is removed, because Optuna cannot read it. Its entry was never acknowledged.
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
                file.truncate(before)  # write either all entries or none
                raise


def check_journal(path: Path) -> str:
    """Return a warning about damage from which the study can recover, or an empty string.

    Raises:
        StudyError: A line before the end is not a journal entry, so its trial is lost.
    """
    if not path.exists() or path.stat().st_size == 0:
        other = next((name for name in OF_A_STUDY if name != path.name and (path.parent / name).exists()), None)
        lost = "empty" if path.exists() else "gone"
        return f"{path} is {lost}, although {other} exists: the study starts over." if other else ""
    *lines, rest = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            json.loads(line)["op_code"]
        except (ValueError, TypeError, KeyError) as error:
            raise StudyError(
                f"{path}, line {number}, must be a JSON entry of a journal, got {line[:40]!r}: restore a copy of the "
                "file, or remove it to start the study over"
            ) from error
    return f"{path} ended within a line, because a process was killed: that line is dropped." if rest else ""


def check_storage(given: str, error: ConfigError) -> None:
    """Raise ConfigError if a database cannot be used because of its driver, file or server. Nothing is created.

    ``error`` is the beginning of the message, with the file and key of the setting.
    """
    what = f"{error} is {masked(given)!r}"
    try:
        url = make_url(given)
    except (ArgumentError, ValueError):  # ValueError: a port that is not a number
        url = make_url("unknown://")
    kind = url.drivername.partition("+")[0]
    if kind not in DATABASES:
        raise ConfigError(f"{error} must be the URL of a database, such as {EXAMPLES}, got {masked(given)!r}")
    if url.password == HIDDEN:
        raise ConfigError(f"{what}, in which the password is masked: give --storage the URL with the real password")
    try:
        url.get_dialect().import_dbapi()
    except NoSuchModuleError as why:
        raise ConfigError(f"{what}, and SQLAlchemy has no driver {url.drivername!r}") from why
    except ImportError as why:
        package = "psycopg2-binary" if why.name == "psycopg2" else why.name
        hint = f"its driver {why.name} is not installed: pip install {package}"
        raise ConfigError(f"{what}, and {hint}") from why
    if kind == "sqlite":
        if fault := _fault_of_file(Path(url.database or ":memory:")):
            raise ConfigError(f"{what}, {fault}")
    else:
        try:
            create_engine(url, poolclass=NullPool, connect_args=_LIBPQ).connect().close()
        except DBAPIError as why:
            refusal = first_line(why.orig or why)
            refusal = masked(refusal.rpartition("FATAL:")[2].strip() or refusal)
            raise ConfigError(f"{what}, and the database cannot be used: {refusal}") from why


def _fault_of_file(path: Path) -> str:
    if str(path) == ":memory:":
        return "which is forgotten when the process ends: name a file, such as sqlite:///study.db"
    if not os.access(path if path.exists() else path.parent, os.W_OK):  # also if there is no such folder
        return f"and {path} cannot be written: name a file in a folder that exists and can be written"
    if path.exists() and (path.is_dir() or path.read_bytes()[:15] not in (b"", b"SQLite format 3")):
        return f"and {path} is not an SQLite database: name another file, or a new one"
    return ""


def open_storage(given: str | None, folder: Path) -> BaseStorage:
    """Open the database at the URL ``given``, or the journal in ``folder`` if it is None; raises StudyError on failure.

    A database requeues each trial that failed because its heartbeat stopped.
    """
    if given is None:
        return JournalStorage(JournalFile(folder / "journal.log"))

    def connect() -> BaseStorage:
        return RDBStorage(
            given,
            engine_kwargs=engine_arguments(given),
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=requeue,
        )

    with warnings.catch_warnings(action="ignore", category=ExperimentalWarning):
        try:
            return retry_creation(connect)
        except Exception as error:  # each database driver has its own exceptions
            why = masked(first_line(error))
            raise StudyError(f"storage {masked(given)!r} cannot be opened: {why}") from error


def own_study(storage: BaseStorage, name: str, made_of: Mapping[str, Any], **how: Any) -> optuna.Study:
    """Create a study and mark it as made by specexp, or load the one of this name that has the mark.

    Nothing is written into another program's study.

    Args:
        made_of: The mark of a new study.
        how: Arguments of ``optuna.create_study``.

    Raises StudyError if the storage has a study of this name that specexp did not make.
    """
    try:
        study = retry_creation(lambda: optuna.create_study(storage=storage, study_name=name, **how))
    except DuplicatedStudyError:
        study = optuna.load_study(study_name=name, storage=storage, sampler=how["sampler"], pruner=how.get("pruner"))
        # Another worker may be about to mark its new study. One that died before it could do so, left an empty study.
        until = time.monotonic() + MARK_SECONDS
        exclusive = isinstance(storage, JournalStorage)
        while MADE_OF not in study.user_attrs:
            used = study.user_attrs or study.get_trials(deepcopy=False)
            if used or (not exclusive and time.monotonic() > until):
                raise StudyError(
                    f"the storage has a study {name!r} that specexp did not make: give this study another name "
                    "(--name NEW), or use another storage"
                ) from None
            if exclusive:
                break
            time.sleep(0.1)
    if MADE_OF not in study.user_attrs:
        study.set_user_attr(MADE_OF, dict(made_of))
    return study


def retry_creation(make: Callable[[], Made]) -> Made:
    """Call a function that creates tables or a study, and retry it if another worker creates them at the same time."""
    for attempt in range(1, ATTEMPTS):
        try:
            return make()
        except (DBAPIError, StorageInternalError):
            time.sleep(random.uniform(0.02, 0.1) * attempt)
    return make()


def engine_arguments(url: str) -> dict[str, Any]:
    """Return arguments for SQLAlchemy's ``create_engine`` that make it wait for an unreachable server.

    Connections are tested before use, and connecting is retried for up to :data:`LOST_SECONDS`.
    """
    made = make_url(url)
    if made.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": LOCK_SECONDS}}
    driver, dialect = made.get_dialect().import_dbapi(), made.get_dialect()()
    positional, named = dialect.create_connect_args(made)

    def connect() -> Any:
        return retry_lost(lambda: driver.connect(*positional, **{**named, **_LIBPQ}), driver.OperationalError)

    return {"creator": connect, "pool_pre_ping": True}


def retry_lost(call: Callable[[], Made], lost: type[Exception] | None = None) -> Made:
    """Call a function, and retry it for up to :data:`LOST_SECONDS` while the database is unreachable.

    Args:
        lost: The driver's exception for a lost connection; None for SQLAlchemy's exceptions.
    """
    until, pause = time.monotonic() + LOST_SECONDS, 0.1
    while True:
        try:
            return call()
        except Exception as error:
            if not (is_lost(error) if lost is None else isinstance(error, lost)) or time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def is_lost(error: BaseException) -> bool:
    """Return whether an error, or one of its causes, means that the connection to the database server was lost."""
    return any(
        (isinstance(one, OperationalError | PendingRollbackError) or getattr(one, "connection_invalidated", False))
        and not isinstance(getattr(one, "orig", None), sqlite3.Error)
        for one in causes_of(error)
    )


def storage_error(error: Exception) -> BaseException:
    """Return the storage's error among the causes of an error, or else the error itself.

    After a storage error, Optuna fails an assertion.
    """
    storage = (OSError, StorageInternalError, SQLAlchemyError)
    return next((one for one in causes_of(error) if isinstance(one, storage)), error)


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and the errors that caused it, latest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
