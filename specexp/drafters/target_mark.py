"""The mark that ties a head to its target: some weights of the target's output layer, compared within a tolerance."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from torch import nn

    from specexp.core.runtime import Runtime

MARK = "target"  # name of the mark among a head's arrays

_NUMBERS = 512
_ROUNDING = 0.01  # relative tolerance: bfloat16 keeps 8 bits


def check_arrays(name: str, head: Mapping[str, Any], wanted: Collection[str]) -> None:
    """Raise ``ValueError``, naming an array, unless the head of drafter ``name`` has exactly the wanted arrays."""
    missing = sorted({*wanted} - head.keys())
    unknown = sorted(head.keys() - {*wanted})
    if missing or unknown:
        wrong = f"lacks the array {missing[0]!r}" if missing else f"has the unknown array {unknown[0]!r}"
        raise ValueError(f"the head of {name} {wrong}; it must have {', '.join(sorted(wanted))}")


def mark_of(output: nn.Module) -> NDArray[np.float32]:
    """Return ``[512]`` evenly spaced weights of an output layer, or all weights if it has fewer."""
    import torch

    weights: Any = output.weight
    values = weights.detach().reshape(-1)
    count = min(_NUMBERS, values.numel())
    positions = torch.arange(count, device=values.device) * (values.numel() - 1) // max(count - 1, 1)
    mark: NDArray[np.float32] = values[positions].float().numpy(force=True)
    return mark


def output_layer(target: Runtime, arrays: Mapping[str, Any], width: int, name: str) -> nn.Module:
    """Return the target's output layer. Raises ``ValueError`` if there is none or the head is for another target."""
    layer = getattr(target.model, "get_output_embeddings", lambda: None)()
    if layer is None:
        raise ValueError(f"{name} needs a target with an output layer, got {type(target.model).__name__}")
    if layer.weight.shape[-1] != width or not _is_marked(layer, np.asarray(arrays[MARK])):
        raise ValueError(
            f"the head of {name} was trained for another target than this {target.model.config.model_type} model of "
            f"width {layer.weight.shape[-1]}: train one for it, as experiments/heads does"
        )
    found: nn.Module = layer
    return found


def _is_marked(layer: nn.Module, mark: NDArray[np.float32]) -> bool:
    weights: Any = layer.weight
    if weights.is_meta:  # a dry run has no weights: compare sizes only
        return mark.shape == (min(_NUMBERS, weights.numel()),)
    own = mark_of(layer)
    close = _ROUNDING * float(np.abs(own).mean())
    return mark.shape == own.shape and np.allclose(mark, own, rtol=_ROUNDING, atol=close)
