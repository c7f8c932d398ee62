"""The storage of a study: a journal in its folder, or a database that several workers share."""

from __future__ import annotations

import os
import random
import sqlite3
import time
import warnings
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from specexp.config.layers import ConfigError
from specexp.core.messages import first_line
from specexp.core.start import HIDDEN, masked
from specexp.sweep.study_config import StudyError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

HEARTBEAT_SECONDS = 60
GRACE_SECONDS = 330
"""Longer than :data:`LOST_SECONDS`: a worker that reaches its database again goes on with its trial."""
LOST_SECONDS = 300.0
"""Time for which a call is repeated while the database cannot be reached."""
LONGEST_PAUSE = 5.0
"""Maximum seconds between two attempts."""
LOCK_SECONDS = 60
"""Time for which a worker waits while another one writes to an SQLite file."""
ATTEMPTS = 6
"""Attempts at making a database's tables while other workers make the same ones."""

PACKAGES = {"MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary"}
"""Packages of drivers whose modules have other names."""
SERVERS = ("postgresql", "mysql", "mariadb", "redis", "rediss")
EXAMPLES = "sqlite:///study.db, postgresql://user@host/name, mysql://user@host/name or redis://host"
_LIBPQ = {
    # A lost server is noticed within a minute.
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    # Text is Unicode whatever the database's own encoding is.
    "client_encoding": "utf8",
}

Made = TypeVar("Made")


def check_storage(given: str, error: ConfigError) -> None:
    """Raise if no study can be kept at a URL, without creating anything.

    Args:
        error: Its text, file and key, begins the message.

    Raises:
        ConfigError: The URL, its driver, its file or its server cannot be used.
    """
    from sqlalchemy import NullPool, create_engine, make_url
    from sqlalchemy.exc import ArgumentError, DBAPIError, NoSuchModuleError

    what = f"{error} is {masked(given)!r}"
    expected = ConfigError(f"{what}; the URL of a database is expected, such as {EXAMPLES}")
    try:
        url = make_url(given)
    except (ArgumentError, ValueError) as why:  # ValueError: a port that is not a number
        raise expected from why
    kind = url.drivername.partition("+")[0]
    redis = kind.startswith("redis")
    if kind not in ("sqlite", *SERVERS):
        raise expected
    if url.password == HIDDEN:
        raise ConfigError(f"{what}, as a run records it: give --storage the URL with its password")
    try:
        _ = import_module("redis") if redis else url.get_dialect().import_dbapi()
    except NoSuchModuleError as why:
        raise ConfigError(f"{what}, and SQLAlchemy has no driver {url.drivername!r}") from why
    except ImportError as why:
        package = PACKAGES.get(str(why.name), why.name)
        raise ConfigError(
            f"{what}, and its driver {why.name} is not installed: pip install {package}"
        ) from why
    if kind == "sqlite":
        _check_file(Path(url.database or ":memory:"), what)
    elif not redis:
        options = _LIBPQ if kind == "postgresql" else {}
        try:
            create_engine(url, poolclass=NullPool, connect_args=options).connect().close()
        except DBAPIError as why:
            refusal = first_line(why.orig or why)
            refusal = masked(refusal.rpartition("FATAL:")[2].strip() or refusal)
            raise ConfigError(f"{what}, and the database cannot be used: {refusal}") from why


def _check_file(path: Path, what: str) -> None:
    fault = ""
    if str(path) == ":memory:":
        fault = "which is forgotten when the process ends: name a file, such as sqlite:///study.db"
    elif not path.parent.is_dir():
        fault = f"and the folder {path.parent} does not exist: make it, or name another one"
    elif path.exists() and not path.is_file():
        fault = f"and {path} is no file: name one"
    elif not os.access(path if path.exists() else path.parent, os.W_OK):
        fault = f"and {path} cannot be written: name a file that can"
    elif path.exists():
        with path.open("rb") as file:
            if file.read(15) not in (b"", b"SQLite format 3"):
                fault = f"and {path} is no SQLite database: name another file, or a new one"
    if fault:
        raise ConfigError(f"{what}, {fault}")


def open_storage(
    given: str | None, folder: Path, requeue: Callable[[Study, FrozenTrial], None]
) -> BaseStorage:
    """Open the storage of a study: the URL of a database, or None for the journal in ``folder``.

    Args:
        requeue: Called with each trial that failed because its heartbeat stopped.

    Raises:
        StudyError: It cannot be opened.
    """
    from optuna.exceptions import ExperimentalWarning
    from optuna.storages import JournalStorage, RDBStorage
    from optuna.storages.journal import JournalRedisBackend

    from specexp.sweep.journal import JournalFile

    if given is None:
        return JournalStorage(JournalFile(folder / "journal.log"))

    def connect() -> BaseStorage:
        if given.startswith("redis"):
            return JournalStorage(JournalRedisBackend(given))
        return RDBStorage(
            given,
            engine_kwargs=engine_arguments(given),
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=requeue,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)
        try:
            return retry_creation(connect)
        except Exception as error:  # of any database's driver
            why = masked(first_line(error))
            raise StudyError(f"storage {masked(given)!r} cannot be opened: {why}") from error


def retry_creation(make: Callable[[], Made]) -> Made:
    """Call a function that creates tables or a study, again if another worker creates the same at the same moment.

    Raises:
        Exception: The error of the last attempt, or one that is not the database's.
    """
    from optuna.exceptions import StorageInternalError
    from sqlalchemy.exc import DBAPIError

    for attempt in range(1, ATTEMPTS):
        try:
            return make()
        except (DBAPIError, StorageInternalError):
            time.sleep(random.uniform(0.02, 0.1) * attempt)
    return make()


def engine_arguments(url: str) -> dict[str, Any]:
    """Arguments of SQLAlchemy's ``create_engine`` for connections that are tested before use, and made again once a
    lost server is back.
    """
    from sqlalchemy import make_url

    made = make_url(url)
    if made.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": LOCK_SECONDS}}
    driver, dialect = made.get_dialect().import_dbapi(), made.get_dialect()()
    positional, named = dialect.create_connect_args(made)
    named = {**named, **(_LIBPQ if made.get_backend_name() == "postgresql" else {})}

    def connect() -> Any:
        return retry_lost(lambda: driver.connect(*positional, **named), driver.OperationalError)

    return {"creator": connect, "pool_pre_ping": True}


def retry_lost(call: Callable[[], Made], lost: type[Exception] | None = None) -> Made:
    """Repeat a call for up to :data:`LOST_SECONDS` while the database cannot be reached.

    Args:
        lost: The driver's own error of a lost connection, for calls below SQLAlchemy.

    Raises:
        Exception: The call's error, if the database stays away or something else is wrong.
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
    """Whether an error, or one that caused it, is the loss of a database server."""
    from sqlalchemy.exc import OperationalError, PendingRollbackError

    return any(
        (
            isinstance(one, OperationalError | PendingRollbackError)
            or getattr(one, "connection_invalidated", False)
        )
        and not isinstance(getattr(one, "orig", None), sqlite3.Error)
        for one in causes_of(error)
    )


def causes_of(error: BaseException | None) -> Iterator[BaseException]:
    """Yield an error and those that led to it, the latest first."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__
