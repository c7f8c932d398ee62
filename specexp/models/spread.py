"""Targets that are spread over devices, the CPU's memory and the disk."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from specexp.core.messages import did_you_mean
from specexp.models.gguf import is_gguf
from specexp.models.packed import is_packed
from specexp.models.runtime import AUTO, modes
from specexp.models.sources import PairError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig

_TENSOR_PARALLEL = "tensor-parallel"
_DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", _TENSOR_PARALLEL)


def placement(
    target: str,
    config: PreTrainedConfig,
    device_map: str | Mapping[str, str | int] | None,
    offload_folder: str | None,
    mode: str,
) -> dict[str, Any]:
    """Return the arguments of ``from_pretrained`` that spread a target; none without a device map.

    Args:
        target: the target's source.
        config: its configuration.
        device_map: this and the others are :func:`~specexp.models.pair.load_pair`'s.

    Raises:
        PairError: it cannot be spread so; one sentence with what is allowed.
    """
    heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
    processes = int(os.environ.get("WORLD_SIZE", "1"))  # that torchrun started together
    key, why = "device_map", ""
    if device_map is None:
        key = "offload_folder"
        why = "" if offload_folder is None else "is given without a device_map, which alone fills it"
    elif isinstance(device_map, str) and device_map not in _DEVICE_MAPS:
        hint = did_you_mean(device_map, _DEVICE_MAPS)
        why = f"is {device_map!r}{hint}; or a mapping of modules to devices is expected"
    elif is_gguf(target):
        why = f"must be left out for the GGUF file {target!r}, which llama.cpp places itself"
    elif mode != AUTO and not modes()[mode].takes_device_map:
        allowed = " and ".join((*(name for name, kind in modes().items() if kind.takes_device_map), AUTO))
        key, why = "mode", f"is {mode!r}, and a device_map spreads the target: allowed are {allowed}"
    elif is_packed(target):
        why = "must be left out for an embedded model; python -m specexp.export writes an ordinary one (--to hf)"
    elif device_map != _TENSOR_PARALLEL:
        if find_spec("accelerate") is None:
            why = 'needs accelerate: pip install -e ".[offload]"'
    elif processes < 2:
        why = (
            f"is {device_map!r}, which splits the target over the processes of torchrun, and this is one alone: "
            "start several with torchrun --nproc-per-node N"
        )
    elif heads % processes:  # each process holds whole heads
        why = f"is {device_map!r} over {processes} processes, which must divide the {heads} heads of keys"
    if why:
        raise PairError(key, f"{key} {why}")
    if device_map is None:
        return {}
    if device_map != _TENSOR_PARALLEL:
        return {"device_map": device_map, "offload_folder": offload_folder}
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=processes)}
