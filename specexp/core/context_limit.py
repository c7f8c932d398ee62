"""How many positions of a model can be used."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from transformers import PreTrainedConfig


def context_limit(config: PreTrainedConfig) -> int:
    """Positions a model takes at most.

    With ``longrope`` positions only those before its switch: the long factors replace the short ones for a whole pass
    as soon as one of its positions lies beyond, so that keys in the cache, and the answers to nodes before the switch,
    would depend on how deep a tree looked ahead.

    Raises:
        ValueError: the configuration states no limit, as those of models that attend by distance alone (ALiBi).
    """
    text = config.get_text_config()
    limit = getattr(text, "max_position_embeddings", None)
    if not isinstance(limit, int):
        raise ValueError(
            f"the configuration of the {text.model_type} model states no max_position_embeddings: use a decoder with "
            "full attention, and positions that are learned or rotary"
        )
    return min([limit, *_switches(text)])


def _switches(config: PreTrainedConfig) -> Iterator[int]:
    """Positions at which the rotary frequencies change."""
    parameters: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, Mapping)]
    for rope in by_layer_type or [parameters]:
        if rope.get("rope_type") == "longrope":
            yield int(rope["original_max_position_embeddings"])
