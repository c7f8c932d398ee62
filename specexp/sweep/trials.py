"""Candidates and trials of a study: measured and confirmed ones, all as rows, and a table of a search's progress."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import numpy as np
import pandas as pd
from optuna import Study
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.table import Table

from specexp.artifacts.atomic_write import atomic_write
from specexp.bench.statistics import Speedup, bootstrap_interval
from specexp.tracking.names import MODELLED

_RESAMPLES = 1000
FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)

Report = Callable[[int, float], bool]
"""Called with prompt index and log(AR seconds per token / candidate's seconds per token); true means: stop here."""


@dataclass(frozen=True)
class Candidate:
    """A configuration ready to be measured."""

    digest: str  # the same for two configurations that would run the same, such as two ways to one tree
    # figures and settings for tables: ``nodes``, of a fixed shape also ``depth``, ``rank_paths`` and
    # ``candidates`` (what its ranks count), and ``resolved``, its parts, as JSON values
    attributes: Mapping[str, Any]
    arm: Any = None


@dataclass(frozen=True)
class Measurement:
    """A measured candidate."""

    log_speedups: Mapping[int, float]  # speedup over plain decoding by prompt index, as a logarithm
    # figures of all prompts together by name, such as ``tokens_per_step``
    metrics: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Predicted:
    """Replay's figures of a candidate, or of plain decoding."""

    tokens_per_step: float
    tokens_per_second: float  # all tokens / all seconds of the latency profile
    # whether the figures are of the search's prompts, because the confirmation's were not recorded
    searched: bool
    # paired speedup over replayed plain decoding; None for plain decoding itself
    over_ar: Speedup | None = None


@dataclass(frozen=True)
class Confirmed:
    """One candidate on the prompts of the confirmation."""

    name: str  # name of the known configuration, or ``trial 7``
    trial: int  # number of the trial it comes from
    # names of the parts that were chosen for it, e.g. ``fitted``; where the tree is not fixed also the
    # numbers, e.g. ``threshold=0.03`` or ``n=3``
    chosen: tuple[str, ...]
    attributes: dict[str, Any]
    tokens_per_step: float
    tokens_per_second: float  # all tokens / all decode seconds
    over_ar: Speedup  # paired speedup over plain decoding in the same loop
    # paired speedup over Hugging Face's plain ``generate``; None where it was not run
    over_eager: Speedup | None
    choice: str | None = None  # its value of the key whose choices are compared; None where none are
    # replay's prediction; None if nothing was replayed, or the confirmation is replayed too
    predicted: Predicted | None = None

    @property
    def predicted_error(self) -> float | None:
        """Predicted / confirmed speedup over plain decoding, less 1; None if either is missing."""
        predicted = None if self.predicted is None else self.predicted.over_ar
        if predicted is None or predicted.refused is not None or self.over_ar.refused is not None:
            return None
        return predicted.ratio / self.over_ar.ratio - 1

    @property
    def is_chain(self) -> bool:
        """Whether no node has a sibling: ordinary speculative decoding."""
        paths = self.attributes.get("rank_paths")
        return paths is not None and all(rank == 0 for path in paths for rank in path)

    @property
    def label(self) -> str:
        """Name with the parts chosen for it, for a table."""
        return f"{self.name} ({', '.join(self.chosen)})" if self.chosen else self.name


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
    """Distinct trials measured on every prompt and within the constraints, in their order."""
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
    """Return the reason why a trial failed or is not feasible; None if neither is the case."""
    if trial.state is TrialState.FAIL:
        return str(trial.user_attrs.get("reason", "the process that ran it ended"))
    return trial.user_attrs.get("infeasible")


def trial_row(trial: FrozenTrial, objectives: Sequence[str]) -> dict[str, Any]:
    """A trial as one flat mapping, for tables; a speedup is stored as its logarithm, and stands beside it."""
    attributes: Mapping[str, Any] = trial.user_attrs.get("attributes", {})
    clock = {"clock": attributes["clock"]} if is_modelled(trial) else {}
    row = {"trial": trial.number, "name": name_of_trial(trial), "state": state_of(trial), **clock}
    speedups = {}
    for name, value in zip(objectives, trial.values or [None] * len(objectives), strict=False):
        modelled = MODELLED if clock else ""
        row[f"{modelled}log_speedup" if name == "speedup" else name] = value
        if name == "speedup" and value is not None:
            speedups[f"{modelled}speedup"] = math.exp(value)
    return {
        **row,
        **speedups,
        "prompts": trial.user_attrs.get("prompts"),
        "nodes": attributes.get("nodes"),
        "depth": attributes.get("depth"),
        **trial.user_attrs.get("metrics", {}),
        **trial.params,
        "duplicate_of": trial.user_attrs.get("duplicate_of"),
        "reason": reason_of(trial),
    }


def write_trials(study: Study, objectives: Sequence[str], path: Path) -> None:
    """Write ``trials.csv``: a row for each trial, a column for each key of any trial."""
    rows = []
    for trial in study.get_trials(deepcopy=False):
        low, high = interval_of(trial) or (None, None)
        rows.append({**trial_row(trial, objectives), "speedup_low": low, "speedup_high": high})
    # As objects, or whole numbers of a column with gaps would become floats.
    atomic_write(path, pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\r\n"))


def is_modelled(trial: FrozenTrial) -> bool:
    """Whether a trial's seconds are a latency profile's."""
    return "clock" in trial.user_attrs.get("attributes", {})


def interval_of(trial: FrozenTrial) -> tuple[float, float] | None:
    """Return the 95 % bootstrap interval of a trial's speedup; None if fewer than two prompts were reported."""
    logs = np.array(list(trial.intermediate_values.values()))
    if logs.size < 2:
        return None
    low, high = bootstrap_interval(logs, resamples=_RESAMPLES)
    return math.exp(low), math.exp(high)


def _shown_value(trial: FrozenTrial, objective: str, value: float) -> str:
    if objective != "speedup":
        return f"{value:.2f} {objective.replace('_', ' ')}"
    return f"{math.exp(value):.2f}x AR{' modelled' if is_modelled(trial) else ''}"


def trial_line(study: Study, trial: FrozenTrial, objectives: Sequence[str]) -> str:
    """A trial that has ended as one line of the console."""
    nodes = trial.user_attrs.get("attributes", {}).get("nodes")
    what = f"{name_of_trial(trial)}{'' if nodes is None else f', {nodes} nodes'}"
    state = state_of(trial)
    if state == "duplicate":
        original = study.get_trials(deepcopy=False)[trial.user_attrs["duplicate_of"]]
        return f"{what}: the same as {name_of_trial(original)}"
    if state in ("failed", "infeasible"):
        return f"{what}: {state}, {reason_of(trial)}"
    values = zip(objectives, trial.values, strict=True)
    shown = ", ".join(_shown_value(trial, name, value) for name, value in values)
    pruned = f", pruned after {trial.user_attrs['pruned_at']} prompts" if state == "pruned" else ""
    return f"{what}: {shown}{pruned}"


class ProgressTable:
    """The progress of a search, ranked by the first objective; drawn anew after every trial."""

    def __init__(
        self, objectives: Sequence[str], wanted: int, clock: Callable[[], float] = monotonic
    ) -> None:
        self._objective, self._wanted, self._clock = objectives[0], wanted, clock
        self._began, self._before = clock(), -1
        self.lines: dict[str, str] = {}

    def update(self, study: Study) -> None:
        """Read the study again; the first call counts the trials that were finished before this search began."""
        finished = len(distinct_finished(study))
        if self._before < 0:
            self._began, self._before = self._clock(), finished
        states = Counter(map(state_of, study.get_trials(deepcopy=False)))
        words = {
            "pruned": "pruned",
            "failed": "failed",
            "infeasible": "over a limit",
            "duplicate": "measured before",
        }
        others = [f"{states[state]} {word}" for state, word in words.items() if states[state]]
        sign = 1 if study.directions[0] is StudyDirection.MAXIMIZE else -1
        best = max(confirmable(study), key=lambda trial: sign * trial.values[0], default=None)
        found = "none yet"
        if best is not None:
            found = f"{name_of_trial(best)}, {_shown_value(best, self._objective, best.values[0])}"
            interval = interval_of(best) if self._objective == "speedup" else None
            found += "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}] here"
        here, more = finished - self._before, self._wanted - finished
        left = "none" if more <= 0 else "not known yet"
        if more > 0 and here > 0:
            seconds = (self._clock() - self._began) / here * more
            left = f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
        self.lines = {
            "best so far": found,
            "trials": ", ".join([f"{min(finished, self._wanted)} of {self._wanted} done", *others]),
            "time left": left,
        }

    def __rich__(self) -> Table:
        table = Table.grid(padding=(0, 2))
        for name, line in self.lines.items():
            table.add_row(name, line)
        return table
