"""A study in a database: Optuna's RDB storage, which outlasts the loss of its server, and locks among its workers."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar
from zlib import crc32

from optuna.storages import BaseStorage, RDBStorage
from sqlalchemy import URL, NullPool, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError

from specexp.core.messages import first_line

LOST_SECONDS = 300.0
"""Time for which a call is repeated while the database cannot be reached."""

LONGEST_PAUSE = 5.0
"""Seconds between two attempts, at most."""

LOCK_SECONDS = 60
"""Time for which a worker waits while another one writes to an SQLite file."""

Got = TypeVar("Got")

_LIBPQ = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "client_encoding": "utf8",
}
"""A lost server is noticed within a minute, and text is Unicode in any database."""


class Database(RDBStorage):
    """Optuna's RDB storage, which waits for a server that is away.

    Every connection is tested before it is used, and made again for :data:`LOST_SECONDS`. A public call that was cut
    off is repeated. It may have taken effect: ending a trial twice raises ``UpdateFinishedTrialError``.

    Args:
        url: SQLAlchemy's URL.
        arguments: Arguments of Optuna's ``RDBStorage``.
    """

    def __init__(self, url: str, **arguments: Any) -> None:
        super().__init__(url, engine_kwargs=engine_arguments(url), **arguments)


def _outlasting(name: str) -> Callable[..., Any]:
    call: Callable[..., Any] = getattr(RDBStorage, name)

    @wraps(call)
    def repeated(self: Database, *args: Any, **kwargs: Any) -> Any:
        return outlasting(lambda: call(self, *args, **kwargs))

    return repeated


for _name in {*BaseStorage.__abstractmethods__, "record_heartbeat"}:
    setattr(Database, _name, _outlasting(_name))


def engine_arguments(url: str) -> dict[str, Any]:
    """Arguments of SQLAlchemy's ``create_engine`` for connections that wait for the server."""
    made = make_url(url)
    if made.get_backend_name() == "sqlite":
        return {"connect_args": {"timeout": LOCK_SECONDS}}
    driver, dialect = made.get_dialect().import_dbapi(), made.get_dialect()()
    positional, named = dialect.create_connect_args(made)
    named = {**named, **_reaching(made)}

    def connect() -> Any:
        return outlasting(lambda: driver.connect(*positional, **named), driver.OperationalError)

    return {"creator": connect, "pool_pre_ping": True}


def _reaching(url: URL) -> dict[str, Any]:
    return _LIBPQ if url.get_backend_name() == "postgresql" else {}


def outlasting(call: Callable[[], Got], lost: type[Exception] | None = None) -> Got:
    """Repeat a call until the database is back, for :data:`LOST_SECONDS`.

    Args:
        call: The call.
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


def is_lost(error: BaseException | None) -> bool:
    """Whether an error, or what caused it, is the loss of a database server."""
    while error is not None:
        lost = isinstance(error, OperationalError | PendingRollbackError)
        lost = lost or getattr(error, "connection_invalidated", False)
        if lost and not isinstance(getattr(error, "orig", None), sqlite3.Error):
            return True
        error = error.__cause__ or error.__context__
    return False


@contextmanager
def locked(storage: str | None, name: str, *, wait: bool) -> Iterator[Callable[[], bool] | None]:
    """Hold PostgreSQL's advisory lock of a name, which ends with the connection, however the worker ends.

    Other storages have no lock.

    Args:
        storage: URL of the database; None for a journal.
        name: What is locked.
        wait: Whether to wait for another holder.

    Yields:
        A function that returns whether the lock is still held, and takes it again if the server was restarted and no
        other worker has it. None if another worker holds it.

    Raises:
        SQLAlchemyError: The database is away for :data:`LOST_SECONDS`.
    """
    if storage is None or make_url(storage).get_backend_name() != "postgresql":
        yield lambda: True
        return
    engine = create_engine(storage, poolclass=NullPool, **engine_arguments(storage))
    key = {"key": crc32(name.encode())}
    with engine.connect().execution_options(isolation_level="AUTOCOMMIT") as connection:

        def take(function: str = "pg_try_advisory_lock") -> bool:
            def ask() -> bool:
                connection.rollback()  # a connection that was lost is made anew
                return connection.execute(text(f"select {function}(:key)"), key).scalar() is not False

            return outlasting(ask)

        yield take if take("pg_advisory_lock" if wait else "pg_try_advisory_lock") else None


def why_unreachable(url: URL) -> str | None:
    """Why a PostgreSQL server refuses a connection, as a clause with what to do; None if it does not."""
    try:
        create_engine(url, poolclass=NullPool, connect_args=_reaching(url)).connect().close()
    except DBAPIError as error:
        said = first_line(error.orig or error)
        advice = next((f": {clause}" for words, clause in _ADVICE.items() if words in said), "")
        return f"{said.rpartition('FATAL:')[2].strip() or said}{advice}"
    return None


_CONNECTIONS = "a worker takes up to three connections: raise max_connections there, or start fewer workers"
_ADVICE: Mapping[str, str] = {
    "password": "set PGPASSWORD, or give --storage the password in the URL",
    "does not exist": "create it there, or name another one",
    "too many clients": _CONNECTIONS,
    "connection slots": _CONNECTIONS,
}
"""What to do, by words of PostgreSQL's refusal."""
