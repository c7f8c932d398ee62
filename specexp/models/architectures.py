"""The families of models that have compiled passes, one row a family, and what each model must be like."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, NamedTuple

import torch
from transformers import PreTrainedConfig, PreTrainedModel

from specexp.base.kernels import CannotCompileError
from specexp.core.language_model import is_spread

NARROWEST = 16
"""Hidden sizes, head sizes and rotated numbers must be multiples of this, twice the shortest vector length."""
_STEADY_ROTATIONS = ("default", "linear", "llama3", "yarn", "longrope")  # longrope: up to its original context
_ACTIVATIONS = ("silu", "gelu_pytorch_tanh")


class Family(NamedTuple):
    """The differences between the models of one class and Llama's."""

    name: str  # as in documents
    flags: tuple[str, ...] = ()  # fields of the configuration class that passes apply, beyond _FIELDS
    # tensor names of the norms of attention's input, the MLP's input, attention's output and the MLP's output, each
    # empty if there is none; then those of the projections
    norms: tuple[str, str, str, str] = ("input_layernorm", "post_attention_layernorm", "", "")
    qkv: tuple[str, ...] = ("q_proj", "k_proj", "v_proj")
    gate_up: tuple[str, ...] = ("gate_proj", "up_proj")
    norms_qk: Literal["", "head", "all"] = ""  # norms of queries and keys: by head, over all heads, or none if empty
    norm_offset: float = 0.0  # added to the weights of all norms
    file: str = "LLAMA"  # name of the architecture in GGUF files, in the enumeration of the package gguf


_WINDOWS = ("sliding_window", "layer_types")
_SWITCHED = (*_WINDOWS, "use_sliding_window")
_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
_GEMMA = (*_WINDOWS, "query_pre_attn_scalar", "final_logit_softcapping")
_AROUND = ("input_layernorm", "pre_feedforward_layernorm", *_AFTER)
_GRANITE = ("embedding_multiplier", "logits_scaling", "residual_multiplier", "attention_multiplier")
FAMILIES = {
    "LlamaForCausalLM": Family("Llama"),
    "MistralForCausalLM": Family("Mistral", _WINDOWS),
    "Qwen2ForCausalLM": Family("Qwen2", (*_SWITCHED, "max_window_layers"), file="QWEN2"),
    "Qwen3ForCausalLM": Family("Qwen3", (*_SWITCHED, "max_window_layers"), norms_qk="head", file="QWEN3"),
    "Gemma2ForCausalLM": Family(
        "Gemma 2", (*_GEMMA, "attn_logit_softcapping"), _AROUND, norm_offset=1.0, file="GEMMA2"
    ),
    "Gemma3ForCausalLM": Family("Gemma 3 (text)", _GEMMA, _AROUND, norms_qk="head", norm_offset=1.0, file="GEMMA3"),
    "Phi3ForCausalLM": Family(
        "Phi-3 and Phi-4",
        (*_WINDOWS, "original_max_position_embeddings"),
        qkv=("qkv_proj",),
        gate_up=("gate_up_proj",),
        file="PHI3",
    ),
    "SmolLM3ForCausalLM": Family("SmolLM3", (*_SWITCHED, "no_rope_layers", "no_rope_layer_interval"), file="SMOLLM3"),
    "Olmo2ForCausalLM": Family("OLMo 2", (), ("", "", *_AFTER), norms_qk="all", file="OLMO2"),
    "Olmo3ForCausalLM": Family("OLMo 3", _WINDOWS, ("", "", *_AFTER), norms_qk="all", file="OLMO2"),
    "GraniteForCausalLM": Family("Granite 3", _GRANITE, file="GRANITE"),
}
"""The supported families, by the names of their classes in transformers."""
_FIELDS = {
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "hidden_act", "hidden_activation", "max_position_embeddings", "rms_norm_eps"),
    *("rope_parameters", "attention_bias", "mlp_bias", "tie_word_embeddings"),
    # without influence on inference
    *("attention_dropout", "resid_pdrop", "embd_pdrop", "initializer_range", "use_cache", "pretraining_tp"),
    *("pad_token_id", "bos_token_id", "eos_token_id"),
}


