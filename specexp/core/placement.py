"""Where a model computes: one device, or several that hold parts of it."""

from __future__ import annotations

import torch
from transformers import PreTrainedModel

from specexp.core.messages import counted

STORES = ("cpu", "disk")
"""Where modules of a spread model wait for their turn, if any other device computes."""


def is_spread(model: PreTrainedModel) -> bool:
    """Whether a model was loaded with a ``device_map``, so that its weights come and go, or lie on several devices."""
    return getattr(model, "hf_device_map", None) is not None or parallel(model) > 1


def parallel(model: PreTrainedModel) -> int:
    """Over how many processes its matrices are split."""
    return getattr(model, "_tp_size", None) or 1


def compute_device(model: PreTrainedModel) -> torch.device:
    """The device that takes a model's inputs and gives its logits: of a spread one the first that computes, as
    accelerate has it; weights that wait elsewhere stand on no device meanwhile."""
    if not is_spread(model) or parallel(model) > 1:
        own: torch.device = model.device
        return own
    placed = [place for place in model.hf_device_map.values() if str(place) not in STORES]
    return torch.device(placed[0] if placed else "cpu")


def placement(model: PreTrainedModel) -> str:
    """Where a model's weights lie: ``cuda:0``, or ``cuda:0 (20 modules), cpu (1 module)`` of a spread one."""
    if parallel(model) > 1:
        return f"{model.device} (tensor parallel over {parallel(model)} processes)"
    if not is_spread(model):
        return str(model.device)
    names = [
        f"cuda:{place}" if isinstance(place, int) else str(place) for place in model.hf_device_map.values()
    ]
    counts = {name: names.count(name) for name in sorted(set(names), key=names.index)}
    return ", ".join(f"{name} ({counted(count, 'module')})" for name, count in counts.items())
