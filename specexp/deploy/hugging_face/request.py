"""Checks for calls of ``generate``, which reject config fields and arguments that our loop does not support.

A field missing from the tables, such as one added by a later transformers version, is rejected if it is set.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
import transformers
from transformers import PreTrainedModel
from transformers.generation import GenerationConfig, GenerationMixin

from specexp.core.language_model import compute_device
from specexp.core.runtime import Runtime

OBEYED = frozenset((
    "max_length", "max_new_tokens", "min_length", "min_new_tokens", "max_time", "stop_strings", "do_sample",
    "temperature", "top_k", "top_p", "min_p", "top_h", "typical_p", "epsilon_cutoff", "eta_cutoff",
    "repetition_penalty", "encoder_repetition_penalty", "no_repeat_ngram_size", "encoder_no_repeat_ngram_size",
    "bad_words_ids", "suppress_tokens", "begin_suppress_tokens", "sequence_bias", "renormalize_logits",
    "remove_invalid_values", "exponential_decay_length_penalty", "forced_bos_token_id", "forced_eos_token_id",
    "guidance_scale", "watermarking_config", "token_healing", "pad_token_id", "bos_token_id", "eos_token_id",
    "num_return_sequences",
))  # fmt: skip
"""Supported fields. ``generate`` turns most of them into logits processors and stopping criteria."""
WITHOUT_EFFECT = frozenset(("disable_compile", "decoder_start_token_id", "low_memory", "transformers_version"))
"""Ignored fields. They cannot change an output, because there is no compilation, no encoder and no beam search."""
_ADVICE = {
    "use num_beams=1, since beam search is not available": "num_beams num_beam_groups diversity_penalty length_penalty "
    "early_stopping constraints force_words_ids",
    "use greedy search or sampling": "penalty_alpha dola_layers",
    "leave it out, since the artifact configures drafting": "prompt_lookup_num_tokens max_matching_ngram_size "
    "num_assistant_tokens speculation_type use_mtp num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_lookbehind target_lookbehind assistant_early_exit assistant_ensemble_weight is_assistant",
    "leave it out, since the loop has its own cache": "use_cache cache_implementation cache_config max_cache_len "
    "prefill_chunk_size continuous_batching_config compile_config",
    "leave it out, since only the token ids are returned": "return_dict_in_generate output_scores output_logits "
    "output_attentions output_hidden_states",
}
REFUSED = {name: advice for advice, names in _ADVICE.items() for name in names.split()}
"""Advice for each field that is rejected unless it has its default value."""
_DEFAULTS = {
    "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "length_penalty": 1.0, "use_cache": True,
    "num_assistant_tokens": 20, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10, "target_lookbehind": 10,
}  # fmt: skip
"""Documented defaults of the rejected fields. All other fields default to null or false."""
HIDDEN_ARGUMENTS = (
    "streamer", "assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask",
)  # fmt: skip
"""Arguments that ``generate`` does not pass to callables."""
_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_CHECKED = ("attention_mask", "inputs_embeds", "past_key_values", "position_ids")
_IGNORED = ("use_cache", "logits_to_keep", "return_dict")


def hidden_arguments() -> dict[str, Any]:
    """Return the :data:`HIDDEN_ARGUMENTS` of the current call of ``generate``.

    Transformers does not pass them to callables, so they are read from the stack frame of ``generate``. Without them, a
    streamer would be silently ignored. Raises RuntimeError if the call does not come from ``generate``, or ``generate``
    has different arguments.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not _GENERATE:
        frame = frame.f_back
    try:
        if frame is None:
            raise KeyError("generate")
        return {name: frame.f_locals[name] for name in HIDDEN_ARGUMENTS}
    except KeyError as missing:
        raise RuntimeError(
            f"custom_generate of specexp cannot read {missing} of model.generate in transformers "
            f"{transformers.__version__}: call model.generate(custom_generate=...), or install a version that "
            "docs/code.md lists"
        ) from missing


