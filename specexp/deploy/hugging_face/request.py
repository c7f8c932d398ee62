"""Checks of a call of ``generate``: fields of its generation config and arguments that the loop cannot follow.

A field that is in no table, such as one of a later transformers, is refused if it is set.
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
"""Fields that act as in plain ``generate``: it makes logits processors and stopping criteria of most."""
WITHOUT_EFFECT = frozenset(("disable_compile", "decoder_start_token_id", "transformers_version"))
"""Fields that cannot change an output here: nothing is compiled, and there is no encoder."""
_ADVICE = {
    "use num_beams=1, since there is no beam search": "num_beams num_beam_groups diversity_penalty length_penalty "
    "early_stopping constraints force_words_ids low_memory",
    "use greedy search or sampling": "penalty_alpha dola_layers",
    "leave it out, since the artifact decides on the drafts": "prompt_lookup_num_tokens max_matching_ngram_size "
    "num_assistant_tokens speculation_type use_mtp num_assistant_tokens_schedule assistant_confidence_threshold "
    "assistant_lookbehind target_lookbehind assistant_early_exit assistant_ensemble_weight is_assistant",
    "leave it out, since the loop has its own cache": "use_cache cache_implementation cache_config max_cache_len "
    "prefill_chunk_size continuous_batching_config compile_config",
    "leave it out, since only the token ids are returned": "return_dict_in_generate output_scores output_logits "
    "output_attentions output_hidden_states",
}
REFUSED = {name: advice for advice, names in _ADVICE.items() for name in names.split()}
"""Advice by field that is refused if it is not its default."""
_DEFAULTS = {
    "num_beams": 1, "num_beam_groups": 1, "diversity_penalty": 0.0, "length_penalty": 1.0, "use_cache": True,
    "num_assistant_tokens": 20, "num_assistant_tokens_schedule": "constant", "assistant_confidence_threshold": 0.4,
    "assistant_lookbehind": 10, "target_lookbehind": 10,
}  # fmt: skip
"""Documented defaults of the refused fields; null and false for the others."""
HIDDEN_ARGUMENTS = (
    "streamer", "assistant_model", "synced_gpus", "negative_prompt_ids", "negative_prompt_attention_mask",
)  # fmt: skip
"""Arguments that ``generate`` does not pass to a callable. It also drops ``tokenizer`` and ``assistant_tokenizer``,
which cannot be read at all."""
_GENERATE = inspect.unwrap(GenerationMixin.generate).__code__
_CHECKED = ("attention_mask", "inputs_embeds", "past_key_values", "position_ids")
_IGNORED = ("use_cache", "logits_to_keep", "return_dict")


def hidden_arguments() -> dict[str, Any]:
    """Return the :data:`HIDDEN_ARGUMENTS` of the ``generate`` that called us.

    Transformers passes them to no callable, so they are read from the frame of ``generate``.

    Raises:
        RuntimeError: ``generate`` did not call us, or has other arguments. Without this a streamer would be lost.
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
            f"{transformers.__version__}: call it by model.generate, or install a version that docs/code.md names"
        ) from missing


def serves(runtime: Runtime, model: PreTrainedModel) -> bool:
    """Return whether a runtime runs this model on its present device and in its present dtype."""
    return runtime.model is model and runtime.device == compute_device(model) and runtime.dtype == model.dtype


def eos_ids(config: GenerationConfig) -> list[int]:
    """Return the tokens that end an output."""
    eos = config.eos_token_id
    return [] if eos is None else [int(token) for token in torch.as_tensor(eos).flatten()]


