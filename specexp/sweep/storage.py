"""Where a study's trials are kept: a journal in its folder, or a database that several workers share."""

from __future__ import annotations

import os
import random
import time
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specexp.config.errors import ConfigError
from specexp.core.messages import first_line
from specexp.core.start import HIDDEN, masked
from specexp.sweep.error import StudyError

if TYPE_CHECKING:
    from optuna import Study
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial
    from sqlalchemy import URL

HEARTBEAT_SECONDS = 60
GRACE_SECONDS = 330
"""Longer than a worker looks for a database it lost: whoever finds it again goes on with its trial."""

ATTEMPTS = 6
"""Attempts at making a database's tables while other workers make the same ones."""

PACKAGES = {"MySQLdb": "mysqlclient", "psycopg2": "psycopg2-binary"}
"""Packages of drivers whose modules have other names."""
PORTS = {"postgresql": 5432, "mysql": 3306, "mariadb": 3306, "redis": 6379, "rediss": 6379}
EXAMPLES = "sqlite:///study.db, postgresql://user@host/name, mysql://user@host/name or redis://host"

Made = TypeVar("Made")


def check_storage(given: str, error: ConfigError) -> None:
    """Refuse a URL that no study can be kept at, without creating anything.

    Args:
        given: The URL.
        error: Its text, file and key, begins the message.

    Raises:
        ConfigError: It is not a database's, its driver is not installed, its file cannot be one, or no server answers.
    """
    from sqlalchemy import make_url
    from sqlalchemy.exc import ArgumentError, NoSuchModuleError

    what = f"{error} is {masked(given)!r}"
    try:
        url = make_url(given)
    except (ArgumentError, ValueError) as why:  # of a port that is no number
        raise ConfigError(f"{what}; the URL of a database is expected, such as {EXAMPLES}") from why
    if url.password == HIDDEN:
        raise ConfigError(f"{what}, as a run records it: give --storage the URL with its password")
    kind = url.drivername.partition("+")[0]
    if kind != "sqlite" and kind not in PORTS:
        raise ConfigError(f"{what}; the URL of a database is expected, such as {EXAMPLES}")
    try:
        missing = _missing_driver(url)
    except NoSuchModuleError as why:
        raise ConfigError(f"{what}, and {url.drivername!r} is no driver that SQLAlchemy knows") from why
    if missing is not None:
        package = PACKAGES.get(missing, missing)
        raise ConfigError(f"{what}, and its driver {missing} is not installed: pip install {package}")
    if kind == "sqlite":
        _check_file(url.database or "", what)
    elif url.host and "host" not in url.query:  # else a Unix socket, or what the environment names
        _check_answers(url.host, url.port or PORTS[kind], what)
    if kind == "postgresql":
        from specexp.sweep.database import why_unreachable

        refusal = why_unreachable(url)
        if refusal is not None:
            raise ConfigError(f"{what}, and it cannot be used: {masked(refusal)}")


def open_storage(
    given: str | None, folder: Path, requeue: Callable[[Study, FrozenTrial], None]
) -> BaseStorage:
    """Open the storage of a study.

    Args:
        given: The URL of a database. None: the journal in ``folder``.
        folder: The study's folder.
        requeue: Called with each trial that failed because its heartbeat stopped.

    Raises:
        StudyError: It cannot be opened.
        OSError: The journal cannot be written.
    """
    import optuna

    from specexp.sweep.database import Database
    from specexp.sweep.journal import JournalFile

    if given is None:
        return optuna.storages.JournalStorage(JournalFile(folder / "journal.log"))

    def connect() -> BaseStorage:
        if given.startswith("redis"):
            return optuna.storages.JournalStorage(optuna.storages.journal.JournalRedisBackend(given))
        return Database(
            given,
            heartbeat_interval=HEARTBEAT_SECONDS,
            grace_period=GRACE_SECONDS,
            heartbeat_stale_trial_callback=requeue,
        )

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        try:
            return together(connect)
        except Exception as error:  # of any database's driver
            why = masked(first_line(error))
            raise StudyError(f"storage {masked(given)!r} cannot be opened: {why}") from error


def together(make: Callable[[], Made]) -> Made:
    """Make what other workers may make at the same moment: the second one tries again and finds it made.

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


def _missing_driver(url: URL) -> str | None:
    """The module that a URL's dialect needs and that is not installed."""
    if url.drivername.startswith("redis"):
        return None if find_spec("redis") else "redis"
    try:
        url.get_dialect().import_dbapi()
    except ImportError as error:
        return error.name or str(error)
    return None


def _check_file(database: str, what: str) -> None:
    if database in ("", ":memory:"):
        raise ConfigError(
            f"{what}, which is forgotten when the process ends: name a file, such as sqlite:///study.db"
        )
    path = Path(database)
    if not path.parent.is_dir():
        raise ConfigError(
            f"{what}, and the folder {path.parent} does not exist: make it, or name another one"
        )
    if path.exists():
        if not path.is_file():
            raise ConfigError(f"{what}, and {path} is no file: name one")
        with path.open("rb") as file:
            head = file.read(16)
        if head and not head.startswith(b"SQLite format 3"):
            raise ConfigError(f"{what}, and {path} is no SQLite database: name another file, or a new one")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{what}, and {path} cannot be written: name a file that can")


def _check_answers(host: str, port: int, what: str) -> None:
    import socket

    try:
        socket.create_connection((host, port), timeout=3).close()
    except OSError as error:
        why = error.strerror or first_line(error)
        raise ConfigError(
            f"{what}, and nobody answers at {host}:{port} ({why}): start the database there"
        ) from error
