"""Learned state of drafter and controller: ``state.json`` and ``state.safetensors``.

The JSON holds :meth:`~specexp.core.contracts.Part.state_dict` by family, with ``{"tensor": NAME}`` in place of every
array; the other file holds the arrays under these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from specexp.artifacts.validation import ArtifactError

STATE = "state.json"
TENSORS = "state.safetensors"
STATE_FILES = (STATE, TENSORS)
_FAMILIES = ("drafter", "controller")
_TENSOR = "tensor"

State = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


def state_payloads(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the payloads of ``state_dict()`` by family; none if nothing was learned.

    Example:
        >>> state_payloads({"controller": {"length": 4}})
        {'state.json': {'controller': {'length': 4}}}
    """
    learned = {family: states[family] for family in _FAMILIES if states.get(family)}
    arrays: Arrays = {}
    content = {family: _apart(state, family, arrays) for family, state in learned.items()}
    return {} if not content else {STATE: content} | ({TENSORS: arrays} if arrays else {})


def state_in(payloads: Mapping[str, Any], where: str) -> dict[str, State]:
    """Return the states by family in payloads; empty if there are none.

    Raises:
        ArtifactError: a tensor is missing or unused, a number is not finite, or a family keeps no state; ``where``
            names folder and file.
    """
    if STATE not in payloads:
        if TENSORS in payloads:
            raise ArtifactError(f"{where} is missing, whose tensors {TENSORS} holds")
        return {}
    content, arrays = payloads[STATE], dict(payloads.get(TENSORS, {}))
    if not isinstance(content, dict) or not content or not all(map(_is_state, content.items())):
        raise ArtifactError(f"{where} is no object with the states of {' and '.join(_FAMILIES)}")
    for name, array in arrays.items():
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise ArtifactError(f"{where}: tensor {name!r} holds numbers that are not finite")
    states: dict[str, State] = _together(content, arrays, where)
    if arrays:
        raise ArtifactError(f"{where} names no tensor {min(arrays)!r}, which {TENSORS} holds")
    return states


def _is_state(entry: tuple[str, Any]) -> bool:
    family, state = entry
    return family in _FAMILIES and isinstance(state, dict) and bool(state)


def _apart(value: Any, name: str, arrays: Arrays) -> Any:
    """The value with its arrays moved into ``arrays``, each named by its way there, such as ``drafter.matrix``."""
    if isinstance(value, Mapping):
        return {key: _apart(inner, f"{name}.{key}", arrays) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_apart(inner, f"{name}.{number}", arrays) for number, inner in enumerate(value)]
    if getattr(value, "shape", None):  # a tensor or an array; one without dimensions is a number
        arrays[name] = np.asarray(value)
        return {_TENSOR: name}
    return value.item() if hasattr(value, "item") else value


def _together(value: Any, arrays: Arrays, where: str) -> Any:
    """The value with its arrays put back, each once."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            name = value[_TENSOR]
            if not isinstance(name, str) or name not in arrays:
                raise ArtifactError(f"{where} names the tensor {name!r}, which {TENSORS} does not hold")
            return arrays.pop(name)
        return {key: _together(inner, arrays, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_together(inner, arrays, where) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        raise ArtifactError(f"{where} holds a number that is not finite")
    return value
