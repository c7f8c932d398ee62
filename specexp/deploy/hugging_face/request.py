"""The request in a call of ``generate``, and the fields of its generation config that cannot be obeyed here.

A field that is in no table, such as one of a later transformers, is refused as soon as it is set.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig, GenerationMixin

from specexp.core.language_model import compute_device
from specexp.core.runtime import Runtime

OBEYED = frozenset(
    [
        "max_length",
        "max_new_tokens",
        "min_length",
        "min_new_tokens",
        "max_time",
        "stop_strings",
        "do_sample",
        "temperature",
        "top_k",
        "top_p",
        "min_p",
        "top_h",
        "typical_p",
        "epsilon_cutoff",
        "eta_cutoff",
        "repetition_penalty",
        "encoder_repetition_penalty",
        "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size",
        "bad_words_ids",
        "suppress_tokens",
        "begin_suppress_tokens",
        "sequence_bias",
        "renormalize_logits",
        "remove_invalid_values",
        "exponential_decay_length_penalty",
        "forced_bos_token_id",
        "forced_eos_token_id",
        "guidance_scale",
        "watermarking_config",
        "token_healing",
        "pad_token_id",
        "bos_token_id",
        "eos_token_id",
        "num_return_sequences",
    ]
)
"""Fields that act here as in plain ``generate``: most are logits processors and stopping criteria, which it makes."""

BY_NATURE = frozenset(("disable_compile", "decoder_start_token_id", "transformers_version"))
"""Fields that cannot change an output here: nothing is compiled, and there is no encoder."""

_ADVICE = {
    "use num_beams=1, for no beams are searched": "num_beams num_beam_groups diversity_penalty length_penalty "
    "early_stopping constraints force_words_ids low_memory",
    "use greedy search or sampling": "penalty_alpha dola_layers",
    "leave it out, for the artifact says what is drafted": "prompt_lookup_num_tokens max_matching_ngram_size "
    "num_assistant_tokens speculation_type use_mtp num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_lookbehind target_lookbehind assistant_early_exit assistant_ensemble_weight is_assistant",
    "leave it out, for the loop has a cache of its own": "use_cache cache_implementation cache_config max_cache_len "
    "prefill_chunk_size continuous_batching_config compile_config",
    "leave it out, for the token ids alone are returned": "return_dict_in_generate output_scores output_logits "
    "output_attentions output_hidden_states",
}
REFUSED = {name: advice for advice, names in _ADVICE.items() for name in names.split()}
"""Advice by field that is refused if it is set to something else than its default."""
DEFAULTS = {
    "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "length_penalty": 1.0, "use_cache": True,
    "num_assistant_tokens": 20, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10, "target_lookbehind": 10,
}  # fmt: skip
"""Defaults of the refused fields, as transformers documents them; null and false for the others."""

KEPT_BACK = (
    "streamer",
    "assistant_model",
    "synced_gpus",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
)
"""Arguments that ``generate`` does not pass on to a callable. It swallows ``tokenizer`` and ``assistant_tokenizer``
too, and those cannot be read at all."""

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_ANSWERED = ("attention_mask", "inputs_embeds", "past_key_values", "position_ids")
_WITHOUT_EFFECT = ("use_cache", "logits_to_keep", "return_dict")


def first_refused(config: GenerationConfig) -> str | None:
    """Return the first field that is set and cannot be obeyed, as a clause with advice; None if all can.

    Entries that are no fields of transformers' own generation config, which some models' files hold, mean nothing to
    plain ``generate`` either.
    """
    for name in sorted(vars(GenerationConfig())):
        value = getattr(config, name, None)
        if name.startswith("_") or name in OBEYED or name in BY_NATURE or value is None:
            continue
        if value != DEFAULTS.get(name, False):
            advice = REFUSED.get(name, "leave it out, for this version of specexp does not know it")
            return f"{name}={value!r} is not supported: {advice}"
    return None


def kept_back() -> dict[str, Any]:
    """Return the arguments of :data:`KEPT_BACK` of the ``generate`` that called custom_generate.

    No interface of transformers hands them to a callable, so they are read off the frame of ``generate``; empty if
    something else calls.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    return {} if frame is None else {name: frame.f_locals.get(name) for name in KEPT_BACK}


def refused_argument(kept: Mapping[str, Any], config: GenerationConfig) -> str | None:
    """Return the first argument kept back that is given and cannot be obeyed, as :func:`first_refused` does."""
    if kept.get("assistant_model") is not None:
        return (
            "assistant_model is not supported: give a draft model as custom_generate(artifact, draft=MODEL)"
        )
    if kept.get("synced_gpus"):
        return "synced_gpus=True is not supported: leave it out, for every process decodes by itself"
    if config.guidance_scale in (None, 1):
        for name in ("negative_prompt_ids", "negative_prompt_attention_mask"):
            if kept.get(name) is not None:
                return f"{name} changes nothing without guidance_scale: set guidance_scale above 1"
    return None


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


def refuse(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    kept: Mapping[str, Any],
    padding: Sequence[int] = (0,),
) -> None:
    """Raise if the loop cannot answer a request.

    Args:
        input_ids: ``[1, p]``; of a batch that can be answered, the first row.
        config: the generation config.
        model_kwargs: further arguments for the model.
        kept: of :func:`kept_back`.
        padding: masked tokens before the prompt of every row.

    Raises:
        ValueError: one sentence with advice.
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
