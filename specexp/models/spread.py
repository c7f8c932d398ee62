"""Targets that are spread over devices, the CPU's memory and the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from specexp.core.messages import did_you_mean
from specexp.models.gguf import is_gguf
from specexp.models.sources import PairError

_TENSOR_PARALLEL = "tensor-parallel"
_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", _TENSOR_PARALLEL)


def check_spread(
    target: str, device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, mode: str
) -> None:
    """Raise if a target cannot be spread so; the arguments are :func:`~specexp.models.pair.load_pair`'s.

    Raises:
        PairError: one sentence with what is allowed.
    """
    key, why = "device_map", ""
    if device_map is None:
        key = "offload_folder"
        why = "" if offload_folder is None else "is given without a device_map, which alone fills it"
    elif isinstance(device_map, str) and device_map not in _DEVICE_MAPS:
        hint = did_you_mean(device_map, _DEVICE_MAPS)
        why = f"is {device_map!r}{hint}; or a mapping of modules to devices is expected"
    elif is_gguf(target):
        why = f"must be left out for the GGUF file {target!r}, which llama.cpp places itself"
    elif mode == "compiled":
        key, why = "mode", "is 'compiled', and a device_map spreads the target: allowed are eager and auto"
    elif device_map == _TENSOR_PARALLEL and _processes() < 2:
        why = (
            f"is {device_map!r}, which splits the target over the processes of torchrun, and this is one alone: "
            "start several with torchrun --nproc-per-node N"
        )
    elif device_map != _TENSOR_PARALLEL and find_spec("accelerate") is None:
        why = 'needs accelerate: pip install -e ".[offload]"'
    if why:
        raise PairError(key, f"{key} {why}")


def placement(
    device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, heads: int
) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that spread a target; none without a device map.

    Args:
        device_map: passed :func:`check_spread`.
        offload_folder: where weights wait on the disk.
        heads: the target's key-value heads, which processes share equally.

    Raises:
        PairError: the number of processes does not divide the heads.
    """
    if device_map is None:
        return {}
    if device_map != _TENSOR_PARALLEL:
        return {"device_map": device_map, "offload_folder": offload_folder}
    if heads % _processes():
        raise PairError(
            "device_map",
            f"device_map is {device_map!r} over {_processes()} processes, which must divide the {heads} heads of keys",
        )
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=_processes())}


def _processes() -> int:
    """How many processes torchrun started together; 1 without it."""
    return int(os.environ.get("WORLD_SIZE", "1"))
