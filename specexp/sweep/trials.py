"""Candidates and trials of a study: measurements, confirmation results, table rows and console lines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from specexp.artifacts.atomic_write import atomic_write
from specexp.base.messages import counted
from specexp.bench.statistics import Speedup, mean_interval
from specexp.tracking.names import MODELLED

FINISHED = (TrialState.COMPLETE, TrialState.PRUNED)

ShouldStop = Callable[[int, float], bool]
"""Called with a prompt's index and its log speedup over plain decoding. Returns whether the trial stops here."""


@dataclass(frozen=True)
class Candidate:
    """A configuration that is ready to be measured."""

    digest: str  # equal for configurations that decode alike, such as two specifications of the same tree
    # JSON values for tables: ``resolved`` (the candidate's parts) and ``nodes``; for a fixed shape also ``depth``,
    # ``rank_paths`` and ``candidates`` (how its ranked candidates are chosen)
    attributes: Mapping[str, Any]
    arm: Any = None


@dataclass(frozen=True)
class Measurement:
    """The figures of a measured candidate."""

    log_speedups: Mapping[int, float]  # log of the speedup over plain decoding, keyed by prompt index
    metrics: Mapping[str, float] = field(default_factory=dict)  # figures over all prompts together


@dataclass(frozen=True)
class Predicted:
    """The replay's figures for a candidate, or for plain decoding."""

    tokens_per_step: float
    tokens_per_second: float  # all tokens / all modelled seconds
    searched: bool  # whether the prompts are the search's, because the confirmation's were not recorded
    over_plain: Speedup | None = None  # over replayed plain decoding; None for plain decoding itself


@dataclass(frozen=True)
class Confirmed:
    """The figures of one candidate on the confirmation's prompts."""

    name: str  # name of the known configuration, or ``trial 7``
    trial: int
    # names of the parts chosen for it, such as ``fitted``; unless the tree is fixed, also the numbers, such as
    # ``threshold=0.03``
    chosen: tuple[str, ...]
    attributes: dict[str, Any]
    tokens_per_step: float
    tokens_per_second: float  # all tokens / all decode seconds
    over_plain: Speedup  # over plain decoding in the same loop
    over_eager: Speedup | None  # over Hugging Face's plain ``generate``, if that was run
    choice: str | None = None  # its value for the key named by ``confirm.of_each``
    predicted: Predicted | None = None  # None unless a replay was confirmed live

    @property
    def predicted_error(self) -> float | None:
        """Relative error of the predicted speedup: predicted / confirmed - 1; None if either is missing."""
        predicted = None if self.predicted is None else self.predicted.over_plain
        if predicted is None or predicted.refused is not None or self.over_plain.refused is not None:
            return None
        return predicted.ratio / self.over_plain.ratio - 1

    @property
    def is_chain(self) -> bool:
        """True if no node has a sibling, as in ordinary speculative decoding."""
        paths = self.attributes.get("rank_paths")
        return paths is not None and all(rank == 0 for path in paths for rank in path)

    @property
    def label(self) -> str:
        """The candidate's name, followed by the parts that were chosen for it."""
        return f"{self.name} ({', '.join(self.chosen)})" if self.chosen else self.name


def distinct_finished(study: optuna.Study) -> list[FrozenTrial]:
    """Return the finished trials, except those that repeat another trial's configuration."""
    distinct = {
        trial.user_attrs.get("digest", trial.number): trial
        for trial in study.get_trials(deepcopy=False, states=FINISHED)
        if "duplicate_of" not in trial.user_attrs
    }
    return list(distinct.values())


def confirmable(study: optuna.Study) -> list[FrozenTrial]:
    """Return the distinct trials that were measured on every prompt and meet the constraints, in trial order."""
    return [
        trial
        for trial in distinct_finished(study)
        if trial.state is TrialState.COMPLETE and not {"pruned_at", "infeasible"} & trial.user_attrs.keys()
    ]


