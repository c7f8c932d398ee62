"""Optuna's storage in a database with less traffic, so that hundreds of workers can share one."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from operator import itemgetter
from typing import Any

from optuna.distributions import BaseDistribution, json_to_distribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import RDBStorage
from optuna.storages._rdb import models
from optuna.storages._rdb.storage import _create_scoped_session
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy import ColumnElement, bindparam, func, or_, select
from sqlalchemy.orm import Session
from typing_extensions import override

WRITE_SECONDS = 5.0
"""What a trial says of itself is written at most so often, and before it ends: whoever dies in between repeats it."""

AT_ONCE = frozenset({"worker", "digest", "reason"})
"""Attributes that are written at once: by them other workers know who measures what, and why a trial was left."""

BEST_SECONDS = 5.0
"""For how long the best trial counts as the best: a pruner asks for it after every prompt."""

MOST_OF_A_READ = 10_000
"""Trials that a statement asks for."""

UNREAD = "attributes"
"""The one large attribute of a trial, which nobody reads before the trial has ended."""


@dataclass
class _Unwritten:
    """What a trial has said of itself since it was written last, at a moment of the monotonic clock."""

    since: float
    values: dict[int, float] = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)


class LeanStorage(RDBStorage):
    """Optuna's storage in a database, with three promises less, which cost most of its traffic and which no sampler or
    pruner of Optuna's needs: what a trial says of itself is written by and by, and all before it ends; the best trial
    is the best of some seconds ago; and trials that have not ended come without reported values and without
    :data:`UNREAD`.

    Args:
        url: SQLAlchemy's.
        arguments: Of Optuna's ``RDBStorage``.
    """

    def __init__(self, url: str, **arguments: Any) -> None:
        self._unwritten: dict[int, _Unwritten] = {}  # by trial
        self._best: dict[int, tuple[float, int]] = {}  # since when which trial, by study
        super().__init__(url, **arguments)

    @override
    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        self._said(trial_id).values[step] = intermediate_value
        self._write(trial_id)

    @override
    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        self._said(trial_id).attributes[key] = value
        self._write(trial_id, now=key in AT_ONCE)

    @override
    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        self._write(trial_id, now=True)
        self._best.clear()
        done = super().set_trial_state_values(trial_id, state, values)
        if state.is_finished():
            self._unwritten.pop(trial_id, None)
        return done

    @override
    def get_trial(self, trial_id: int) -> FrozenTrial:
        with suppress(UpdateFinishedTrialError):
            self._write(trial_id, now=True)
        asked = select(*_COLUMNS).where(models.TrialModel.trial_id == trial_id)
        with _create_scoped_session(self.scoped_session) as session:
            rows = session.execute(asked).all()
            if not rows:
                raise KeyError(f"there is no trial {trial_id}")
            return _whole(session, rows, own=True)[0]

    def _said(self, trial_id: int) -> _Unwritten:
        return self._unwritten.setdefault(trial_id, _Unwritten(time.monotonic()))

    def _write(self, trial_id: int, *, now: bool = False) -> None:
        """Write what a trial has said, if it is time; all at once, so that it may be repeated.

        Raises:
            UpdateFinishedTrialError: It has ended.
        """
        said = self._unwritten.get(trial_id)
        due = now or (said is not None and time.monotonic() - said.since >= WRITE_SECONDS)
        if said is None or not due or not (said.values or said.attributes):
            return
        table = models.TrialIntermediateValueModel
        with _create_scoped_session(self.scoped_session) as session:
            trial: Any = models.TrialModel.find_or_raise_by_id(trial_id, session)
            if trial.state.is_finished():
                del self._unwritten[trial_id]  # by another worker, and whatever it says counts
            self.check_trial_is_updatable(trial_id, trial.state)
            for key, value in said.attributes.items():
                self._set_trial_attr_without_commit(
                    session, models.TrialUserAttributeModel, trial_id, key, value
                )
            known = select(table.step).where(table.trial_id == trial_id)
            there = set(session.scalars(known)) if said.values else set()
            for step in said.values.keys() - there:  # a connection may be cut after all was written
                value, kind = table.intermediate_value_to_stored_repr(said.values[step])
                row = {"intermediate_value": value, "intermediate_value_type": kind}
                session.add(table(trial_id=trial_id, step=step, **row))
        self._unwritten[trial_id] = _Unwritten(time.monotonic())

    @override
    def _get_best_trial_id(self, study_id: int, direction: StudyDirection) -> int:
        since, best = self._best.get(study_id, (-BEST_SECONDS, -1))
        now = time.monotonic()
        if now - since >= BEST_SECONDS:
            best = super()._get_best_trial_id(study_id, direction)
            self._best[study_id] = now, best
        return best

    @override
    def _get_trials(
        self,
        study_id: int,
        states: Container[TrialState] | None,
        included_trial_ids: set[int],
        trial_id_greater_than: int,
    ) -> list[FrozenTrial]:
        if states is not None:
            return super()._get_trials(study_id, states, included_trial_ids, trial_id_greater_than)
        trial = models.TrialModel
        asked = or_(_among(trial.trial_id, included_trial_ids), trial.trial_id > trial_id_greater_than)
        with _create_scoped_session(self.scoped_session) as session:
            rows = session.execute(select(*_COLUMNS).where(trial.study_id == study_id, asked)).all()
            return [
                one
                for place in range(0, len(rows), MOST_OF_A_READ)
                for one in _whole(session, rows[place : place + MOST_OF_A_READ])
            ]

    @override
    def _get_stale_trial_ids(self, study_id: int) -> list[int]:
        beat, trial, last = (
            models.TrialHeartbeatModel,
            models.TrialModel,
            timedelta(seconds=self.grace_period or 0),
        )
        asked = select(beat.trial_id, beat.heartbeat).join(trial, trial.trial_id == beat.trial_id)
        with _create_scoped_session(self.scoped_session) as session:
            now = session.execute(func.now()).scalar_one().replace(tzinfo=None)
            beats = session.execute(
                asked.where(trial.study_id == study_id, trial.state == TrialState.RUNNING)
            )
            return [trial_id for trial_id, moment in beats if now - moment > last]


_COLUMNS = (
    models.TrialModel.trial_id,
    models.TrialModel.number,
    models.TrialModel.state,
    models.TrialModel._datetime_start_utc,
    models.TrialModel._datetime_complete_utc,
)


def _whole(session: Session, rows: Sequence[Any], *, own: bool = False) -> list[FrozenTrial]:
    """Trials with what belongs to them, read in plain rows: as objects of SQLAlchemy's they take twenty times as long.

    Args:
        session: The database's.
        rows: :data:`_COLUMNS` of each.
        own: Whether they are this worker's, and read with all that they have said before they have ended.
    """
    ids = [row.trial_id for row in rows]
    ended = [row.trial_id for row in rows if own or row.state.is_finished()]

    def read(
        table: Any, among: Sequence[int], *columns: Any, where: ColumnElement[bool] | None = None
    ) -> Any:
        asked = select(table.trial_id, *columns).where(_among(table.trial_id, among))
        return session.execute(asked if where is None else asked.where(where)) if among else ()

    found: dict[int, dict[str, dict[Any, Any]]] = {trial_id: defaultdict(dict) for trial_id in ids}
    param = models.TrialParamModel
    columns: tuple[Any, ...] = (param.param_name, param.param_value, param.distribution_json, param.param_id)
    for trial_id, name, value, text, _ in sorted(read(param, ids, *columns), key=itemgetter(-1)):
        distribution = found[trial_id]["distributions"][name] = _distribution(text)
        found[trial_id]["params"][name] = distribution.to_external_repr(value)
    result = models.TrialValueModel
    for trial_id, place, value, kind in read(
        result, ended, result.objective, result.value, result.value_type
    ):
        found[trial_id]["values"][place] = result.stored_repr_to_value(value, kind)
    report = models.TrialIntermediateValueModel
    columns = (report.step, report.intermediate_value, report.intermediate_value_type)
    for trial_id, step, value, kind in read(report, ended, *columns):
        found[trial_id]["steps"][step] = report.stored_repr_to_intermediate_value(value, kind)
    for kind, table in (
        ("user", models.TrialUserAttributeModel),
        ("system", models.TrialSystemAttributeModel),
    ):
        needed = or_(table.key != UNREAD, _among(table.trial_id, ended))
        for trial_id, key, text in read(table, ids, table.key, table.value_json, where=needed):
            found[trial_id][kind][key] = json.loads(text)
    return [_frozen(row, found[row.trial_id]) for row in rows]


def _frozen(row: Any, parts: Mapping[str, dict[Any, Any]]) -> FrozenTrial:
    values = parts["values"]
    return FrozenTrial(
        number=row.number,
        trial_id=row.trial_id,
        state=row.state,
        value=None,
        values=[values[place] for place in sorted(values)] or None,
        datetime_start=_here(row._datetime_start_utc),
        datetime_complete=_here(row._datetime_complete_utc),
        params=parts["params"],
        distributions=parts["distributions"],
        user_attrs=parts["user"],
        system_attrs=parts["system"],
        intermediate_values=parts["steps"],
    )


def _here(moment: datetime | None) -> datetime | None:
    """A moment of UTC by this machine's clock, as Optuna has it."""
    return None if moment is None else moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


def _among(column: Any, ids: Iterable[int]) -> ColumnElement[bool]:
    """Whether it is one of these; as text, for drivers take long over hundreds of values."""
    among: ColumnElement[bool] = column.in_(bindparam(None, list(ids), expanding=True, literal_execute=True))
    return among


@lru_cache(maxsize=1000)
def _distribution(distribution_json: str) -> BaseDistribution:
    return json_to_distribution(distribution_json)
