"""Small random models of several architectures, and tokenizers for them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

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
_WINDOW = {**_LLAMA_LIKE, "sliding_window": 5}
_BY_LAYER = {"full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0}}
_BY_LAYER |= {"sliding_attention": {"rope_type": "default", "rope_theta": 1e4}}
SLIDING = {
    "Mistral": _WINDOW,  # a window in every layer
    "Phi3": {**_WINDOW, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    "Qwen2": {**_WINDOW, "use_sliding_window": True, "max_window_layers": 1},
    "Gemma2": {**_WINDOW, "head_dim": 16, "attn_logit_softcapping": 5.0, "final_logit_softcapping": 3.0},
    "Gemma3Text": {**_WINDOW, "head_dim": 16, "sliding_window_pattern": 2, "rope_parameters": _BY_LAYER},
    "Olmo3": {**_WINDOW, "num_hidden_layers": 4, "pad_token_id": 0, "eos_token_id": 2},
    "GptOss": {**_WINDOW, "head_dim": 8, "num_local_experts": 4, "num_experts_per_tok": 2, "eos_token_id": 2},
}
EAGER_ALONE = ("Gemma2", "GptOss")
"""Models with soft caps or sinks, for which transformers has no ``sdpa``."""


def build(name, settings, attention="sdpa", dtype=torch.float64):
    """Return a random model in eval mode, the same at every call."""
    config = getattr(transformers, f"{name}Config")(**settings)
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation=attention, dtype=dtype).eval()


def layer_weights(random, layer, wide, width, heads, keys, size, inner):
    """Return random weights of a layer of the Llama family that reads ``wide`` numbers; ``random`` makes a tensor."""
    return {
        f"{layer}.self_attn.q_proj.weight": random(heads * size, wide),
        f"{layer}.self_attn.k_proj.weight": random(keys * size, wide),
        f"{layer}.self_attn.v_proj.weight": random(keys * size, wide),
        f"{layer}.self_attn.o_proj.weight": random(width, heads * size),
        f"{layer}.mlp.gate_proj.weight": random(inner, width),
        f"{layer}.mlp.up_proj.weight": random(inner, width),
        f"{layer}.mlp.down_proj.weight": random(width, inner),
        f"{layer}.input_layernorm.weight": 1 + random(width),
        f"{layer}.post_attention_layernorm.weight": 1 + random(width),
    }


@cache
def small_model(name, attention="sdpa", dtype=torch.float64):
    """Return a small random model with full attention."""
    return build(name, FULL_ATTENTION[name], attention, dtype)


@cache
def sliding_model(name):
    """Return a small random float32 model with windows that are shorter than any prompt."""
    return build(name, SLIDING[name], "eager" if name in EAGER_ALONE else "sdpa", torch.float32)


END = "<|end|>"


def byte_tokenizer(*pairs: str, special: Sequence[str] = (END,), **given: Any) -> PreTrainedTokenizerFast:
    """Return a tokenizer of all bytes, these pairs of bytes and special tokens; ``<|end|>`` is EOS."""
    letters = [*sorted(pre_tokenizers.ByteLevel.alphabet()), *pairs]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[(pair[0], pair[1]) for pair in pairs]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens(list(special))
    return PreTrainedTokenizerFast(tokenizer_object=core, eos_token=END, **given)


def sentencepiece_tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of letters as SentencePiece's: spaces are ``▁``, other characters are bytes."""
    letters = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghinorstxyz", "▁t", "▁a"]
    merges = [("▁", "t"), ("▁", "a"), ("h", "e"), ("n", "d")]
    letters += ["he", "nd"]
    vocabulary = {letter: number for number, letter in enumerate(letters)}
    core = Tokenizer(models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spaces, one_text = decoders.Replace("▁", " "), decoders.Fuse()
    core.decoder = decoders.Sequence([spaces, decoders.ByteFallback(), one_text, decoders.Strip(" ", 1, 0)])
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=core, **special)


EOS = 2


class LetterTokenizer:
    """A tokenizer of letters, for prompts without chat template."""

    eos_token_id = EOS
    bos_token_id = None
    chat_template = None
    all_special_ids = (EOS,)

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [3 + ord(letter) % 40 for letter in text]}


def tiny_llama(
    seed: int, dtype: torch.dtype = torch.float32, noise: float = 0.0, context: int = 256
) -> LlamaForCausalLM:
    """Return a random model; with ``noise`` it is near the model of the same seed."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=48,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=context,
        initializer_range=0.3,
        bos_token_id=1,
        eos_token_id=EOS,
        pad_token_id=None,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters() if noise else ():
            parameter += noise * torch.randn_like(parameter)
    return model.to(dtype)
