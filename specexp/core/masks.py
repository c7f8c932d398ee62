"""Which models take tree passes, how many positions they have, and the one place that builds their masks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import inf
from typing import Any

import torch
from transformers import PreTrainedConfig

SUPPORTED_ATTENTION = ("sdpa", "eager")


def check_attention(config: PreTrainedConfig) -> None:
    """Refuse models whose attention cannot take a tree mask or roll back.

    Raises:
        ValueError: one sentence naming the model type, what it has and what is allowed.
    """
    check_layers(config)
    implementation = config._attn_implementation
    if implementation not in SUPPORTED_ATTENTION:
        model_type = config.get_text_config().model_type
        raise ValueError(
            f"attn_implementation {implementation!r} takes no tree mask: load the {model_type} model with "
            f"attn_implementation 'sdpa' or 'eager'"
        )


def check_layers(config: PreTrainedConfig) -> None:
    """Refuse models whose layers cannot roll back, whatever implementation of attention they are loaded with.

    Raises:
        ValueError: one sentence naming the model type and what it has.
    """
    text = config.get_text_config()
    if config.is_encoder_decoder:
        raise ValueError(
            f"the {config.model_type} model is an encoder-decoder: use a decoder-only causal language model"
        )
    if getattr(text, "num_attention_heads", None) is None:
        raise ValueError(
            f"the {text.model_type} model has no attention, and what it keeps of a token cannot be dropped when the "
            "token is rejected: use a model with full attention in every layer"
        )
    kinds = set(getattr(text, "layer_types", None) or ())
    if "local" in (getattr(text, "attention_layers", None) or ()):  # of GPT-Neo
        kinds.add(f"local attention of {text.window_size} tokens")
    sliding = getattr(text, "sliding_window", None) and getattr(text, "use_sliding_window", True)
    context = getattr(text, "max_position_embeddings", None) or inf
    if sliding and text.sliding_window >= context:  # it never slides
        sliding, kinds = False, kinds - {"sliding_attention"}
    if kinds - {"full_attention"} or (not kinds and sliding):
        found = ", ".join(sorted(kinds - {"full_attention"})) or f"sliding_window={text.sliding_window}"
        raise ValueError(
            f"the {text.model_type} model has layers without full attention ({found}), whose cache cannot drop "
            "rejected tokens: use a model with full attention in every layer"
        )


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
            f"the configuration of the {text.model_type} model states no max_position_embeddings, as that of a model "
            "with ALiBi: use a decoder with full attention, and positions that are learned or rotary"
        )
    return min([limit, *_switches(text)])


def _switches(config: PreTrainedConfig) -> Iterator[int]:
    """Positions at which the rotary frequencies change."""
    parameters: Mapping[str, Any] = getattr(config, "rope_parameters", None) or {}
    by_layer_type = [value for value in parameters.values() if isinstance(value, Mapping)]
    for rope in by_layer_type or [parameters]:
        if rope.get("rope_type") == "longrope":
            yield int(rope["original_max_position_embeddings"])


def additive_mask(visible: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Turn a boolean mask into the additive one that both ``sdpa`` and ``eager`` read correctly.

    A boolean 4-D mask is right with ``sdpa`` but silently wrong with ``eager``, which adds it.

    Args:
        visible: ``[b, 1, q, k]`` true where the row may attend.
        dtype: the model's.

    Returns:
        ``[b, 1, q, k]`` of ``dtype``: 0 where visible, the most negative finite value elsewhere.
    """
    return torch.zeros(visible.shape, dtype=dtype, device=visible.device).masked_fill_(
        ~visible, torch.finfo(dtype).min
    )
