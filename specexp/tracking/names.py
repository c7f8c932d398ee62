"""The names that runs, tables and the dashboard share."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath
from typing import Any

SPEEDUP = "speedup"
NODES = "nodes"
DEPTH = "depth"
TOKENS_PER_STEP = "tokens_per_step"
TOKENS_PER_SECOND = "tokens_per_second"
STATE = "state"
MODELLED = "modelled_"
"""What the name of a figure begins with where a latency profile, not a clock, gives its seconds."""
PHASE_PREFIX = "seconds/"
"""Seconds per phase of a step stand under ``seconds/<phase>``."""

PHASES = ("draft", "build", "target", "verify", "commit", "update")
"""The engine's phases (:data:`specexp.core.generation.PHASES`, whose import would load torch)."""

STUDY = "study"
"""W&B's job type of a study as a whole."""

PARAMETERS = "params"
"""Where a trial's searched values stand in the configuration of its run."""

Scalar = str | int | float | bool | None


def parameter_key(key: str, searched: Iterable[str]) -> str:
    """Where the searched ``key`` stands below :data:`PARAMETERS`: the same dotted key as in YAML.

    A key that is itself the start of another searched one (``builder`` beside ``builder.init_args.nodes``)
    stands at ``builder.name``, because one place cannot hold both a value and what is below it.

    Example:
        >>> parameter_key("builder", ["builder", "builder.init_args.nodes"])
        'builder.name'
    """
    return f"{key}.name" if any(other.startswith(f"{key}.") for other in searched) else key


def nest_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Turn dotted keys into the nested mapping that W&B shows under the same dotted keys.

    Args:
        params: Searched values by dotted key; a whole part (a mapping) counts as its ``name`` or class path.

    Example:
        >>> nest_parameters({"builder.init_args.nodes": 16})
        {'builder': {'init_args': {'nodes': 16}}}
    """
    nested: dict[str, Any] = {}
    for key, value in params.items():
        *above, last = parameter_key(key, params).split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        place[last] = (
            value.get("name", value.get("class_path")) if isinstance(value, Mapping) else plain(value)
        )
    return nested


def plain(value: Any) -> Any:
    """Reduce a value to what JSON has: mappings, lists, strings, finite numbers, true, false and null."""
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (str, bool)) or value is None:
        return value
    if isinstance(value, PurePath):
        return str(value)
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        return plain(value.tolist())
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, int):
        return value
    if isinstance(value, Iterable):
        return [plain(item) for item in value]
    return str(value)


def table_columns(records: Sequence[Mapping[str, Any]]) -> tuple[list[str | int], list[list[Scalar]]]:
    """Lay records out as a table whose columns hold one type each, which W&B insists on.

    Args:
        records: One mapping a row; keys a record lacks are empty cells.

    Returns:
        Column names in order of first appearance, and rows of scalars: numbers, else text (lists as JSON).
    """
    columns = list(dict.fromkeys(key for record in records for key in record))
    by_column = [_one_type([plain(record.get(column)) for record in records]) for column in columns]
    return [str(column) for column in columns], [list(row) for row in zip(*by_column, strict=True)]


def _one_type(values: list[Any]) -> list[Scalar]:
    given = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in given):
        return values
    if all(isinstance(value, (int, float)) and not isinstance(value, bool) for value in given):
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