def state_of(trial: FrozenTrial) -> str:
    """Return ``complete``, ``pruned``, ``duplicate``, ``infeasible``, ``failed``, ``running`` or ``waiting``."""
    marks = {"duplicate_of": "duplicate", "infeasible": "infeasible", "pruned_at": "pruned"}
    marked = [state for attribute, state in marks.items() if attribute in trial.user_attrs]
    return marked[0] if marked else {"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower())


def name_of_trial(trial: FrozenTrial) -> str:
    """Return the name of a trial's known configuration, or a name such as ``trial 7``."""
    return str(trial.user_attrs.get("known", f"trial {trial.number}"))


def reason_of(trial: FrozenTrial) -> str | None:
    """Return why a trial failed or is infeasible; None for any other trial."""
    if trial.state is TrialState.FAIL:
        return str(trial.user_attrs.get("reason", "the process that ran it ended"))
    return trial.user_attrs.get("infeasible")


def trial_row(trial: FrozenTrial, objectives: Sequence[str]) -> dict[str, Any]:
    """Return a trial as a table row. A speedup has a second column with its logarithm, which the study stores."""
    attributes: Mapping[str, Any] = trial.user_attrs.get("attributes", {})
    clock = {"clock": attributes["clock"]} if is_modelled(trial) else {}
    modelled = MODELLED if clock else ""
    row = {"trial": trial.number, "name": name_of_trial(trial), "state": state_of(trial), **clock}
    speedups = {}
    for name, value in zip(objectives, trial.values or [None] * len(objectives), strict=False):
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


def write_trials(study: optuna.Study, objectives: Sequence[str], path: Path) -> None:
    """Write ``trials.csv`` with one row per trial and one column per key."""
    import pandas as pd  # takes half a second

    rows = []
    for trial in study.get_trials(deepcopy=False):
        low, high = interval_of(trial) or (None, None)
        rows.append({**trial_row(trial, objectives), "speedup_low": low, "speedup_high": high})
    # As objects, because pandas would convert integers in a column with gaps to floats.
    atomic_write(path, pd.DataFrame(rows, dtype=object).to_csv(index=False, lineterminator="\r\n"))


def is_modelled(trial: FrozenTrial) -> bool:
    """Return whether a latency profile models a trial's seconds."""
    return "clock" in trial.user_attrs.get("attributes", {})


def interval_of(trial: FrozenTrial) -> tuple[float, float] | None:
    """Return the 95 % interval of a trial's speedup; None if fewer than two prompts were reported."""
    logs = np.array(list(trial.intermediate_values.values()))
    if logs.size < 2:
        return None
    low, high = mean_interval(logs)
    return math.exp(low), math.exp(high)


def _value_text(trial: FrozenTrial, objective: str, value: float) -> str:
    if objective != "speedup":
        return f"{value:.2f} {objective.replace('_', ' ')}"
    return f"{math.exp(value):.2f}x plain{' modelled' if is_modelled(trial) else ''}"


def trial_line(trial: FrozenTrial, objectives: Sequence[str]) -> str:
    """Return the console line for a trial that has ended and was not a duplicate."""
    nodes = trial.user_attrs.get("attributes", {}).get("nodes")
    what = name_of_trial(trial) + ("" if nodes is None else f", {counted(nodes, 'node')}")
    state = state_of(trial)
    if state in ("failed", "infeasible"):
        return f"{what}: {state}, {reason_of(trial)}"
    values = zip(objectives, trial.values, strict=True)
    shown = ", ".join(_value_text(trial, name, value) for name, value in values)
    pruned = f", pruned after {counted(trial.user_attrs['pruned_at'], 'prompt')}" if state == "pruned" else ""
    return f"{what}: {shown}{pruned}"


def best_line(study: optuna.Study, objective: str) -> str:
    """Return the line above a search's progress bar: the best trial by the first objective, with its interval."""
    sign = 1 if study.directions[0] is StudyDirection.MAXIMIZE else -1
    best = max(confirmable(study), key=lambda trial: sign * trial.values[0], default=None)
    if best is None:
        return "best so far: none yet"
    found = f"{name_of_trial(best)}, {_value_text(best, objective, best.values[0])}"
    interval = interval_of(best) if objective == "speedup" else None
    ends = "" if interval is None else f" [{interval[0]:.2f}, {interval[1]:.2f}]"
    return f"best so far: {found}{ends}"
