"""A study in a database that many workers share: calls that outlast its loss."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, TypeVar

from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from sqlalchemy import URL, create_engine, make_url, text
from sqlalchemy.exc import DBAPIError, OperationalError, PendingRollbackError, TimeoutError
from sqlalchemy.pool import NullPool

from specexp.core.messages import first_line
from specexp.sweep.lean import LeanStorage

if TYPE_CHECKING:
    from collections.abc import Mapping

    from optuna import Study

CONNECTIONS = 2
"""Of a worker, at most: one that searches, and one of its heartbeat or its lock."""

LOST_SECONDS = 300.0
"""For how long a worker that lost its database tries to reach it; it measures on meanwhile until it has to tell."""

LONGEST_PAUSE = 5.0
"""Between two attempts, in seconds."""

SECONDS_OF_A_LOCK = 60
"""How long a worker waits while another one writes to an SQLite file."""

Got = TypeVar("Got")

_REACHING = {
    "connect_timeout": 10,
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
    "tcp_user_timeout": 60_000,
    "client_encoding": "utf8",
}
"""libpq's settings: a server that is gone is noticed within a minute, and texts are texts in any database."""


class Database(LeanStorage):
    """A study's storage in a database, every call of which is repeated until the database is back.

    What a call had done before it was cut off may be done already when it is repeated; of all calls only ending a trial
    then says so, and it counts as done. A trial that was created twice stays without a worker, and nobody waits for it.

    Args:
        url: SQLAlchemy's.
        arguments: Of Optuna's ``RDBStorage``: heartbeat, grace period, callback.

    Raises:
        Exception: As the driver, where it cannot be opened within :data:`LOST_SECONDS`: whether anybody answers there
            was asked before.
    """

    def __init__(self, url: str, **arguments: Any) -> None:
        self._lost = threading.local()  # since when, of each thread
        kind = make_url(url).get_backend_name()
        settings: dict[
            str, Any
        ] = {}  # connections are not tried before their use: a call that fails is repeated
        if kind == "sqlite":
            settings = {"connect_args": {"timeout": SECONDS_OF_A_LOCK}}
        elif kind == "postgresql":
            pool = {"pool_size": CONNECTIONS, "max_overflow": 0, "pool_timeout": LOST_SECONDS}
            settings = {"connect_args": _REACHING, **pool}
        opening = partial(super().__init__, url, engine_kwargs=settings, **arguments)
        opening() if kind == "sqlite" else outlasting(opening)


def _patient(name: str) -> Callable[..., Any]:
    call: Callable[..., Any] = getattr(LeanStorage, name)

    @wraps(call)
    def patiently(self: Database, *args: Any, **kwargs: Any) -> Any:
        pause = 0.1
        while True:
            try:
                found = call(self, *args, **kwargs)
            except UpdateFinishedTrialError:
                if name == "set_trial_state_values" and getattr(self._lost, "since", None) is not None:
                    self._lost.since = None
                    return True
                raise
            except Exception as error:
                now = time.monotonic()
                since = getattr(self._lost, "since", None) or now
                if self.engine.dialect.name == "sqlite" or not is_lost(error) or now - since > LOST_SECONDS:
                    self._lost.since = None
                    raise
                self._lost.since = since
                time.sleep(pause * random.uniform(0.5, 1.0))
                pause = min(2 * pause, LONGEST_PAUSE)
            else:
                self._lost.since = None
                return found

    return patiently


_CALLS = {
    *BaseStorage.__abstractmethods__,
    *("_create_new_trial", "_get_trials", "_set_trial_param", "_get_best_trial_id"),
    *("record_heartbeat", "_get_stale_trial_ids", "get_trial_id_from_study_id_trial_number"),
}
for _name in _CALLS:
    setattr(Database, _name, _patient(_name))


def outlasting(call: Callable[[], Got]) -> Got:
    """What a call gives, which is repeated until the database is back.

    Raises:
        Exception: As the call, once the database was away for :data:`LOST_SECONDS`, or of anything else.
    """
    until, pause = time.monotonic() + LOST_SECONDS, 0.1
    while True:
        try:
            return call()
        except Exception as error:
            if not is_lost(error) or time.monotonic() > until:
                raise
        time.sleep(pause)
        pause = min(2 * pause, LONGEST_PAUSE)


def is_lost(error: BaseException | None) -> bool:
    """Whether a call failed because the database cannot be reached right now, and may succeed later."""
    while error is not None:
        lost = isinstance(error, OperationalError | TimeoutError | PendingRollbackError)
        if lost or (isinstance(error, DBAPIError) and error.connection_invalidated):
            return True
        error = error.__cause__
    return False


def database_of(study: Study) -> Database | None:
    """The database of a study; None where it is a journal."""
    storage = study._storage
    backend = getattr(storage, "_backend", storage)  # Optuna keeps a cache before it
    return backend if isinstance(backend, Database) else None


def why_unreachable(url: URL) -> str | None:
    """Why a PostgreSQL server does not let a worker in, as a clause with what to do; None where it does.

    Args:
        url: The server's, with password or without.
    """
    engine = create_engine(url, poolclass=NullPool, connect_args=_REACHING)
    try:
        with engine.connect() as connection:
            row = connection.execute(
                text("select current_setting('max_connections'), count(*) from pg_stat_activity")
            ).one()
    except DBAPIError as error:
        said = first_line(error.orig or error)
        why = next((clause for words, clause in _REFUSALS.items() if words in said), None)
        return f"{said.rpartition('FATAL:')[2].strip() or said}{'' if why is None else f': {why}'}"
    most, used = int(row[0]), int(row[1])
    if used - 1 + CONNECTIONS > most:
        return (
            f"its {most} connections are taken, and a worker takes up to {CONNECTIONS}: raise max_connections there, "
            "or start fewer workers"
        )
    return None


_REFUSALS: Mapping[str, str] = {
    "password": "set PGPASSWORD, or give --storage the password in the URL",
    "does not exist": "create it there, or name another one",
    "too many clients": f"a worker takes up to {CONNECTIONS} connections: raise max_connections there, or start fewer "
    "workers",
    "connection slots": f"a worker takes up to {CONNECTIONS} connections: raise max_connections there, or start fewer "
    "workers",
}
"""By what PostgreSQL says, what to do."""
