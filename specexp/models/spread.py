"""Whether a target can be spread over devices, the CPU's memory and the disk, before its weights are read."""

from __future__ import annotations

import os
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

from specexp.core.messages import did_you_mean
from specexp.models.gguf import is_gguf
from specexp.models.sources import PairError

TENSOR_PARALLEL = "tensor-parallel"
DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential", TENSOR_PARALLEL)


def check_spread(
    target: str, device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, mode: str
) -> None:
    """Refuse what cannot be spread; the arguments are :func:`~specexp.models.pair.load_pair`'s.

    Raises:
        PairError: one sentence with what is allowed.
    """
    if device_map is None:
        if offload_folder is not None:
            raise PairError(
                "offload_folder", "offload_folder is given without a device_map, which alone fills it"
            )
        return
    if isinstance(device_map, str) and device_map not in DEVICE_MAPS:
        raise PairError(
            "device_map",
            f"device_map is {device_map!r}{did_you_mean(device_map, DEVICE_MAPS)}; or a mapping of modules to devices "
            "is expected",
        )
    if is_gguf(target):
        raise PairError(
            "device_map",
            f"target {target!r} is a GGUF file, which llama.cpp places itself: leave device_map out",
        )
    if mode == "compiled":
        raise PairError(
            "mode", "mode is 'compiled', and a device_map spreads the target: allowed are eager and auto"
        )
    if device_map == TENSOR_PARALLEL:
        if processes() < 2:
            raise PairError(
                "device_map",
                f"device_map is {TENSOR_PARALLEL!r}, which splits the target over the processes of torchrun, and this "
                "is one alone: start several with torchrun --nproc-per-node N",
            )
        return
    if find_spec("accelerate") is None:
        raise PairError("device_map", 'device_map needs accelerate: pip install -e ".[offload]"')


def processes() -> int:
    """How many torchrun started together; 1 where it did not."""
    return int(os.environ.get("WORLD_SIZE", "1"))


def loading(
    device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, heads: int
) -> dict[str, Any]:
    """What transformers is told to spread a target; nothing where it is not.

    Args:
        device_map: As :func:`check_spread` let it pass.
        offload_folder: Where weights wait on the disk.
        heads: Heads of the target's keys, which processes share equally.

    Raises:
        PairError: They cannot.
    """
    if device_map is None:
        return {}
    if device_map != TENSOR_PARALLEL:
        return {"device_map": device_map, "offload_folder": offload_folder}
    if heads % processes():
        raise PairError(
            "device_map",
            f"device_map is {TENSOR_PARALLEL!r} over {processes()} processes, and it has {heads} heads of keys: "
            "a number that divides them is expected",
        )
    from transformers.distributed import DistributedConfig

    return {"distributed_config": DistributedConfig(tp_size=processes())}
