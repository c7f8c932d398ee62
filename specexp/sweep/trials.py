"""The trials of a study: which count, their states, all of them as rows, and a table of a search's progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.statistics import bootstrap_interval

if TYPE_CHECKING:
    from rich.table import Table

_RESAMPLES = 1000
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)


def distinct_finished(study: Study) -> list[FrozenTrial]:
    """Finished trials, those that only repeat another's configuration left out."""
    trials = study.get_trials(deepcopy=False, states=FINISHED)
    distinct = {
        trial.user_attrs.get("digest", trial.number): trial
        for trial in trials
        if "duplicate_of" not in trial.user_attrs
    }
    return list(distinct.values())


def confirmable(study: Study) -> list[FrozenTrial]:
    """Distinct trials measured on every prompt and within the constraints, in the order they were run."""
    return [
        trial
        for trial in distinct_finished(study)
        if trial.state is TrialState.COMPLETE and not {"pruned_at", "infeasible"} & trial.user_attrs.keys()
    ]


def state_of(trial: FrozenTrial) -> str:
    """``complete``, ``pruned``, ``duplicate``, ``infeasible``, ``failed``, ``running`` or ``waiting``."""
    for attribute, state in (
        ("duplicate_of", "duplicate"),
        ("infeasible", "infeasible"),
        ("pruned_at", "pruned"),
    ):
        if attribute in trial.user_attrs:
            return state
    return {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower())


def name_of_trial(trial: FrozenTrial) -> str:
    """Name of a known configuration, ``trial 7`` otherwise."""
    return str(trial.user_attrs.get("known", f"trial {trial.number}"))


def reason_of(trial: FrozenTrial) -> str | None:
    """Why a trial failed or is not feasible; None where it did not and is."""
    if trial.state is TrialState.FAIL:  # one that fails by itself has a reason
        return str(trial.user_attrs.get("reason", "the process that ran it ended"))
    return trial.user_attrs.get("infeasible")


def trial_row(trial: FrozenTrial, objectives: Sequence[str]) -> dict[str, Any]:
    """One flat mapping of a trial: name, state, values, tree, measured means, parameters, reason."""
    attributes: Mapping[str, Any] = trial.user_attrs.get("attributes", {})
    values = trial.values or [None] * len(objectives)
    named = dict(zip((column_of(trial, name) for name in objectives), values, strict=False))
    return {
        "trial": trial.number,
        "name": name_of_trial(trial),
        "state": state_of(trial),
        **({"clock": attributes["clock"]} if "clock" in attributes else {}),
        **named,
        **_speedups_of(named),
        "prompts": trial.user_attrs.get("prompts"),
        "nodes": attributes.get("nodes"),
        "depth": attributes.get("depth"),
        **trial.user_attrs.get("metrics", {}),
        **trial.params,
        "duplicate_of": trial.user_attrs.get("duplicate_of"),
        "reason": reason_of(trial),
    }


def write_trials(study: Study, objectives: Sequence[str], path: Path) -> None:
    """Write ``trials.csv``: one row a trial, a column for everything any trial has."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        low, high = interval_of(trial) or (None, None)
        rows.append({**trial_row(trial, objectives), "speedup_low": low, "speedup_high": high})
    # As objects, or whole numbers of a column with gaps would become floats.
    atomic_write(path, pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\r\n"))


def is_modelled(trial: FrozenTrial) -> bool:
    """Whether its seconds are a latency profile's."""
    return "clock" in trial.user_attrs.get("attributes", {})


def column_of(trial: FrozenTrial, objective: str) -> str:
    """What a trial's value is called; of a speedup it is the logarithm, and modelled where the seconds are."""
    if objective != "speedup":
        return objective
    return "modelled_log_speedup" if is_modelled(trial) else "log_speedup"


def interval_of(trial: FrozenTrial) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a trial's speedup; None if fewer than two prompts were reported."""
    logs = np.array(list(trial.intermediate_values.values()))
    if logs.size < 2:
        return None
    low, high = bootstrap_interval(logs, resamples=_RESAMPLES)
    return math.exp(low), math.exp(high)


def _speedups_of(values: Mapping[str, float | None]) -> dict[str, float]:
    """The speedups of values that are their logarithms."""
    return {
        name.replace("log_", ""): math.exp(value)
        for name, value in values.items()
        if value is not None and name.endswith("log_speedup")
    }


_WORDS = {
    "pruned": "pruned",
    "failed": "failed",
    "infeasible": "over a limit",
    "duplicate": "measured before",
}


class ProgressTable:
    """A table that is drawn anew after every trial.

    Args:
        objectives: Names of the study's objectives, the first of which ranks.
        wanted: Distinct finished trials that end the search.
        clock: Seconds, from any zero.
    """

    def __init__(
        self, objectives: Sequence[str], wanted: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._objective, self._wanted, self._clock = objectives[0], wanted, clock
        self._began, self._before = clock(), -1
        self.lines: dict[str, str] = {}

    def update(self, study: Study) -> None:
        """Look at the study again; the first look counts the trials that were finished before this search began."""
        finished = len(distinct_finished(study))
        if self._before < 0:
            self._began, self._before = self._clock(), finished
        states = Counter(map(state_of, study.get_trials(deepcopy=False)))
        asides = [f"{states[state]} {word}" for state, word in _WORDS.items() if states[state]]
        sign = 1 if study.directions[0] is StudyDirection.MAXIMIZE else -1
        best = max(confirmable(study), key=lambda trial: sign * trial.values[0], default=None)
        self.lines = {
            "best so far": "none yet" if best is None else f"{name_of_trial(best)}, {self._figure(best)}",
            "trials": ", ".join([f"{min(finished, self._wanted)} of {self._wanted} done", *asides]),
            "time left": self._left(finished),
        }

    def _figure(self, trial: FrozenTrial) -> str:
        if self._objective != "speedup":
            return f"{trial.values[0]:.2f} {self._objective.replace('_', ' ')}"
        interval = interval_of(trial)
        shown = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}] here"
        return f"{math.exp(trial.values[0]):.2f}x AR{' modelled' if is_modelled(trial) else ''}{shown}"

    def _left(self, finished: int) -> str:
        here, more = finished - self._before, self._wanted - finished
        if more <= 0:
            return "none"
        if here <= 0:
            return "not known yet"
        seconds = (self._clock() - self._began) / here * more
        return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"

    def __rich__(self) -> Table:
        from rich.table import Table

        table = Table.grid(padding=(0, 2))
        for name, line in self.lines.items():
            table.add_row(name, line)
        return table
