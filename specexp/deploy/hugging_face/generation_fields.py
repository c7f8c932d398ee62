"""What becomes of every field of Hugging Face's generation config, and of what ``generate`` keeps from callables.

A field that is in no table here, such as one of a later transformers, is refused as soon as it is set.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Mapping
from typing import Any

from transformers.generation import GenerationConfig, GenerationMixin

OBEYED = frozenset(
    (
        *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings"),
        *(
            "do_sample",
            "temperature",
            "top_k",
            "top_p",
            "min_p",
            "top_h",
            "typical_p",
            "epsilon_cutoff",
            "eta_cutoff",
        ),
        *(
            "repetition_penalty",
            "encoder_repetition_penalty",
            "no_repeat_ngram_size",
            "encoder_no_repeat_ngram_size",
        ),
        *("bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "renormalize_logits"),
        *(
            "remove_invalid_values",
            "exponential_decay_length_penalty",
            "forced_bos_token_id",
            "forced_eos_token_id",
        ),
        *("guidance_scale", "watermarking_config", "token_healing"),
        *("pad_token_id", "bos_token_id", "eos_token_id", "num_return_sequences"),
    )
)
"""Fields that act here as in plain ``generate``: most are logits processors and stopping criteria, which it makes."""

BY_NATURE = frozenset(("disable_compile", "decoder_start_token_id", "transformers_version"))
"""Fields that cannot change an output here: nothing is compiled, nor is there an encoder."""

_BEAMS = "use num_beams=1, for no beams are searched"
_DRAFTS = "leave it out, for the artifact says what is drafted"
_CACHE = "leave it out, for the loop has a cache of its own"
_TOKENS = "leave it out, for the token ids alone are returned"
_WAY = "use greedy search or sampling"

REFUSED = {
    **dict.fromkeys(
        (
            "num_beams",
            "num_beam_groups",
            "diversity_penalty",
            "length_penalty",
            "early_stopping",
            "constraints",
        ),
        _BEAMS,
    ),
    **dict.fromkeys(("force_words_ids", "low_memory"), _BEAMS),
    **dict.fromkeys(("penalty_alpha", "dola_layers"), _WAY),
    **dict.fromkeys(
        (
            "prompt_lookup_num_tokens",
            "max_matching_ngram_size",
            "num_assistant_tokens",
            "speculation_type",
            "use_mtp",
        ),
        _DRAFTS,
    ),
    **dict.fromkeys(
        (
            "num_assistant_tokens_schedule",
            "assistant_confidence_threshold",
            "assistant_lookbehind",
            "target_lookbehind",
        ),
        _DRAFTS,
    ),
    **dict.fromkeys(("assistant_early_exit", "assistant_ensemble_weight", "is_assistant"), _DRAFTS),
    **dict.fromkeys(("use_cache", "cache_implementation", "cache_config", "max_cache_len"), _CACHE),
    **dict.fromkeys(("prefill_chunk_size", "continuous_batching_config", "compile_config"), _CACHE),
    **dict.fromkeys(
        (
            "return_dict_in_generate",
            "output_scores",
            "output_logits",
            "output_attentions",
            "output_hidden_states",
        ),
        _TOKENS,
    ),
}
"""What to do instead, by field that is refused where it is set to something else than its default."""


KEPT_BACK = (
    "streamer",
    "assistant_model",
    "synced_gpus",
    "negative_prompt_ids",
    "negative_prompt_attention_mask",
)
"""Arguments that ``generate`` does not pass on to a callable. It swallows ``tokenizer`` and ``assistant_tokenizer``
too, and those nobody can see."""

_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__


def first_refused(config: GenerationConfig) -> str | None:
    """The first field that is set and cannot be obeyed, as a clause with what to do instead; None if all can.

    Entries that are no fields of transformers' own generation config, which some models' files hold, mean nothing to
    plain ``generate`` either.

    Args:
        config: what a call is configured with.
    """
    plain = GenerationConfig()
    defaults = {**vars(plain), **plain._get_default_generation_params()}
    for name, default in sorted(defaults.items()):
        value = getattr(config, name, None)
        if name.startswith("_") or name in OBEYED or name in BY_NATURE or value is None or value == default:
            continue
        if default is None and value is False:
            continue
        advice = REFUSED.get(name, "leave it out, for this version of specexp does not know it")
        return f"{name}={value!r} is not supported: {advice}"
    return None


def kept_back() -> dict[str, Any]:
    """What the ``generate`` that called custom_generate keeps from callables, by its names in :data:`KEPT_BACK`.

    Nothing of it reaches a callable, so it is read off the frame of ``generate``; empty where something else calls.
    """
    frame = sys._getframe(1)
    while frame.f_code is not _GENERATE:
        if frame.f_back is None:
            return {}
        frame = frame.f_back
    return {name: frame.f_locals.get(name) for name in KEPT_BACK}


def refused_argument(kept: Mapping[str, Any], config: GenerationConfig) -> str | None:
    """The first argument kept back that is given and cannot be obeyed, as :func:`first_refused` says it.

    Args:
        kept: what :func:`kept_back` gave.
        config: what the call is configured with.
    """
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