def serves(runtime: Runtime, model: PreTrainedModel) -> bool:
    """Return whether a runtime holds this model, on the model's current device and with its current dtype."""
    return runtime.model is model and runtime.device == compute_device(model) and runtime.dtype == model.dtype


def eos_ids(config: GenerationConfig) -> list[int]:
    """Return the tokens that end an output."""
    eos = config.eos_token_id
    return [] if eos is None else [int(token) for token in torch.as_tensor(eos).flatten()]


def left_padding(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Return the number of masked (padding) tokens on the left of each row ``[b, p]``.

    Raises ValueError if there are masked tokens elsewhere, or all tokens of a row are masked.
    """
    if mask is None:
        return [0] * input_ids.shape[0]
    mask = mask.long()  # [b, p]
    padding: list[int] = (mask.shape[1] - mask.sum(1)).tolist()
    if not torch.equal(mask, mask.sort(dim=1).values) or mask.shape[1] in padding:
        raise ValueError(
            "custom_generate of specexp: prompts must be padded on the left and hold at least one unmasked token: set "
            'padding_side="left"'
        )
    return padding


def problems_of(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    hidden: Mapping[str, Any],
    padding: Sequence[int],
    streams: bool,
) -> Iterator[str]:
    """Yield a sentence with advice for each argument or config field that is not supported.

    ``input_ids`` is ``[1, p]``: the prompt, or the first row if batches are supported. ``hidden`` is the result of
    :func:`hidden_arguments`, and ``padding`` the number of masked tokens on the left of each row.
    """
    cache = model_kwargs.get("past_key_values")
    positions = model_kwargs.get("position_ids")
    if hidden["assistant_model"] is not None:
        yield "assistant_model is not supported: pass a draft model as custom_generate(artifact, draft=MODEL)"
    if hidden["streamer"] is not None and not streams:
        yield (
            "streamer is not supported for an artifact with a schedule, which decodes rows in any order: leave it "
            "out, or pass only the artifact's parts to custom_generate"
        )
    if hidden["synced_gpus"]:
        yield "synced_gpus=True is not supported: leave it out, since each process decodes independently"
    for name in HIDDEN_ARGUMENTS if config.guidance_scale in (None, 1) else ():
        if name.startswith("negative") and hidden[name] is not None:
            yield f"{name} has no effect without guidance_scale: set guidance_scale above 1"
    # only known fields: plain generate ignores other entries, which some models' files have
    for name in sorted(vars(GenerationConfig())):
        value = getattr(config, name, None)
        if name.startswith("_") or name in OBEYED or name in WITHOUT_EFFECT or value is None:
            continue
        if value != _DEFAULTS.get(name, False):
            advice = REFUSED.get(name, "leave it out, since this version of specexp does not support it")
            yield f"{name}={value!r} is not supported: {advice}"
    if input_ids.shape[0] != 1:
        yield f"a batch of {input_ids.shape[0]} is not supported: pass one prompt and num_return_sequences=1"
    if input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
        yield "a prompt of embeddings is not supported: pass input_ids with at least one token"
    if model_kwargs.get("attention_mask") is not None:
        yield "a prompt with masked (padding) tokens is not supported: pass it without padding"
    if cache is not None and cache.get_seq_length() > 0:
        yield "past_key_values with cached tokens is not supported: leave it out"
    if positions is not None and not _count_from_zero(positions, padding):
        yield "position_ids must start at 0 and increase by 1: leave it out"
    for name, value in model_kwargs.items():
        if value is not None and name not in (*_CHECKED, *_IGNORED):
            yield f"{name} is not supported: leave it out, since the model is called with input_ids only"


def _count_from_zero(positions: torch.Tensor, padding: Sequence[int]) -> bool:
    """Return whether positions ``[..., b or 1, p]`` count the unpadded tokens of each row from 0."""
    counted = torch.arange(positions.shape[-1], device=positions.device)
    rows = positions.expand(*positions.shape[:-2], len(padding), -1)
    return all(
        bool((rows[..., number, pad:] == counted[: counted.numel() - pad]).all()) for number, pad in enumerate(padding)
    )
