"""Small random models of several architectures, made once."""

from functools import cache

import torch
import transformers
from transformers import AutoModelForCausalLM

VOCABULARY = 61
_LLAMA_LIKE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 160,
    "initializer_range": 0.3,
}
FULL_ATTENTION = {
    "Llama": _LLAMA_LIKE,
    "Qwen2": _LLAMA_LIKE,
    "Qwen3": {**_LLAMA_LIKE, "head_dim": 16},
    "GPT2": {
        "vocab_size": VOCABULARY,
        "n_embd": 32,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 160,
        "initializer_range": 0.3,
    },
    "Gemma": {**_LLAMA_LIKE, "num_key_value_heads": 1, "head_dim": 16, "initializer_range": 0.1},
}
SLIDING = {
    "Mistral": {**_LLAMA_LIKE, "sliding_window": 32},
    "Gemma2": {**_LLAMA_LIKE, "head_dim": 16, "sliding_window": 32},
    "Gemma3Text": {**_LLAMA_LIKE, "head_dim": 16, "sliding_window": 32},
    "Qwen2": {
        **_LLAMA_LIKE,
        "use_sliding_window": True,
        "sliding_window": 32,
        "max_window_layers": 1,
    },
}


def build(name, settings, attention="sdpa", dtype=torch.float64):
    """A random model in eval mode; the same numbers at every call."""
    config = getattr(transformers, f"{name}Config")(**settings)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype).eval()


@cache
def small_model(name, attention="sdpa", dtype=torch.float64):
    """A small random model with full attention."""
    return build(name, FULL_ATTENTION[name], attention, dtype)