def left_padding(input_ids: torch.Tensor, mask: torch.Tensor | None) -> list[int]:
    """Return the number of masked tokens before the prompt of each row ``[b, p]``.

    Raises:
        ValueError: masked tokens are elsewhere, or a row has no others.
    """
    if mask is None:
        return [0] * input_ids.shape[0]
    mask = mask.long()  # [b, p]
    padding: list[int] = (mask.shape[1] - mask.sum(1)).tolist()
    if not torch.equal(mask, mask.sort(dim=1).values) or mask.shape[1] in padding:
        raise ValueError(
            "custom_generate of specexp: the prompts have masked tokens elsewhere than on their left: pad them there"
        )
    return padding


def check_request(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    hidden: Mapping[str, Any],
    padding: Sequence[int] = (0,),
    *,
    streams: bool = True,
) -> None:
    """Raise a ValueError with advice unless the loop can follow a call.

    ``input_ids`` are ``[1, p]``, the first row if batches are supported; ``hidden`` is the result of
    :func:`hidden_arguments`, and ``padding`` the masked tokens before the prompt of each row.
    """
    for problem in _problems(input_ids, config, model_kwargs, hidden, padding, streams):
        raise ValueError(f"custom_generate of specexp: {problem}")


def _problems(
    input_ids: torch.Tensor,
    config: GenerationConfig,
    model_kwargs: dict[str, Any],
    hidden: Mapping[str, Any],
    padding: Sequence[int],
    streams: bool,
) -> Iterator[str]:
    cache, positions = model_kwargs.get("past_key_values"), model_kwargs.get("position_ids")
    if hidden["assistant_model"] is not None:
        yield "assistant_model is not supported: give a draft model as custom_generate(artifact, draft=MODEL)"
    if hidden["streamer"] is not None and not streams:
        yield (
            "streamer is not supported for a schedule, since its rows end in any order: leave it out, or give "
            "custom_generate the parts alone"
        )
    if hidden["synced_gpus"]:
        yield "synced_gpus=True is not supported: leave it out, since every process decodes by itself"
    for name in HIDDEN_ARGUMENTS if config.guidance_scale in (None, 1) else ():
        if name.startswith("negative") and hidden[name] is not None:
            yield f"{name} changes nothing without guidance_scale: set guidance_scale above 1"
    yield from _refused_fields(config)
    if input_ids.shape[0] != 1:
        yield f"a batch of {input_ids.shape[0]} is not supported: give one prompt and num_return_sequences=1"
    if input_ids.shape[1] == 0 or model_kwargs.get("inputs_embeds") is not None:
        yield "a prompt of embeddings is not supported: give input_ids with at least one token"
    if model_kwargs.get("attention_mask") is not None:
        yield "a prompt with masked (padding) tokens is not supported: give it unpadded"
    if cache is not None and cache.get_seq_length() > 0:
        yield "past_key_values that already hold tokens are not supported: leave them out"
    if positions is not None and not _count_from_zero(positions, padding):
        yield "position_ids that do not count from 0 are not supported: leave them out"
    for name, value in model_kwargs.items():
        if value is not None and name not in (*_CHECKED, *_IGNORED):
            yield f"{name} is not supported: the model takes input_ids alone"


def _refused_fields(config: GenerationConfig) -> Iterator[str]:
    # other entries, which some models' files have, mean nothing to plain generate either
    for name in sorted(vars(GenerationConfig())):
        value = getattr(config, name, None)
        if name.startswith("_") or name in OBEYED or name in WITHOUT_EFFECT or value is None:
            continue
        if value != _DEFAULTS.get(name, False):
            advice = REFUSED.get(name, "leave it out, since this version of specexp does not know it")
            yield f"{name}={value!r} is not supported: {advice}"


def _count_from_zero(positions: torch.Tensor, padding: Sequence[int]) -> bool:
    """Return whether positions ``[..., b or 1, p]`` count every row's tokens from 0."""
    counted = torch.arange(positions.shape[-1], device=positions.device)
    rows = positions.expand(*positions.shape[:-2], len(padding), -1)
    return all(
        bool((rows[..., number, pad:] == counted[: counted.numel() - pad]).all())
        for number, pad in enumerate(padding)
    )
