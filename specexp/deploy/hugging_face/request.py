"""What a call of ``generate`` asks for, and what of it cannot be done here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig

from specexp.core.placement import compute_device
from specexp.core.runtime import Runtime
from specexp.deploy.hugging_face.generation_fields import first_refused, refused_argument


def drawn_seed(given: int | None, default: int | None, config: GenerationConfig) -> int:
    """The seed of a call: the one given, the default, or one that torch's generator draws where anything is sampled."""
    for seed in (given, default):
        if seed is not None:
            return seed
    return int(torch.randint(2**62, ()).item()) if config.do_sample else 0


def serves(served: Runtime, model: PreTrainedModel) -> bool:
    """Whether a wrapped model is this one, where and as it is now."""
    return served.model is model and served.device == compute_device(model) and served.dtype == model.dtype


def eos_ids(config: GenerationConfig) -> list[int]:
    """Tokens that end an output."""
    eos = config.eos_token_id
    return [] if eos is None else [int(token) for token in torch.as_tensor(eos).flatten()]


_ANSWERED = ("attention_mask", "inputs_embeds", "past_key_values", "position_ids")
_WITHOUT_EFFECT = ("use_cache", "logits_to_keep", "return_dict")


def refuse(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    kept: Mapping[str, Any],
    padding: Sequence[int] = (0,),
) -> None:
    """Refuse a request that the loop cannot answer.

    Args:
        input_ids: ``[1, p]``; of a batch that can be answered, the first row.
        config: what the call is configured with.
        model_kwargs: what else the model would be given.
        kept: what ``generate`` keeps from callables.
        padding: masked tokens before the prompt of every row.

    Raises:
        ValueError: one sentence that says what to do instead.
    """
    batch = input_ids.shape[0]
    cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
    others = [
        name
        for name, value in model_kwargs.items()
        if value is not None and name not in (*_ANSWERED, *_WITHOUT_EFFECT)
    ]
    problem = refused_argument(kept, config) or first_refused(config)
    if problem is not None:
        pass
    elif batch != 1:
        problem = f"a batch of {batch} is not supported: give one prompt and num_return_sequences=1"
    elif input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
        problem = "a prompt of embeddings is not supported: give input_ids with at least one token"
    elif model_kwargs.get("attention_mask") is not None:
        problem = "a prompt with masked (padding) tokens is not supported: give it unpadded"
    elif cache is not None and cache.get_seq_length() > 0:
        problem = "past_key_values that already hold tokens are not supported: leave them out"
    elif positions is not None and not _counted(positions, padding):
        problem = "position_ids that do not count from 0 are not supported: leave them out"
    elif others:
        problem = f"{others[0]} is not supported: the model is given input_ids alone"
    if problem is not None:
        raise ValueError(f"custom_generate of specexp: {problem}")


def _counted(positions: torch.Tensor, padding: Sequence[int]) -> bool:
    """Whether positions ``[..., b or 1, p]`` count every row's tokens from 0."""
    counted = torch.arange(positions.shape[-1], device=positions.device)
    rows = positions.expand(*positions.shape[:-2], len(padding), -1)
    return all(
        bool((rows[..., number, pad:] == counted[: counted.numel() - pad]).all())
        for number, pad in enumerate(padding)
    )
