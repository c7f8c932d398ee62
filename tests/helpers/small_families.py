"""Small random models of each family with compiled passes."""

import torch

from helpers.small_models import FULL_ATTENTION, build

_WIDE = {**FULL_ATTENTION["Llama"], "head_dim": 16, "num_hidden_layers": 4, "pad_token_id": 0, "eos_token_id": 2}
_ALTERNATING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"] * 2}
_SWITCHED = {"use_sliding_window": True, "sliding_window": 8}
_PARTIAL = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
_YARN = {"rope_type": "yarn", "factor": 4.0, "rope_theta": 1e4, "original_max_position_embeddings": 40}
_GEMMA = {"initializer_range": 0.2, "query_pre_attn_scalar": 24}
_SCALES = {"embedding_multiplier": 3.0, "logits_scaling": 2.0, "residual_multiplier": 0.5}
FAMILIES = {
    "Llama": {**_WIDE, "attention_bias": True, "mlp_bias": True},
    "Mistral": {**_WIDE, "sliding_window": 8, "num_key_value_heads": 1},
    "Qwen2": {**_WIDE, **_SWITCHED, "max_window_layers": 2, "tie_word_embeddings": True},
    "Qwen3": {**_WIDE, **_SWITCHED, "max_window_layers": 1, "head_dim": 48},
    "Gemma2": {**_WIDE, **_ALTERNATING, **_GEMMA},
    "Gemma3Text": {**_WIDE, **_ALTERNATING, **_GEMMA, "final_logit_softcapping": 20.0},
    "Phi3": {**_WIDE, "head_dim": 32, "sliding_window": 8, "rope_parameters": _PARTIAL},
    "SmolLM3": {**_WIDE, **_ALTERNATING, "use_sliding_window": True, "attention_bias": True},
    "Olmo2": {**_WIDE, "attention_bias": True},
    "Olmo3": {**_WIDE, **_ALTERNATING, "rope_parameters": _YARN, "intermediate_size": 40},
    "Granite": {**_WIDE, **_SCALES, "attention_multiplier": 0.2, "tie_word_embeddings": True, "mlp_bias": True},
}
"""Settings of each family with compiled passes, in the shape of its published configurations. Windows are short."""


def family_model(name, dtype=torch.float32, **settings):
    """Return a random model of a family whose norms and biases are random too, the same at every call."""
    model = build(name, {**FAMILIES[name], **settings}, "eager", dtype)
    with torch.no_grad():
        for parameter in (one for one in model.parameters() if one.dim() == 1):
            parameter += 0.3 * torch.randn_like(parameter)
    return model
