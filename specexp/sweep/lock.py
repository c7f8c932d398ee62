"""Locks among the workers of one study, which end with their holder, and which a restart of the server takes away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING
from zlib import crc32

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import SQLAlchemyError

from specexp.sweep.database import database_of, outlasting

if TYPE_CHECKING:
    from optuna import Study


class Lock:
    """PostgreSQL's advisory lock of a name; it ends with the connection, however the worker ends.

    Args:
        engine: The database's.
        name: What is locked.
    """

    def __init__(self, engine: Engine, name: str) -> None:
        self._engine = engine
        self._key = {"key": crc32(name.encode())}
        self._connection: Connection | None = None

    def take(self, *, wait: bool) -> bool:
        """Take it; whether it is held now.

        Args:
            wait: Whether to wait for another holder.

        Raises:
            SQLAlchemyError: The database cannot be reached for :data:`~specexp.sweep.database.LOST_SECONDS`.
        """
        call = "pg_advisory_lock" if wait else "pg_try_advisory_lock"
        return outlasting(lambda: self._ask(f"select {call}(:key)") is not False)

    def still_held(self) -> bool:
        """Whether the server has it as ours; one that it forgot over a restart is taken again unless another has it.

        Raises:
            SQLAlchemyError: The database cannot be reached for :data:`~specexp.sweep.database.LOST_SECONDS`.
        """
        return self.take(wait=False)  # who holds it gets it once more

    def give_back(self) -> None:
        """Let others take it."""
        with suppress(SQLAlchemyError):  # who cannot be told has forgotten it
            if self._connection is not None:
                self._ask("select pg_advisory_unlock_all()")
        self._leave()

    def _ask(self, statement: str) -> object:
        if self._connection is None:
            self._connection = self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")
        try:
            return self._connection.execute(text(statement), self._key).scalar()
        except SQLAlchemyError:
            self._leave()
            raise

    def _leave(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(SQLAlchemyError):
                connection.close()


@contextmanager
def locked(study: Study, name: str, *, wait: bool) -> Iterator[Callable[[], bool] | None]:
    """Hold a lock among the workers of a study; one that is kept in a file has no such lock, and needs none.

    Args:
        study: The study.
        name: What is locked.
        wait: Whether to wait for another holder.

    Yields:
        What tells whether it is held still; None where another worker has it.

    Raises:
        SQLAlchemyError: The database cannot be reached for :data:`~specexp.sweep.database.LOST_SECONDS`.
    """
    database = database_of(study)
    if database is None or database.engine.dialect.name != "postgresql":
        yield lambda: True
        return
    lock = Lock(database.engine, f"{study.study_name}: {name}")
    try:
        yield lock.still_held if lock.take(wait=wait) else None
    finally:
        lock.give_back()
