"""Names shared by runs, tables and the dashboard."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SPEEDUP = "speedup"
NODES = "nodes"
DEPTH = "depth"
TOKENS_PER_STEP = "tokens_per_step"
TOKENS_PER_SECOND = "tokens_per_second"
STATE = "state"
MODELLED = "modelled_"
"""Prefix of figures based on seconds from a latency profile instead of measured seconds."""
PHASE_PREFIX = "seconds/"
"""Prefix of the seconds per phase of a step."""
PLAIN, EAGER = "plain", "hf-eager"
"""Names of the arms that decode without drafting: in our loop, and in Hugging Face's."""
FORMERLY_PLAIN = "engine"
"""The name of :data:`PLAIN` in older records."""
STUDY = "study"
"""W&B's job type for the run of a study as a whole."""
PARAMETERS = "params"
"""The key of a trial's searched values in its run's configuration."""

Scalar = str | int | float | bool | None


def parameter_key(key: str, searched: Iterable[str]) -> str:
    """Return the key under :data:`PARAMETERS` for a searched ``key``: the same dotted key as in YAML.

    A key cannot hold both a value and a mapping, so ``builder`` becomes ``builder.name`` if
    ``builder.init_args.nodes`` is searched too.
    """
    return f"{key}.name" if any(other.startswith(f"{key}.") for other in searched) else key


def nest_parameters(params: Mapping[str, Any]) -> dict[str, Any]:
    """Nest dotted keys as W&B shows them. A part (a mapping) is replaced by its ``name`` or class path."""
    nested: dict[str, Any] = {}
    for key, value in params.items():
        *above, last = parameter_key(key, params).split(".")
        place = nested
        for part in above:
            place = place.setdefault(part, {})
        is_part = isinstance(value, Mapping)
        place[last] = value.get("name", value.get("class_path")) if is_part else to_json(value)
    return nested


def to_json(value: Any) -> Any:
    """Convert a value to plain JSON: mappings, lists, strings, finite numbers, true, false and null."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if hasattr(value, "tolist"):  # numpy arrays and scalars, torch tensors
        return to_json(value.tolist())
    if isinstance(value, (str, int)) or value is None or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Iterable):
        return [to_json(item) for item in value]
    return str(value)


def table_columns(records: Sequence[Mapping[str, Any]]) -> tuple[list[str | int], list[list[Scalar]]]:
    """Return records as column names and rows. W&B requires one type per column.

    Keys that a record lacks become empty cells; mixed types become text, with lists as JSON.
    """
    columns = list(dict.fromkeys(key for record in records for key in record))
    by_column = [_one_type([to_json(record.get(column)) for record in records]) for column in columns]
    return [str(column) for column in columns], [list(row) for row in zip(*by_column, strict=True)]


def _one_type(values: list[Any]) -> list[Scalar]:
    types = {float if type(value) is int else type(value) for value in values if value is not None}
    if types <= {float} or types <= {bool}:
        return values
    return [value if value is None or isinstance(value, str) else json.dumps(value) for value in values]
