"""Whether a target can be spread over devices, the CPU's memory and the disk, before its weights are read."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec

from specexp.core.messages import did_you_mean
from specexp.pairs.gguf import is_gguf
from specexp.pairs.sources import PairError

DEVICE_MAPS = ("auto", "balanced", "balanced_low_0", "sequential")


def check_spread(
    target: str, device_map: str | Mapping[str, str | int] | None, offload_folder: str | None, mode: str
) -> None:
    """Refuse what cannot be spread; the arguments are :func:`~specexp.pairs.pair.load_pair`'s.

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
    if find_spec("accelerate") is None:
        raise PairError("device_map", 'device_map needs accelerate: pip install -e ".[offload]"')