def check_model(model: PreTrainedModel) -> None:
    """Raise :class:`CannotCompileError` if a model is not supported, without compiling anything."""
    family = FAMILIES.get(type(model).__name__)
    if family is None:
        known = ", ".join(one.name for one in FAMILIES.values())
        raise CannotCompileError(f"compiled passes support {known}, but the model is a {type(model).__name__}")
    config = model.config
    parameters = config.rope_parameters or {}
    ropes = [one for one in parameters.values() if isinstance(one, dict)] or [parameters]
    rotations = [str(rope.get("rope_type", "default")) for rope in ropes]
    unsteady = ", ".join(sorted(set(rotations) - {*_STEADY_ROTATIONS}))
    head_dim = head_dim_of(model)
    rotated = min(2 * len(frequencies) for frequencies, _ in rotations_of(model).values())
    unknown, missing = _misfits(model, family)
    flags = [name for name in sorted(unknown_fields(config, family)) if getattr(config, name)]
    reasons = {
        "has another pair.row_order than 'built'": getattr(config, "row_order", "built") != "built",
        "is spread over devices by a device_map": is_spread(model),
        f"is on {model.device}, not on the CPU": model.device.type not in ("cpu", "meta"),
        f"is {str(model.dtype).removeprefix('torch.')}, not bfloat16, float16 or float32": (
            model.dtype not in (torch.bfloat16, torch.float16, torch.float32)
        ),
        f"has the activation {activation_of(config)!r}, not {' or '.join(map(repr, _ACTIVATIONS))}": (
            activation_of(config) not in _ACTIVATIONS
        ),
        f"has {unsteady!r} rotations, not {', '.join(_STEADY_ROTATIONS)}": bool(unsteady),
        f"has a hidden size of {config.hidden_size}, not a multiple of {NARROWEST}": (
            config.hidden_size % NARROWEST != 0
        ),
        f"has heads of {head_dim} numbers, not a multiple of {NARROWEST}": head_dim % NARROWEST != 0,
        f"rotates {rotated} numbers of a head, not a multiple of {NARROWEST}": rotated % NARROWEST != 0,
        "has projections other than torch.nn.Linear, such as adapters": any(
            type(part) is not torch.nn.Linear
            for name, part in model.named_modules()
            if name.endswith(("_proj", "lm_head"))
        ),
        f"sets {', '.join(flags)} in its configuration, which passes do not apply": bool(flags),
        f"has the tensor {unknown!r}, unlike others of the {family.name} family": bool(unknown),
        f"lacks the tensor {missing!r}, unlike others of the {family.name} family": bool(missing),
    }
    if why := next((reason for reason, applies in reasons.items() if applies), ""):
        raise CannotCompileError(f"the {config.model_type} model {why}, so there is no compiled pass of it")


def _misfits(model: PreTrainedModel, family: Family) -> tuple[str, str]:
    """Return the first tensor that passes do not read, and the first that they need and the model lacks."""
    projections = [f"self_attn.{name}" for name in (*family.qkv, "o_proj")]
    projections += [f"mlp.{name}" for name in (*family.gate_up, "down_proj")]
    norms = [*filter(None, family.norms), *(f"self_attn.{one}_norm" for one in "qk" if family.norms_qk)]
    layers = [f"model.layers.{number}." for number in range(model.config.num_hidden_layers)]
    needed = ["model.embed_tokens.weight", "model.norm.weight"]
    needed += [f"{layer}{name}.weight" for layer in layers for name in (*norms, *projections)]
    biases = [f"{layer}{name}.bias" for layer in layers for name in projections]
    known = [name for name, _ in model.named_parameters()]
    head = "lm_head.weight"  # not listed if it is tied to the embeddings
    unknown = set(known) - {*needed, *biases, head}
    return min(unknown, default=""), next((name for name in needed if name not in known), "")


def unknown_fields(config: PreTrainedConfig, family: Family) -> set[str]:
    """Return the fields of a model's configuration class that passes do not apply."""
    known = {*_FIELDS, *family.flags, *(field.name for field in fields(PreTrainedConfig))}
    return {field.name for field in fields(config)} - known


def activation_of(config: Any) -> str:
    """Return the name of the MLP's activation."""
    return str(getattr(config, "hidden_activation", None) or config.hidden_act)


def rotations_of(model: PreTrainedModel) -> dict[str | None, tuple[torch.Tensor, float]]:
    """Return the frequencies ``[rotated / 2]`` and scale of each layer type, or under None if all layers share them."""
    rotary = model.model.rotary_emb
    if hasattr(rotary, "original_inv_freq"):
        return {None: (rotary.original_inv_freq, float(rotary.attention_scaling))}
    scales = {kind: float(getattr(rotary, f"{kind}_attention_scaling")) for kind in rotary.rope_type}
    return {kind: (getattr(rotary, f"{kind}_original_inv_freq"), scale) for kind, scale in scales.items()}


def head_dim_of(model: PreTrainedModel) -> int:
    """Return the number of values of one head."""
    config = model.config
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
