"""The trials of a study as rows."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from optuna import Study
from optuna.trial import FrozenTrial

from specexp.artifacts.atomic_write import write_whole


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


def trial_row(trial: FrozenTrial, objectives: Sequence[str]) -> dict[str, Any]:
    """One flat mapping of a trial: name, state, values, tree, measured means, parameters, reason."""
    attributes: Mapping[str, Any] = trial.user_attrs.get("attributes", {})
    values = trial.values or [None] * len(objectives)
    return {
        "trial": trial.number,
        "name": name_of_trial(trial),
        "state": state_of(trial),
        **({"clock": attributes["clock"]} if "clock" in attributes else {}),
        **dict(zip((column_of(trial, name) for name in objectives), values, strict=False)),
        "prompts": trial.user_attrs.get("pruned_at", len(trial.intermediate_values) or None),
        "nodes": attributes.get("nodes"),
        "depth": attributes.get("depth"),
        **trial.user_attrs.get("metrics", {}),
        **trial.params,
        "duplicate_of": trial.user_attrs.get("duplicate_of"),
        "reason": trial.user_attrs.get("reason") or trial.user_attrs.get("infeasible"),
    }


def write_trials(study: Study, objectives: Sequence[str], path: Path) -> None:
    """Write ``trials.csv``: one row a trial, a column for everything any trial has."""
    rows = [trial_row(trial, objectives) for trial in study.get_trials(deepcopy=False)]
    columns = dict.fromkeys(key for row in rows for key in row)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(columns))
    writer.writeheader()
    writer.writerows(rows)
    write_whole(path, text.getvalue())


def is_modelled(trial: FrozenTrial) -> bool:
    """Whether its seconds are a latency profile's."""
    return "clock" in trial.user_attrs.get("attributes", {})


def column_of(trial: FrozenTrial, objective: str) -> str:
    """What a trial's value is called; of a speedup it is the logarithm, and modelled where the seconds are."""
    if objective != "speedup":
        return objective
    return "modelled_log_speedup" if is_modelled(trial) else "log_speedup"


def speedups_of(row: Mapping[str, Any]) -> dict[str, float]:
    """Of a row that holds their logarithms."""
    return {
        name: math.exp(row[f"{before}log_speedup"])
        for before, name in (("", "speedup"), ("modelled_", "modelled_speedup"))
        if row.get(f"{before}log_speedup") is not None
    }
