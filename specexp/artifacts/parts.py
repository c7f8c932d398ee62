"""The form in which an artifact records a decoder's parts and their learned state.

``parts.json`` maps each family to ``class_path`` and ``init_args``. ``state.json`` maps each family to its
:meth:`~specexp.core.contracts.Part.state_dict`, with ``{"tensor": NAME}`` in place of each array.
``state.safetensors`` holds the arrays under these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Annotated, Any, Literal, NotRequired

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, with_config
from typing_extensions import TypedDict

from specexp.artifacts.validation import ArtifactError, validated

PARTS, STATE, TENSORS = "parts.json", "state.json", "state.safetensors"
STATE_FILES = (STATE, TENSORS)
_TENSOR = "tensor"

Spec = Mapping[str, Any]
"""``{"class_path": ..., "init_args": {...}}``: the specification of a part or another object."""
State = dict[str, Any]
Arrays = dict[str, NDArray[Any]]


@with_config(extra="forbid")
class PartSpec(TypedDict):
    """The schema of a :data:`Spec`."""

    class_path: str
    init_args: NotRequired[dict[str, Any]]


@with_config(extra="forbid")
class Recorded(TypedDict, total=False):
    """The schema of ``parts.json``."""

    drafter: PartSpec | None
    builder: PartSpec | None
    verifier: PartSpec | None
    controller: PartSpec | None


@with_config(extra="forbid")
class WithDrafter(Recorded, total=True):
    """The schema of a ``parts.json`` that must contain a drafter."""

    drafter: PartSpec  # type: ignore[misc]


_State = Annotated[dict[str, Any], Field(min_length=1)]
_States = Annotated[dict[Literal["drafter", "controller"], _State], Field(min_length=1)]
"""The schema of ``state.json``."""


def init_args_of(spec: Spec | None, dotted: str) -> dict[str, Any] | None:
    """Return the arguments of a specification if its class is ``dotted``, otherwise None.

    ``dotted`` is the full path of the class. A specification may omit the module or the module's last component.

    Example:
        >>> init_args_of({"class_path": "Chain"}, "specexp.builders.regular_trees.Chain")
        {}
    """
    module, _, name = dotted.rpartition(".")
    package = module.rpartition(".")[0]
    if spec is None or spec.get("class_path") not in (name, f"{package}.{name}", dotted):
        return None
    return dict(spec.get("init_args") or {})


def state_payloads(states: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the payload files for learned states (each family's ``state_dict()``); empty if nothing was learned.

    Example:
        >>> state_payloads({"controller": {"length": 4}})
        {'state.json': {'controller': {'length': 4}}}
    """
    arrays: Arrays = {}
    content = {
        family: _without_arrays(states[family], family, arrays)
        for family in ("drafter", "controller")
        if states.get(family)
    }
    return {} if not content else {STATE: content} | ({TENSORS: arrays} if arrays else {})


def state_in(payloads: Mapping[str, Any], where: str) -> dict[str, State]:
    """Return the learned states in payloads, keyed by family; empty if there are none.

    Raises ArtifactError if a tensor is missing or unused, a number is not finite, or a family cannot have state.
    """
    if STATE not in payloads:
        if TENSORS in payloads:
            raise ArtifactError(f"{where} is missing, but its tensors exist in {TENSORS}")
        return {}
    content, arrays = payloads[STATE], dict(payloads.get(TENSORS, {}))
    validated(_States, content, where)
    for name, array in arrays.items():
        check_finite(array, f"{where}: tensor {name!r}")
    states: dict[str, State] = _with_arrays(content, arrays, where)
    if arrays:  # arrays that no state refers to
        raise ArtifactError(f"{where} does not use the tensor {min(arrays)!r} of {TENSORS}")
    return states


def check_finite(array: NDArray[Any], what: str) -> None:
    """Raise an ArtifactError that begins with ``what`` if an array of floats contains an infinity or NaN."""
    if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
        raise ArtifactError(f"{what} has numbers that are not finite")


def _without_arrays(value: Any, name: str, arrays: Arrays) -> Any:
    """Move the arrays in a value to ``arrays``. Each is named after its path, such as ``drafter.matrix``."""
    if isinstance(value, Mapping):
        return {key: _without_arrays(inner, f"{name}.{key}", arrays) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_without_arrays(inner, f"{name}.{number}", arrays) for number, inner in enumerate(value)]
    if getattr(value, "shape", None):  # a tensor or array; one without dimensions is stored as a number
        arrays[name] = np.asarray(value)
        return {_TENSOR: name}
    return value.item() if hasattr(value, "item") else value


def _with_arrays(value: Any, arrays: Arrays, where: str) -> Any:
    """Replace the names of arrays with the arrays, removing each from ``arrays``."""
    if isinstance(value, dict):
        if value.keys() == {_TENSOR}:
            name = value[_TENSOR]
            if not isinstance(name, str) or name not in arrays:
                raise ArtifactError(f"{where} uses the tensor {name!r}, which {TENSORS} does not have")
            return arrays.pop(name)
        return {key: _with_arrays(inner, arrays, where) for key, inner in value.items()}
    if isinstance(value, list):
        return [_with_arrays(inner, arrays, where) for inner in value]
    if isinstance(value, float) and not isfinite(value):
        raise ArtifactError(f"{where} has a number that is not finite")
    return value
